"""What a load proves before anything is computed: filling changes no values.

A network that lets tokens attend to filling, or counts positions from the wrong end, gives numbers
that look like any others.
"""

from __future__ import annotations

import torch

from featuremill.base.errors import WorkloadError
from featuremill.workloads.encoder.architectures import Encoder
from featuremill.workloads.encoder.padding import groups
from featuremill.workloads.encoder.vocabulary import Ids, Vocabulary

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BOUNDS = {"bf16": 3e-2, "fp16": 5e-3, "fp32": 1e-5}
"""Relative L2 that the same sequence alone and beside a longer one may lie apart."""
LETTERS = {"proteins": b"MKTAYIAKQRQISFVKSHFS", "nucleotides": b"ACGTTGCAAGCTTAGGCATC"}
SHORT, LONG, ROOM = 19, 40, 1024
"""Letters of the two, and more tokens than both have together."""


def examples(vocabulary: Vocabulary, alphabet: str) -> tuple[Ids, Ids]:
    """Return the tokens of a short sequence and of a long one."""
    letters = vocabulary.spelled(LETTERS[alphabet] * 2, alphabet)
    return vocabulary.tokens(letters[:SHORT]), vocabulary.tokens(letters[:LONG])


def padding(encoder: Encoder, vocabulary: Vocabulary, short: Ids, long: Ids, dtype: str) -> None:
    """Compute a short sequence alone and beside a long one, and compare.

    Raises:
        WorkloadError: they differ, or values are not finite.
    """
    layer = encoder.num_layers
    states = []
    for sequences in ([short], [short, long]):
        (group,) = [
            group.each_to(encoder.device)
            for group in groups(sequences, vocabulary, ROOM, most_filling=1.0)
        ]
        hidden = encoder.hidden_states(group.tokens_BT, group.is_token_BT, [layer])[layer]
        states.append(hidden[group.places.index(0), : len(short)])
    alone_TE, beside_TE = states
    off = float((alone_TE - beside_TE).norm() / alone_TE.norm())
    if not off <= BOUNDS[dtype]:  # also where it is not a number
        raise WorkloadError(
            f"{encoder.backend}: the same sequence has other values beside a longer one (relative "
            f"error {off:.1g}, at most {BOUNDS[dtype]:g}), or none; nothing was computed: "
            "set dtype: fp32, and see whether this torch fits the device (featuremill doctor)"
        )
