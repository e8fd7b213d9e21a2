"""The time, disk and memory of a run besides computing, each with the command that measured it.

Measured on 2 cores of a shared machine with a local disk. A cluster's file system may be several
times slower at plan and merge.
"""

from __future__ import annotations

SNAKEMAKE_SECONDS = 3.5
"""Seconds of Snakemake before the first job and after the last: the demo."""
PLAN_SECONDS = (0.5, 19.4e-6)
"""Seconds of a plan, and of each record of 348 residues: `python -m bench.scale --records
5000000`."""
PLAN_BYTES_A_RECORD = 41
"""Bytes of store/shards for a record, beside its residues: the same, 389 - 348."""
ROW_BYTES_A_RECORD = 48
"""Bytes of records.parquet for a record: the same."""
SPOOL_BYTES_A_RECORD = 615
"""Bytes of store/spool for a record while plan runs: the same."""
MERGE_SECONDS = (0.5, 3e-6, 20e-9)
"""Seconds of a merge, of each record, and of each byte of values: `python -m bench.merge_scale`;
12 ns with 0.67 GB, 24 to 40 ns with 5.1 GB on a busy disk."""
MERGE_BY_SHARD_SECONDS = 1e-6
"""Seconds of a merge of results by shard for a record: `python -m bench.merge_scale --records
10000000 --width 128 --order shard`."""
DELIVER_SECONDS = 36e-9
"""Seconds of a job that delivers, for a byte of values: the same of 1,000,000 × 1,280 numbers."""
REPORT_SECONDS = 2.7
"""Seconds of a report: `time featuremill report results/demo`."""
FILES_A_SHARD = 7
"""Number of files: shard, part, its receipt kept and declared, telemetry, lock, log."""
PROCESS_MB = 2000
"""MB of a job: two processes of Snakemake, Python, PyArrow and torch."""
CUDA_HOST_MB = 2000
"""MB of the host for a CUDA context and its libraries: a usual value, not measured here."""
WEIGHTS_ON_GPU = 1.5
"""Host memory by the size of the weights' file, which is mapped and copied in pieces."""
WEIGHTS_ON_CPU = 4.0
"""Host memory on a CPU by that size: mapped file, a copy (3.3 for fp16 in fp32), batches."""


def host_mb(shard_mb: float, weights_mb: float, *, on_cpu: bool) -> float:
    """Return the MB of host memory for computing a shard; calculated, not measured."""
    of_weights = WEIGHTS_ON_CPU if on_cpu else WEIGHTS_ON_GPU
    return PROCESS_MB + 2 * shard_mb + (0 if on_cpu else CUDA_HOST_MB) + of_weights * weights_mb
