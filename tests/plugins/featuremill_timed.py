"""A workload whose jobs take a known time: a batch sleeps for what it costs, whatever else runs."""

import time

import pyarrow as pa

from featuremill.inputs import proteins
from featuremill.workload import WorkloadOptions

VERSION = "1"
COST_UNIT = "residues"
LENGTH_UNIT = "residues"
SCHEMA = pa.schema({"letters": pa.list_(pa.float32(), 1)})


class Options(WorkloadOptions):
    """What a test sets."""

    residues_per_second: float = 1000.0
    """Of one job."""


def records(files, options):
    yield from proteins(files)


def cost(payload, options):
    return len(payload)


def weights(options):
    return None


def resolve(options, device, weights):
    return options


def schema(options, weights):
    return SCHEMA


def batch_cost(options, device):
    return int(options.residues_per_second)  # a second of it


def load(options, devices, weights):
    pa.array([[1.0]])  # imports more, once; that must not look like a slow device
    return options


def prepare(model, payloads, batch_cost):
    return [len(payload) for payload in payloads]


def run(options, batch):
    time.sleep(sum(batch) / options.residues_per_second)
    return batch


def collect(options, batch):
    values = [[float(length)] for length in batch]
    return pa.record_batch([pa.array(values, SCHEMA.field(0).type)], schema=SCHEMA)
