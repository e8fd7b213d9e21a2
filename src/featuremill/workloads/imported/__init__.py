"""Vectors that others computed and published: taken from a store, never computed here.

`featuremill store import` puts them there under the recipe of these options, which no computed
vector has. A record that is not among them fails.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field

from featuremill.inputs import TableOptions, proteins
from featuremill.kit.reasons import Kind
from featuremill.workload import RecordFailed

VERSION = "1"
COST_UNIT = LENGTH_UNIT = "residues"
BYTES_ARE_LENGTHS = True
REASONS = (
    Kind(
        "absent",
        ("not among the imported vectors",),
        "Import a file that has this protein, or raise max_failed and do without it.",
    ),
)


class Options(TableOptions):
    """What a config may set under `options`; `featuremill store import` prints them."""

    declared: str = Field(min_length=1)
    """Who published the vectors, and of which model, in words: all that is known of them."""
    width: int = Field(ge=1)
    """Numbers in a vector."""
    dtype: Literal["float16", "float32"] = "float32"
    """Their type, as published."""


def records(files: Any, options: Options) -> Any:
    """Read proteins."""
    return proteins(files, options)


def published(source: Path, fasta: Path, declared: str, layer: int | None) -> Iterator[Any]:
    """Read vectors of files that others published."""
    from featuremill.workloads.imported.files import lots_of, read

    file = read(source, layer)
    for first, table, num_without in lots_of(file, source, fasta):
        facts = {"width": len(first), "dtype": first.dtype.name, "declared": declared + file.about}
        yield Options.model_validate(facts), table, num_without


def cost(payload: bytes, options: Options) -> int:
    """Count residues."""
    return len(payload)


def weights(options: Options) -> None:
    """Need no weights."""


def resolve(options: Options, device: Any, weights: None) -> Options:
    """Leave all as it is."""
    return options


def schema(options: Options, weights: None) -> pa.Schema:
    """Name the column."""
    kind = pa.float16() if options.dtype == "float16" else pa.float32()
    return pa.schema({"imported": pa.list_(kind, options.width)})


def batch_cost(options: Options, device: Any) -> int:
    """Allow large batches."""
    return 1_000_000


def load(options: Options, devices: Any, weights: None) -> Options:
    """Return the options, which a reason names."""
    return options


def prepare(model: Options, payloads: Any, batch_cost: int) -> Any:
    """Return the payloads."""
    return payloads


def run(model: Options, batch: Any) -> Any:
    """Return nothing: there is no way to compute these."""
    raise RecordFailed("absent", f"declared by {model.declared}")


def collect(model: Options, result: Any) -> Any:
    """Return what `run` never returns."""
    return result
