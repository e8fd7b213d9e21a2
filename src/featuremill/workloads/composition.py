"""The workload `composition`: shares of amino acids. It needs no GPU; copy it to write your own.

The core calls these names, which `featuremill.workload` explains. Register your module as an entry
point of the group `featuremill.workloads` in your own package.
"""

from typing import Any

import pyarrow as pa
from Bio.SeqUtils.ProtParamData import kd as hydropathy

from featuremill.inputs import TableOptions, proteins

VERSION = "1"
COST_UNIT = LENGTH_UNIT = "residues"
BYTES_ARE_LENGTHS = True
LETTERS = "ACDEFGHIKLMNPQRSTVWY"


class Options(TableOptions):
    """The config `options`; the docstrings become the manual."""

    hydropathy: bool = True
    """Also deliver the mean Kyte-Doolittle hydropathy (letters that have none count as 0)."""


def records(files: Any, options: Options) -> Any:
    """Yield a `Record` for each protein of `files`, without a GPU."""
    return proteins(files, options)


def cost(payload: bytes, options: Options) -> int:
    """Return the cost of a record, in `COST_UNIT`."""
    return len(payload)


def weights(options: Options) -> None:
    """Return the name of the model; None, as there are no weights."""


def resolve(options: Options, device: Any, weights: None) -> Options:
    """Return `options` with every "auto" resolved for `device`; here there is none."""
    return options


def schema(options: Options, weights: None) -> pa.Schema:
    """Return the columns of values."""
    widths = {"composition": len(LETTERS)} | ({"hydropathy": 1} if options.hydropathy else {})
    return pa.schema({name: pa.list_(pa.float32(), width) for name, width in widths.items()})


def batch_cost(options: Options, device: Any) -> int:
    """Return the cost of a batch."""
    return 1_000_000


def load(options: Options, devices: Any, weights: None) -> Any:
    """Return what `prepare`, `run` and `collect` need; called once in each worker."""
    return schema(options, weights)


def prepare(model: Any, payloads: Any, batch_cost: int) -> Any:
    """Return a batch on the host; called in a thread, ahead of `run`."""
    return list(payloads)


def run(model: Any, batch: Any) -> Any:
    """Compute a batch. On a GPU, it may still be computing on return."""
    rows = []
    for payload in batch:
        fractions = [payload.count(ord(letter)) / len(payload) for letter in LETTERS]
        mean = sum(f * hydropathy[letter] for f, letter in zip(fractions, LETTERS, strict=True))
        rows.append({"composition": fractions, "hydropathy": [mean]})
    return rows


def collect(model: Any, result: Any) -> pa.RecordBatch:
    """Return a row for each payload, in order; called while the next batch is computed."""
    return pa.RecordBatch.from_pylist(result, schema=model)
