"""The host memory of a job that computes a shard; reckoned, not measured."""

from __future__ import annotations

PROCESS_MB = 2000
"""Of a job that computes: Snakemake's own two processes in it, Python, PyArrow and torch."""
CUDA_HOST_MB = 2000
"""Of the host's memory for a CUDA context and its libraries: a usual value, not measured here."""
WEIGHTS_ON_GPU = 1.5
"""Host memory by the size of the weights' file: it is mapped, and copied to the GPU in pieces."""
WEIGHTS_ON_CPU = 4.0
"""The mapped file and a copy in the number type of the computation: 3.3 of an fp16 file in fp32,
as `workloads/esm2/memory.py` reckons, and batches."""


def host_mb(shard_mb: float, weights_mb: float, *, on_cpu: bool) -> float:
    """Return the MB of host memory that computing a shard takes."""
    of_weights = WEIGHTS_ON_CPU if on_cpu else WEIGHTS_ON_GPU
    return PROCESS_MB + 2 * shard_mb + (0 if on_cpu else CUDA_HOST_MB) + of_weights * weights_mb
