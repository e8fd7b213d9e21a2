"""A workload that imports a package only while it computes.

KILLED_ONCE names a file that is not there: the first worker that has computed all batches writes it
and is killed, before there is a receipt.
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

from featuremill.workload import WorkloadOptions

__all__ = ["COST_UNIT", "VERSION", "batch_cost", "cost", "prepare", "records", "resolve", "weights"]

VERSIONS_OF = ("h5py",)
SCHEMA = pa.schema({"size": pa.list_(pa.float32(), 1)})


class Options(WorkloadOptions):
    """None."""


class Model:
    @property
    def backend(self):
        """What a receipt asks for last."""
        path = os.environ.get("KILLED_ONCE")
        if path and not Path(path).exists():
            Path(path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return ""


def schema(options, weights):
    return SCHEMA


def load(options, devices, weights):
    return Model()


def run(model, payloads):
    import h5py  # noqa: F401

    return payloads


def collect(model, payloads):
    return pa.RecordBatch.from_pylist([{"size": [len(payload)]} for payload in payloads], SCHEMA)
