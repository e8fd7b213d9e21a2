"""A workload of proteins or nucleotides whose values the payload alone determines, and no other
thing: a vector that meets another record's id is seen. Sequences that hold a marker fail.
"""

import hashlib
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from featuremill_plain import VERSION, cost, prepare, resolve, weights

from featuremill.inputs import SequenceOptions, sequences
from featuremill.workload import RecordFailed

__all__ = ["VERSION", "cost", "prepare", "resolve", "weights"]

COST_UNIT = "records"
WIDTH = 3
SCHEMA = pa.schema({"marks": pa.list_(pa.float32(), WIDTH)})


class Options(SequenceOptions):
    """What a test sets."""

    marker: str = ""
    """Letters that a sequence must not hold."""
    cured: str = ""
    """While this file exists, it may hold them."""
    batch_seconds: float = 0.0
    """Duration of a batch."""


def marks(payload: bytes):
    """Return the WIDTH numbers of a payload, each from 0 to 1, as float32."""
    digest = hashlib.sha256(payload).digest()
    return np.frombuffer(digest, "<u4", WIDTH).astype(np.float32) / np.float32(2**32)


def records(files, options):
    return sequences(files, options)


def schema(options, weights):
    return SCHEMA


def batch_cost(options, device):
    return 4


def load(options, devices, weights):
    return options


def run(options, payloads):
    time.sleep(options.batch_seconds)
    is_cured = bool(options.cured) and Path(options.cured).exists()
    if options.marker and not is_cured and any(options.marker.encode() in p for p in payloads):
        raise RecordFailed("other", f"it holds {options.marker}")
    return payloads


def collect(options, payloads):
    flat = pa.array(np.concatenate([marks(payload) for payload in payloads]))
    return pa.record_batch([pa.FixedSizeListArray.from_arrays(flat, WIDTH)], schema=SCHEMA)
