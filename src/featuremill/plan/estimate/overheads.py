"""What a run takes besides computing: measured constants, each with the command that measures it.

They were measured on 2 cores of a shared machine with a local disk. Another machine has others; a
cluster's file system may be several times slower at plan and merge.
"""

from __future__ import annotations

SNAKEMAKE_SECONDS = 3.5
"""Until Snakemake starts its first job, and from the last one to its end: the demo, with nothing
else on the machine."""
PLAN_SECONDS = (0.5, 19.4e-6)
"""Of a plan, and of each record (348 residues): `python -m bench.scale --records 5000000`."""
PLAN_BYTES_A_RECORD = 41
"""Of store/shards, beside the residues: the same, 389 - 348."""
ROW_BYTES_A_RECORD = 48
"""Of records.parquet: the same."""
SPOOL_BYTES_A_RECORD = 615
"""Of store/spool while plan runs: the same."""
MERGE_SECONDS = (0.5, 3e-6, 20e-9)
"""Of a merge, of each record, and of each byte of values: `python -m bench.merge_scale`. A byte
took 12 ns with 0.67 GB, and 24 to 40 ns with 5.1 GB on a disk that others used as well."""
MERGE_BY_SHARD_SECONDS = 1e-6
"""Of a merge of results by shard, of each record: `python -m bench.merge_scale --records 10000000
--width 128 --order shard`."""
DELIVER_SECONDS = 36e-9
"""Of a job that delivers, of each byte of its values: the same of 1,000,000 × 1,280 numbers, two
jobs side by side on a busy disk."""
REPORT_SECONDS = 2.7
"""Of a report: `time featuremill report results/demo`; of large runs nobody has measured one."""
FILES_A_SHARD = 7
"""Shard, part, its receipt kept and declared, telemetry, lock, log."""
PROCESS_MB = 2000
"""Of a job that computes: Snakemake's own two processes in it, Python, PyArrow and torch."""
CUDA_HOST_MB = 2000
"""Of the host's memory for a CUDA context and its libraries: a usual value, not measured here."""
WEIGHTS_ON_GPU = 1.5
"""Host memory by the size of the weights' file: it is mapped, and copied to the GPU in pieces."""
WEIGHTS_ON_CPU = 4.0
"""The mapped file and a copy in the number type of the computation: 3.3 of an fp16 file in fp32,
as doctor reckons (docs/doctor.md), and batches."""


def host_mb(shard_mb: float, weights_mb: float, *, on_cpu: bool) -> float:
    """Return the MB of host memory that computing a shard takes; reckoned, not measured."""
    of_weights = WEIGHTS_ON_CPU if on_cpu else WEIGHTS_ON_GPU
    return PROCESS_MB + 2 * shard_mb + (0 if on_cpu else CUDA_HOST_MB) + of_weights * weights_mb
