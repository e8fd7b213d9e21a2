"""A workload whose every value is what stands in the file and in the folder that its options name.

DIES_AFTER has whoever runs a batch, its supervisor and its Snakemake killed when so many were
begun; EDITS_WHILE_LOADING names a file that gets another content between two looks at it.
"""

import os
import signal
from pathlib import Path

import pyarrow as pa
from featuremill_plain import (
    COST_UNIT,
    VERSION,
    batch_cost,
    cost,
    prepare,
    records,
    resolve,
    weights,
)

from featuremill.workload import OptionFile, OptionFolder, WorkloadOptions

__all__ = ["COST_UNIT", "VERSION", "batch_cost", "cost", "prepare", "records", "resolve", "weights"]

SCHEMA = pa.schema({"number": pa.list_(pa.float32(), 2)})


class Options(WorkloadOptions):
    """Where the numbers stand."""

    number: OptionFile
    """A file with a number."""
    more: OptionFolder | None = None
    """A folder of files with numbers, which are added up."""


def schema(options, weights):
    return SCHEMA


def load(options, devices, weights):
    if edited := os.environ.get("EDITS_WHILE_LOADING"):
        Path(edited).write_text("77")
    more = sorted(Path(options.more).rglob("*.txt")) if options.more else []
    value = [float(Path(options.number).read_text()), sum(float(p.read_text()) for p in more)]
    return iter(range(1, 10**9)), value


def run(model, payloads):
    if str(next(model[0])) == os.environ.get("DIES_AFTER"):
        os.killpg(0, signal.SIGKILL)
    return payloads


def collect(model, payloads):
    return pa.record_batch([pa.array([model[1]] * len(payloads), SCHEMA.field(0).type)], SCHEMA)
