"""Amino-acid composition: a whole workload without weights or GPU. Copy it to write your own.

The core calls these names (`featuremill.workload` explains each) and does all the rest. Yours lives
in a package of your own, registered there under the entry point group `featuremill.workloads`.
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
    """What a config may set under `options`; the docstrings become the manual."""

    hydropathy: bool = True
    """Also deliver the mean Kyte-Doolittle hydropathy (letters that have none count as 0)."""


def records(files: Any, options: Options) -> Any:
    """Read what goes in: CPU only, one `Record` after the other."""
    return proteins(files, options)


def cost(payload: bytes, options: Options) -> int:
    """Say how much work one record is."""
    return len(payload)


def weights(options: Options) -> None:
    """Name the model whose weights are needed: none."""


def resolve(options: Options, device: Any, weights: None) -> Options:
    """Settle every "auto"; there is none."""
    return options


def schema(options: Options, weights: None) -> pa.Schema:
    """Name the columns that come out."""
    widths = {"composition": len(LETTERS)} | ({"hydropathy": 1} if options.hydropathy else {})
    return pa.schema({name: pa.list_(pa.float32(), width) for name, width in widths.items()})


def batch_cost(options: Options, device: Any) -> int:
    """Say how much work goes into one batch."""
    return 1_000_000


def load(options: Options, devices: Any, weights: None) -> Any:
    """Return the model: whatever `prepare` and `run` need; loaded once a worker."""
    return schema(options, weights)


def prepare(model: Any, payloads: Any, batch_cost: int) -> Any:
    """Return the host side of a batch; runs ahead of `run`, on a thread."""
    return list(payloads)


def run(model: Any, batch: Any) -> Any:
    """Compute the batch; on a GPU, this would only give the orders."""
    rows = []
    for payload in batch:
        fractions = [payload.count(ord(letter)) / len(payload) for letter in LETTERS]
        mean = sum(f * hydropathy[letter] for f, letter in zip(fractions, LETTERS, strict=True))
        rows.append({"composition": fractions, "hydropathy": [mean]})
    return rows


def collect(model: Any, result: Any) -> pa.RecordBatch:
    """Return one row a payload, in order; runs beside the next batch's `run`."""
    return pa.RecordBatch.from_pylist(result, schema=model)
