"""Composition's values in small, slow batches, each noted when it reaches `run`.

The file `noted` gets a line a batch: a name that no other worker has, and the first digits of each
payload's sha256. A line is one write, so that workers beside each other do not mix theirs.
"""

import hashlib
import os
import time
from pathlib import Path

from featuremill.inputs import proteins
from featuremill.workload import WorkloadOptions
from featuremill.workloads import composition
from featuremill.workloads.composition import prepare, resolve, schema, weights

__all__ = ["prepare", "resolve", "schema", "weights"]
VERSION = "1"
COST_UNIT = "records"
LENGTH_UNIT = "residues"
GATE_AT = 30
WORKER = f"{os.getpid()}.{time.monotonic_ns()}"


class Options(WorkloadOptions):
    """What a test sets."""

    hydropathy: bool = True
    """As composition's."""
    batch_records: int = 10
    """Records in a batch."""
    batch_seconds: float = 0.0
    """Duration of a batch."""
    record_seconds: float = 0.0
    """Duration of reading a record."""
    gate: str = ""
    """A folder: where `closed` stands in it, reading stops after some records, leaves `came` there
    and goes on when `closed` has gone."""
    noted: str = "noted.txt"
    """File that gets a line a batch."""


def records(files, options):
    for number, record in enumerate(proteins(files)):
        time.sleep(options.record_seconds)
        if number == GATE_AT and options.gate and Path(options.gate, "closed").exists():
            Path(options.gate, "came").touch()
            while Path(options.gate, "closed").exists():
                time.sleep(0.01)
        yield record


def cost(payload, options):
    return 1


def batch_cost(options, device):
    return options.batch_records


def load(options, devices, weights):
    return options, composition.load(options, devices, weights)


def run(model, batch):
    options, schema = model
    digests = [hashlib.sha256(payload).hexdigest()[:16] for payload in batch]
    with Path(options.noted).open("ab", buffering=0) as noted:
        noted.write(f"{WORKER} {','.join(digests)}\n".encode())
    time.sleep(options.batch_seconds)
    return composition.run(schema, batch)


def collect(model, result):
    return composition.collect(model[1], result)
