"""A workload whose every value is the sum of the numbers in its weights: a file, or a folder."""

import os
from pathlib import Path

import pyarrow as pa

from featuremill.inputs import proteins
from featuremill.workload import OptionWeights, WorkloadOptions

VERSION = "1"
COST_UNIT = "records"
LENGTH_UNIT = "residues"
READS_PICKLES = "READS_PICKLES" in os.environ
SCHEMA = pa.schema({"number": pa.list_(pa.float32(), 1)})


class Options(WorkloadOptions):
    """Where the weights are."""

    network: OptionWeights
    """A file with a number, or a folder of such files."""


def records(files, options):
    return proteins(files)


def cost(payload, options):
    return 1


def weights(options):
    return options.network


def resolve(options, device, weights):
    return options


def schema(options, weights):
    return SCHEMA


def batch_cost(options, device):
    return 2


def load(options, devices, weights):
    found = weights.path
    files = sorted(found.rglob("*.txt")) if found.is_dir() else [found]
    if said := os.environ.get("LOADED_FROM"):
        Path(said).write_text(str(found))
    return sum(float(file.read_text()) for file in files)


def prepare(model, payloads, batch_cost):
    return payloads


def run(model, payloads):
    return payloads


def collect(model, payloads):
    return pa.record_batch([pa.array([[model]] * len(payloads), SCHEMA.field(0).type)], SCHEMA)
