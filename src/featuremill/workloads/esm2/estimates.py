"""Estimate the memory of a model and the work of a token, from the architecture.

docs/doctor.md derives the formula of the memory from `workloads/esm2/encoder.py`.
tests/test_doctor.py compares it with measured peaks on a CPU, tests/test_memory.py with what
torch's allocator reserves on a GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from featuremill.kit.errors import UserError
from featuremill.workload import UnitWork, Weights
from featuremill.workloads.esm2 import sources
from featuremill.workloads.esm2.architecture import ESM2, Sizes, sizes_of

FILE_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
NUMBER_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
FLOAT_BYTES = 4
SLACK = 1.1
"""Factor for rounding and fragmentation of the allocator on a CPU."""
CUDA_WEIGHTS_SLACK = 1.25
"""Factor for weights on a GPU, which are cut from segments of 20 MiB and more."""
CUDA_FIXED_BYTES = 2**26
"""Bytes of cuBLAS's workspace on Hopper (32 MiB), and of partially used segments."""
CPU_PROCESS_MB = 400
"""Measured memory of Python, torch, LLVM and buffers of the matrix library."""
CUDA_PROCESS_MB = 750
"""Memory of the CUDA context and kernels: on an H200, 968 MB were in use, of which 212 MB were
tensors (`telemetry.memory_mb` and `peak_memory_mb` of the demo's receipt)."""

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


class Model(NamedTuple):
    """The facts about a network that the estimate needs."""

    sizes: Sizes
    file_dtype: str
    """The dtype of its converted file: fp32, fp16 or bf16."""

    @property
    def num_matrix_numbers(self) -> int:
        """Number of weights and biases of all layers; in ESM-2, 12D² and 9D per layer."""
        return self.sizes.num_matrix_numbers + self.sizes.num_outputs

    @property
    def num_other_numbers(self) -> int:
        """Number of parameters in fp32: norms and the embedding."""
        architecture = self.sizes.architecture
        of_layer = 6 if architecture.norms_query_and_key else 4
        rows = architecture.num_rows + architecture.num_positions
        rows += 2 + 2 * architecture.norms_embedding
        return self.sizes.width * (of_layer * self.sizes.num_layers + rows)

    @property
    def file_bytes(self) -> int:
        """Bytes of the numbers in its converted file."""
        return (self.num_matrix_numbers + self.num_other_numbers) * NUMBER_BYTES[self.file_dtype]


def weights_ahead(name: str) -> Weights:
    """Return the sizes of a model, by name or path, before its conversion, without a digest.

    Raises:
        UserError: if there is no such model, or it cannot be read.
    """
    known = sources.name_of(name)
    if known in sources.PUBLISHED and not sources.is_path(name):
        model = sources.PUBLISHED[known]
        sizes = Sizes(ESM2, model.num_layers, model.num_heads, model.width, 4 * model.width)
        return Weights(known, Path(), "", sizes.metadata() | {"dtype": model.dtype})
    try:
        from featuremill.workloads.esm2 import checkpoint
    except ImportError as error:
        raise UserError(
            f"{name}: looking into it needs {error.name}; pip install 'featuremill[esm2]'."
        ) from None
    return Weights(known, Path(), "", checkpoint.read(sources.locate(name).path).metadata())


def model_of(weights: Weights) -> Model:
    """Return the architecture in the metadata of weights."""
    return Model(sizes_of(weights.metadata), FILE_DTYPES[weights.metadata["dtype"]])


def estimate_mb(model: Model, kind: str, dtype: str, batch_tokens: int) -> int:
    """Return the peak in MiB: slack x weights, activations, and the memory of the process."""
    held, number_bytes = weights_bytes(model, kind, dtype), NUMBER_BYTES[dtype]
    if kind == "cuda":
        held = round(CUDA_WEIGHTS_SLACK * held) + CUDA_FIXED_BYTES
        held += model.num_matrix_numbers // max(1, model.sizes.num_layers) * FLOAT_BYTES
        held += batch_tokens * segment_bytes_a_token(model.sizes, number_bytes)
        return round(held / 2**20) + CUDA_PROCESS_MB
    held += batch_tokens * activation_bytes_a_token(model.sizes, number_bytes)
    return round(SLACK * held / 2**20) + CPU_PROCESS_MB


def weights_bytes(model: Model, kind: str, dtype: str) -> int:
    """Return the bytes of the weights, on a CPU with the mapped pages of their file."""
    number_bytes = NUMBER_BYTES[dtype]
    matrices, others = model.num_matrix_numbers, model.num_other_numbers
    if kind == "cuda":
        return matrices * number_bytes + others * FLOAT_BYTES
    if dtype != model.file_dtype:
        return model.file_bytes + matrices * number_bytes + others * FLOAT_BYTES
    # Norms are used in the mapped file; oneDNN copies every matrix to its own layout.
    return model.file_bytes + matrices * number_bytes


def activation_bytes_a_token(sizes: Sizes, number_bytes: int) -> int:
    """Return the peak of a layer on a CPU, in bytes per token.

    The feed-forward layers have the peak: the residual stream (4D bytes), the output of attention
    (bD), the normed input (bD), and F numbers after GELU, or 3F with a gate. Attention, with q, k
    and v (3bD), needs less.
    """
    of_feed_forward = (3 if sizes.architecture.is_gated else 1) * sizes.feed_forward
    return sizes.width * (FLOAT_BYTES + 2 * number_bytes) + of_feed_forward * number_bytes


def segment_bytes_a_token(sizes: Sizes, number_bytes: int) -> int:
    """Return the bytes per token that torch's allocator reserves on a GPU for a layer.

    Each large tensor gets a segment of its size, which only tensors that fit can reuse: the
    residual stream (4D bytes), the output of attention or the normed input (bD), q, k and v (3bD),
    and the tensors of the feed-forward layers (bF each: 1; 2 in fp32, as GELU is separate; 3 with a
    gate). The largest counts twice: a small tensor in its segment makes it too small for the next
    layer.
    """
    is_gated = sizes.architecture.is_gated
    num_hidden = 3 if is_gated else 2 if number_bytes == FLOAT_BYTES else 1
    largest = 2 if is_gated else 1
    of_feed_forward = (num_hidden + largest) * sizes.feed_forward
    return sizes.width * (FLOAT_BYTES + 4 * number_bytes) + of_feed_forward * number_bytes


def unit_work(weights: Weights, mean_tokens: float) -> UnitWork | None:
    """Return the work per token in proteins of `mean_tokens` on average: two operations per weight
    (24 d² per layer of ESM-2), and 4 L d per layer for attention; the memory traffic; and measured
    shares of peak speed. None if the metadata lacks a size."""
    if not all(weights.metadata.get(key, "").isdecimal() for key in sources.NUMBERS):
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
