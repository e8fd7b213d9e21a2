"""A workload whose values are of any size: 10 bytes to LARGEST, as the payload's digest has it.

Each kind of column that is no vector is there: a text, a number, a struct, a list of structs, and a
list that is not as long as its record. Records that begin with a letter of BULKY_UNLUCKY have none,
for a reason of the workload's own, and COMPUTED is a file that each computed payload is added to.
"""

import hashlib
import os
from pathlib import Path

import pyarrow as pa
from featuremill_plain import COST_UNIT, VERSION, cost, prepare, records, resolve, weights

from featuremill.kit.reasons import Kind
from featuremill.workload import WorkloadOptions

__all__ = ["COST_UNIT", "VERSION", "cost", "prepare", "records", "resolve", "weights"]

REASONS = (Kind("unlucky", ("drawn blank",), "Draw again."),)
UNLUCKY = os.environ.get("BULKY_UNLUCKY", "").encode()
LARGEST = float(os.environ.get("BULKY_LARGEST", "1000"))
SPAN = pa.struct({"start": pa.int32(), "name": pa.string()})
SCHEMA = pa.schema(
    {
        "text": pa.string(),
        "size": pa.int64(),
        "best": SPAN,
        "spans": pa.list_(SPAN),
        "profile": pa.list_(pa.float32()),
    }
)


class Options(WorkloadOptions):
    """None."""

    def delivers(self):
        return {"per_residue", "table"}


def schema(options, weights):
    return SCHEMA


def batch_cost(options, device):
    return 50


def load(options, devices, weights):
    return None


def run(model, payloads):
    if computed := os.environ.get("COMPUTED"):
        with Path(computed).open("a") as file:
            file.writelines(f"{payload.decode()}\n" for payload in payloads)
    return payloads


def size_of(payload):
    """Return the letters of a payload's text: evenly spread over the orders of magnitude."""
    share = int.from_bytes(hashlib.sha256(payload).digest()[:4], "big") / 2**32
    return int(10 * (LARGEST / 10) ** share)


def value_of(payload):
    size = size_of(payload)
    span = {"start": size, "name": payload.decode()}
    return {
        "text": (payload.decode() * (size // len(payload) + 1))[:size],
        "size": size,
        "best": span,
        "spans": [span] * (size % 4),
        "profile": [1.0] * (size % 50),
    }


def collect(model, payloads):
    if not UNLUCKY:
        return pa.RecordBatch.from_pylist([value_of(payload) for payload in payloads], SCHEMA)
    reasons = [
        REASONS[0].reason(payload[:1].decode()) if payload[0] in UNLUCKY else None
        for payload in payloads
    ]
    rows = [
        dict.fromkeys(SCHEMA.names) if reason else value_of(payload)
        for payload, reason in zip(payloads, reasons, strict=True)
    ]
    values = pa.RecordBatch.from_pylist(rows, SCHEMA)
    return values.append_column("reason", pa.array(reasons, pa.string()))
