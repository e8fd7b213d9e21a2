"""Workloads on other inputs than proteins: of nucleotides, of rows, and of files as they are.

Each delivers the size of the payload.
"""

import pyarrow as pa

from featuremill.inputs import NucleotideOptions, RowOptions, nucleotides, rows
from featuremill.workload import Record, WorkloadOptions

SCHEMA = pa.schema({"size": pa.list_(pa.float32(), 1)})
TYPES = {"age": float, "count": int, "text": str}


class Reading:
    """A workload that reads in the given way."""

    VERSION = "1"
    COST_UNIT = "bytes"

    def __init__(self, read, options, **offered):
        self.records = read
        self.Options = options
        self.__dict__.update(offered)

    def cost(self, payload, options):
        return len(payload)

    def weights(self, options):
        return None

    def resolve(self, options, device, weights):
        return options

    def schema(self, options, weights):
        return SCHEMA

    def batch_cost(self, options, device):
        return 1000

    def load(self, options, devices, weights):
        return None

    def prepare(self, model, payloads, batch_cost):
        return [len(payload) for payload in payloads]

    def run(self, model, batch):
        return batch

    def collect(self, model, result):
        return pa.RecordBatch.from_pylist([{"size": [size]} for size in result], schema=SCHEMA)


class CellOptions(RowOptions):
    """What a test sets."""

    is_typed: bool = True
    """Whether the columns have types; else all columns count, as they stand."""

    def payload_columns(self):
        return TYPES if self.is_typed else None


class FileOptions(WorkloadOptions):
    """None."""


def whole_files(inputs, options):
    for path in inputs:
        data = path.read_bytes()
        yield Record(path.stem, "", data, str(path), 1, length=data.count(b"\n"))


bases = Reading(nucleotides, NucleotideOptions, LENGTH_UNIT="bases")
cells = Reading(rows, CellOptions)
files = Reading(whole_files, FileOptions, LENGTH_UNIT="lines", TAKES_FILES=True, NEEDS_GPU=False)
