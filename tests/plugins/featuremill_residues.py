"""A workload that knows at once what costs a language model minutes: a vector a residue, of its
letter and its neighbours, their mean and, where asked for, a second one a record. A sequence with a
W fails."""

import numpy as np
import pyarrow as pa
from featuremill_plain import COST_UNIT, VERSION, batch_cost, cost, prepare, records, weights

from featuremill.workload import RecordFailed, WorkloadOptions

__all__ = ["COST_UNIT", "VERSION", "batch_cost", "cost", "prepare", "records", "weights"]

WIDTH = 12
OF_RESIDUE = pa.list_(pa.float16(), WIDTH)
SCHEMA = pa.schema({"mean": pa.list_(pa.float32(), WIDTH), "residues": pa.list_(OF_RESIDUE)})
LAST = pa.field("last", pa.list_(pa.float64(), 2))
LETTERS = np.random.default_rng(1).normal(size=(256, 3, WIDTH))


class Options(WorkloadOptions):
    """None of interest."""

    shift: float = 0.5
    """Added to all numbers."""
    last: bool = False
    """Whether there is a second vector a record."""


def resolve(options, device, weights):
    return options


def schema(options, weights):
    return SCHEMA.insert(1, LAST) if options.last else SCHEMA


def load(options, devices, weights):
    return options


def run(model, payloads):
    if any(b"W" in payload for payload in payloads):
        raise RecordFailed("error", "it has a W")
    return payloads


def vectors_of(payload, shift=0.5):
    """Return the vectors (residues, width) of a sequence."""
    letters = np.frombuffer(b"-" + payload + b"-", np.uint8)
    before, here, after = letters[:-2], letters[1:-1], letters[2:]
    found = LETTERS[here, 0] + 0.5 * LETTERS[before, 1] + 0.2 * LETTERS[after, 2] + shift
    return found.astype(np.float16)


def last_of(payload):
    """Return what stands in the second column."""
    return vectors_of(payload)[-1, :2].astype(np.float64)


def collect(model, payloads):
    found = [vectors_of(payload, model.shift) for payload in payloads]
    means = [matrix.astype(np.float32).mean(0) for matrix in found]
    ends = np.cumsum([0, *map(len, found)]).astype(np.int32)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(np.concatenate(found).ravel()), WIDTH)
    columns = [
        pa.FixedSizeListArray.from_arrays(pa.array(np.concatenate(means)), WIDTH),
        pa.ListArray.from_arrays(pa.array(ends), flat),
    ]
    if model.last:
        flat = np.concatenate([*map(last_of, payloads)])
        columns.insert(1, pa.FixedSizeListArray.from_arrays(pa.array(flat), 2))
    wanted = schema(model, None)
    return pa.record_batch([c.cast(f.type) for c, f in zip(columns, wanted, strict=True)], wanted)
