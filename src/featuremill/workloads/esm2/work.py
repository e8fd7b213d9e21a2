"""The operations and memory traffic of a network per token, and measured shares of peak speed."""

from __future__ import annotations

from featuremill.workload import UnitWork, Weights
from featuremill.workloads.esm2.architecture import sizes_of
from featuremill.workloads.esm2.sources import NUMBERS

LENGTH_OF_ATTENTION = 1.4
"""(Sum of squared lengths / sum of lengths) / mean length: 437 / 309 in bench/ecoli.fasta.gz
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
"""Tokens per second that one host thread prepares: 0.017 s for 40,000 tokens, `seconds.prepare` in
the receipts of the demo on 2 cores of a Xeon. It limits the assumed speed of every GPU."""
CPU_GFLOPS_A_CORE = {"fp32": 160.0, "bf16": 480.0, "fp16": 10.0}
"""Assumed speed of a core, between those with ESM-2 of 8M to 150M in the two records of
bench/results of 2026-11-23: in fp32 135 (a Xeon) and 197 (an EPYC), in bf16 648 (that Xeon, with
AMX) and 371. fp16, which most CPUs emulate, is a guess."""
CPU_SECONDS_A_TOKEN = 12e-6
"""Additional time per token, for any number of threads: reading, plan, results and Python. It was 7
to 16 µs in these records, whose total time is predicted within a third."""

GPU_SHARES, GPU = {"bf16": 0.65, "fp16": 0.65, "fp32": 0.48}, "NVIDIA H200"
"""The speed of a GPU as a share of that by its data sheet (operations and bytes): measured for
extract with 650M and 3B, in the four records of bench/results of 2026-11-26 (0.655 to 0.67 in bf16,
0.61 to 0.67 in fp16, 0.49 to 0.53 and 0.43 in fp32)."""
WIDTH_OF_GPU_SHARES = 1280
"""Smallest width of models for which the shares are known."""


def unit_work(weights: Weights, mean_tokens: float) -> UnitWork | None:
    """Return the work per token in proteins of `mean_tokens` on average: two operations per weight
    (24 d² per layer of ESM-2), and 4 L d per layer for attention."""
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
