"""The contract of an output: a module with its `FORMAT` and a `Writer`, which gets finished rows.

A package registers it as an entry point in the group `featuremill.outputs`. A `Writer` is opened on
a `Target`. It also writes `target.provenance`, unless the format has a sidecar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from featuremill.base.errors import UserError
from featuremill.store.formats import ABOUT as ABOUT
from featuremill.store.formats import Format as Format
from featuremill.store.formats import Kind, module_of
from featuremill.store.formats import kind_of as kind_of
from featuremill.store.formats import refuse_outputs as refuse_outputs

if TYPE_CHECKING:
    import pyarrow as pa


class Target(NamedTuple):
    """What a writer gets when it opens."""

    path: Path
    values: pa.Schema
    num_rows: int
    provenance: dict[str, str]
    """Workload, model, recipe and versions, for the attributes of the file."""
    samples: Mapping[str, Sequence[str]] = MappingProxyType({})
    """In a run with samples: the names of the samples, and the values of each other column of the
    sheet."""

    @property
    def about(self) -> tuple[str, ...]:
        """The names of the columns before the values."""
        return (*ABOUT, "sample") if self.samples else ABOUT

    def of_kind(self, kind: Kind) -> list[str]:
        """Return the names of the columns of values of one kind (`KINDS` has them)."""
        return [field.name for field in self.values if kind_of(field.type) == kind]

    def pooled(self) -> list[str]:
        """Return the names of the columns with one vector a record."""
        return self.of_kind("pooled")

    def per_residue(self) -> list[str]:
        """Return the names of the columns with one vector a residue."""
        return self.of_kind("per_residue")


class Writer(Protocol):
    """One open result file, which gets blocks of finished rows in input order."""

    def write(self, block: pa.Table) -> None:
        """Append a block: id, description, length and sha256 (as 32 bytes), then the values. A run
        with samples also has `sample`, and the rows of a sample are adjacent."""

    def close(self) -> None:
        """Finish the file."""


def open_part_writer(name: str, target: Target) -> Writer:
    """Return the writer of one file of the output called `name`, whose format has a `part_name`;
    its blocks have no column `sample`."""
    writer: Writer = module_of(name).PartWriter(target)
    return writer


def open_writer(name: str, target: Target) -> Writer:
    """Return the writer of the output called `name`, opened on `target`.

    Raises:
        UserError: when the values hold nothing that this format could store.
    """
    writer: Writer = module_of(name).Writer(target)
    return writer


def by_sample(block: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield the name and the rows of each sample in a block, in order; in a run without samples, ""
    and all rows."""
    if "sample" not in block.column_names:
        yield "", block
        return
    import pyarrow.compute as pc

    runs = pc.run_end_encode(block["sample"].combine_chunks())
    start = 0
    for name, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield name, block.slice(start, end - start)
        start = end


def need(columns: list[str], output: str, what: str) -> list[str]:
    """Return `columns`, or refuse an output that would be empty."""
    if not columns:
        raise UserError(
            f"outputs: {output} needs {what}, which these results do not have; drop it."
        )
    return columns
