"""A workload whose every value is the version that computed it: of itself, and of the engine.

VERSIONED names both, as in "2.1". DIES_AFTER has whoever runs a batch, its supervisor and its
Snakemake killed when so many were begun; DIES_PLANNING, when a record was read.
"""

import os
import signal

import pyarrow as pa
from featuremill_plain import COST_UNIT, batch_cost, cost, prepare, resolve, weights

from featuremill.inputs import proteins
from featuremill.workload import WorkloadOptions, recipe

__all__ = ["COST_UNIT", "batch_cost", "cost", "prepare", "resolve", "weights"]

VERSION, _, engine = os.environ.get("VERSIONED", "1.1").partition(".")
recipe.ENGINE_VERSION = int(engine)  # as in an installation of that one
SCHEMA = pa.schema({"version": pa.list_(pa.float32(), 1)})


class Options(WorkloadOptions):
    """None."""


def records(files, options):
    for record in proteins(files):
        yield record
        if "DIES_PLANNING" in os.environ:
            os.killpg(0, signal.SIGKILL)


def schema(options, weights):
    return SCHEMA


def load(options, devices, weights):
    return iter(range(1, 10**9))


def run(model, payloads):
    if str(next(model)) == os.environ.get("DIES_AFTER"):
        os.killpg(0, signal.SIGKILL)
    return payloads


def collect(model, payloads):
    value = float(VERSION) + recipe.ENGINE_VERSION / 10
    return pa.record_batch([pa.array([[value]] * len(payloads), SCHEMA.field(0).type)], SCHEMA)
