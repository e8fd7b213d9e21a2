"""The workload `imported`: vectors that others computed and published, read from a store.

`featuremill store import` writes them to the store under the recipe of these options, which no
computed vector has. Nothing is computed: a record without an imported vector fails.
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
    return proteins(files, options)


def published(source: Path, fasta: Path, declared: str, layer: int | None) -> Iterator[Any]:
    """Yield options, a table of vectors and the number of proteins without one, for each lot of the
    published vectors in `source`."""
    from featuremill.workloads.imported.files import lots_of, read

    file = read(source, layer)
    for first, table, num_without in lots_of(file, source, fasta):
        facts = {"width": len(first), "dtype": first.dtype.name, "declared": declared + file.about}
        yield Options.model_validate(facts), table, num_without


def cost(payload: bytes, options: Options) -> int:
    return len(payload)


def weights(options: Options) -> None:
    """Return None, as there are no weights."""


def resolve(options: Options, device: Any, weights: None) -> Options:
    return options


def schema(options: Options, weights: None) -> pa.Schema:
    kind = pa.float16() if options.dtype == "float16" else pa.float32()
    return pa.schema({"imported": pa.list_(kind, options.width)})


def batch_cost(options: Options, device: Any) -> int:
    return 1_000_000


def load(options: Options, devices: Any, weights: None) -> Options:
    """Return the options, as the reason of a failed record names the publisher."""
    return options


def prepare(model: Options, payloads: Any, batch_cost: int) -> Any:
    return payloads


def run(model: Options, batch: Any) -> Any:
    """Raise RecordFailed, as imported vectors cannot be computed."""
    raise RecordFailed("absent", f"declared by {model.declared}")


def collect(model: Options, result: Any) -> Any:
    """Return `result`; never called, as `run` returns nothing."""
    return result
