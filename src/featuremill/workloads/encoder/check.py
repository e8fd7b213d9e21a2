"""Checks of a loaded network on an example: padding changes no values, 16 bits change them little.

The wrong values of a network that attends to padding, or counts positions from the wrong end, would
not be noticed otherwise.
"""

from __future__ import annotations

import logging

import torch

from featuremill.kit.errors import WorkloadError
from featuremill.workload.spread import on_device
from featuremill.workloads.encoder.architectures import Encoder
from featuremill.workloads.encoder.padding import groups
from featuremill.workloads.encoder.vocabulary import Ids, Vocabulary

__all__ = ["padding"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BOUNDS = {"bf16": 3e-2, "fp16": 5e-3, "fp32": 1e-5}
"""Largest relative L2 difference of a sequence alone and in a batch with a longer one, by dtype."""
TOKEN_COSINE = 0.9995
"""Smallest mean cosine of token vectors in 16 bits with fp32, as in `featuremill audit`."""
LETTERS = {
    "proteins": b"MKTAYIAKQRQISFVKSHFS",
    "nucleotides": b"ACGTTGCAAGCTTAGGCATC",
    "contigs": b"+MKTAYIAK+acgttg-RQI",
    "texts": b"Each text is a line.",
}
log = logging.getLogger("featuremill.encoder")
SHORT, LONG, ROOM = 19, 40, 1024
"""Letters of both examples, and a token limit above both."""


def examples(vocabulary: Vocabulary, alphabet: str) -> tuple[Ids, Ids]:
    """Return the tokens of a short sequence and of a long one."""
    letters = vocabulary.spelled(LETTERS[alphabet] * 2, alphabet)
    return vocabulary.tokens(letters[:SHORT]), vocabulary.tokens(letters[:LONG])


def padding(encoder: Encoder, vocabulary: Vocabulary, short: Ids, long: Ids, dtype: str) -> None:
    """Compute a short sequence alone and beside a long one, and compare.

    Raises:
        WorkloadError: if they differ, or values are not finite.
    """
    layer = encoder.num_layers
    states = []
    for sequences in ([short], [short, long]):
        (group,) = [
            on_device(group, encoder.device)
            for group in groups(sequences, vocabulary, ROOM, most_filling=1.0)
        ]
        hidden = encoder.hidden_states(group.tokens_BT, group.is_token_BT, [layer])[layer]
        states.append(hidden[group.places.index(0), : len(short)])
    alone_TE, beside_TE = states
    off = float((alone_TE - beside_TE).norm() / alone_TE.norm())
    if not off <= BOUNDS[dtype]:  # also true for NaN
        raise WorkloadError(
            f"{encoder.backend}: the same sequence has other values beside a longer one (relative "
            f"error {off:.1g}, at most {BOUNDS[dtype]:g}), or none; nothing was computed: "
            "set dtype: fp32, and see whether this torch fits the device (featuremill doctor)"
        )


def precision(encoder: Encoder, example: Ids, dtype: str) -> None:
    """Warn if vectors of an example in 16 bits differ more from fp32 than those of ESM-2."""
    assert encoder.exact_TE is not None
    layer = encoder.num_layers
    tokens_BT = torch.from_numpy(example)[None].to(encoder.device)
    hidden_TE = encoder.hidden_states(tokens_BT, None, [layer])[layer][0]
    cosine = float(torch.cosine_similarity(hidden_TE, encoder.exact_TE, dim=-1).mean())
    if cosine < TOKEN_COSINE:
        log.warning(
            "%s moves this network further than ESM-2: of an example's tokens, the mean cosine "
            "with fp32 is %.4f (ESM-2's is above %s); set dtype: fp32, or see what that does to "
            "your records with featuremill audit",
            dtype,
            cosine,
            TOKEN_COSINE,
        )
