"""The operations and memory traffic of a network for a token: counted; and what GPUs make of it."""

from __future__ import annotations

from featuremill.workload import UnitWork, Weights
from featuremill.workloads.esm2.architecture import sizes_of
from featuremill.workloads.esm2.sources import NUMBERS

LENGTH_OF_ATTENTION = 1.4
"""Sum of squared lengths / sum of lengths, over the mean length: 437 / 309 in bench/ecoli.fasta.gz
(`effective_length` in the records of `make bench`)."""
BYTES_A_NUMBER_OF_WIDTH = 36
"""Bytes to and from memory for a token in a layer, for each number of the model's width, with
2-byte products: q, k and v written and read, attention's output too (8 numbers), the normed inputs
(4), and the fp32 residual stream read and written three times (3 x 2 x 4 bytes), minus the part
that is fused with the norm. Counted in `encoder.py`, not measured."""
BYTES_A_NUMBER_OF_FEED_FORWARD = {False: 4, True: 12}
"""Bytes to and from memory for a token in a layer, for each number of the feed forward's width:
written and read once, or three times around a gate."""
HOST_TOKENS_PER_SECOND = 2_300_000
"""Tokens that one host thread prepares: 0.017 s for 40,000 tokens, `seconds.prepare` in the
receipts of the demo on 2 cores of a Xeon. A faster GPU waits for it, so for small models every GPU
is assumed to have at most this speed."""
CPU_GFLOPS_A_CORE = {"fp32": 160.0, "bf16": 480.0, "fp16": 10.0}
"""Between what a core reached with ESM-2 of 8M to 150M in the two records of bench/results of
2026-11-23: in fp32 135 (a Xeon) and 197 (an EPYC), in bf16 648 (that Xeon, with AMX) and 371.
fp16, which most CPUs emulate, is a guess."""
CPU_SECONDS_A_TOKEN = 12e-6
"""Added for each token with any number of threads: reading, plan, results and Python. 7 to 16 µs in
those records; with 12 µs both are predicted within a third."""

GPU_SHARES, GPU = {"bf16": 0.65, "fp16": 0.65, "fp32": 0.48}, "NVIDIA H200"
"""The share of the speed by the data sheet (operations and bytes) that a GPU reaches: what extract
without plan reached with 650M and 3B, in the four records of bench/results of 2026-11-26 (0.655 to
0.67 in bf16, 0.61 to 0.67 in fp16, 0.49 to 0.53 and 0.43 in fp32)."""
WIDTH_OF_GPU_SHARES = 1280
"""They are known for models of this width and more."""


def unit_work(weights: Weights, mean_tokens: float) -> UnitWork | None:
    """Return the work of a token in proteins of `mean_tokens` on average.

    Two operations for each number of the matrices (24 d² a layer of ESM-2), and 4 L d a layer for
    attention.
    """
    if not all(weights.metadata.get(key, "").isdecimal() for key in NUMBERS):
        return None
    sizes = sizes_of(weights.metadata)
    of_attention = 4 * LENGTH_OF_ATTENTION * mean_tokens * sizes.width
    of_feed_forward = BYTES_A_NUMBER_OF_FEED_FORWARD[sizes.architecture.is_gated]
    is_known = sizes.width >= WIDTH_OF_GPU_SHARES and not sizes.architecture.is_gated
    bytes_moved = sizes.width * BYTES_A_NUMBER_OF_WIDTH + sizes.feed_forward * of_feed_forward
    return UnitWork(
        operations=2 * sizes.num_matrix_numbers + sizes.num_layers * of_attention,
        bytes_moved=sizes.num_layers * bytes_moved,
        host_per_second=HOST_TOKENS_PER_SECOND,
        core_gflops=CPU_GFLOPS_A_CORE,
        cpu_seconds=CPU_SECONDS_A_TOKEN,
        shares=GPU_SHARES if is_known else {},
        card=GPU,
    )
