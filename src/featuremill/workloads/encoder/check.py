"""What a load looks at before anything is computed: that filling changes no values, and how far
16 bits move them.

A network that lets tokens attend to filling, or counts positions from the wrong end, gives numbers
that look like any others.
"""

from __future__ import annotations

import logging

import torch

from featuremill.kit.errors import WorkloadError
from featuremill.workloads.encoder.architectures import Encoder
from featuremill.workloads.encoder.padding import groups
from featuremill.workloads.encoder.vocabulary import Ids, Vocabulary

__all__ = ["padding"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BOUNDS = {"bf16": 3e-2, "fp16": 5e-3, "fp32": 1e-5}
"""Relative L2 that the same sequence alone and beside a longer one may lie apart."""
TOKEN_COSINE = 0.9995
"""With fp32, of a token in 16 bits, on average: what an audit asks for, and what ESM-2 keeps."""
LETTERS = {
    "proteins": b"MKTAYIAKQRQISFVKSHFS",
    "nucleotides": b"ACGTTGCAAGCTTAGGCATC",
    "contigs": b"+MKTAYIAK+acgttg-RQI",
    "texts": b"Each text is a line.",
}
log = logging.getLogger("featuremill.encoder")
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


def precision(encoder: Encoder, example: Ids, dtype: str) -> None:
    """Warn where 16 bits move the vectors of an example further than they move those of ESM-2."""
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
