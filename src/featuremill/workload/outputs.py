"""The contract of an output: a module with a `FORMAT` and a `Writer` of finished rows.

A package registers it as an entry point in the group `featuremill.outputs`. A `Writer` is opened on
a `Target`. It also writes `target.provenance`, unless the format has a sidecar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from featuremill.base.errors import UserError
from featuremill.base.id_columns import ID, ID_ALONE, KEYS, IdColumns
from featuremill.store.formats import ABOUT as ABOUT
from featuremill.store.formats import Format as Format
from featuremill.store.formats import Kind, module_of
from featuremill.store.formats import kind_of as kind_of
from featuremill.store.formats import refuse_outputs as refuse_outputs

if TYPE_CHECKING:
    import pyarrow as pa


class Target(NamedTuple):
    """The arguments of a writer: the file to write and what it contains."""

    path: Path
    values: pa.Schema
    num_rows: int
    provenance: dict[str, str]
    """Workload, model, recipe and versions, for the attributes of the file."""
    samples: Mapping[str, Sequence[str]] = MappingProxyType({})
    """The columns of a sheet of samples: the samples' names, and each other column's values."""
    id_columns: IdColumns = ID_ALONE
    """The columns of ids in a table."""

    @property
    def about(self) -> tuple[str, ...]:
        """The names of the columns before the values."""
        return (*ABOUT, *self.id_columns.keys)

    def of_kind(self, kind: Kind) -> list[str]:
        """Return the names of the columns of values of a kind, one of `KINDS`."""
        return [field.name for field in self.values if kind_of(field.type) == kind]

    def pooled(self) -> list[str]:
        """Return the names of the columns with one vector per record."""
        return self.of_kind("pooled")

    def per_residue(self) -> list[str]:
        """Return the names of the columns with one vector per residue."""
        return self.of_kind("per_residue")


class Writer(Protocol):
    """One open result file, to which blocks of finished rows are written in input order.

    Its class may have a class method `check(values)`, which raises UserError if the schema has no
    column that it could write. plan calls it before anything is computed, and `open_writer` too.
    """

    def write(self, block: pa.Table) -> None:
        """Append a block: id, description, length, sha256 (as 32 bytes) and sample, which is empty
        without a sheet; then the values. Ids are whole, so no two records have the same;
        `own_ids` has those of the samples. The rows of a sample are adjacent."""

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
        UserError: if this format could store none of the values.
    """
    kind = module_of(name).Writer
    if check := getattr(kind, "check", None):
        check(target.values)
    writer: Writer = kind(target)
    return writer


def by_owner(block: pa.Table) -> Iterator[tuple[dict[str, str], pa.Table]]:
    """Yield the rows of each sample in a block with {"sample": "a"}, or {} without one."""
    import pyarrow.compute as pc

    runs = pc.run_end_encode(owners(block))
    start = 0
    for owner, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        values = zip(KEYS, owner.split("/"), strict=True)
        yield {key: value for key, value in values if value}, block.slice(start, end - start)
        start = end


def owners(rows: pa.Table) -> pa.Array:
    """Return the sample of each row."""
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*(rows[key].combine_chunks() for key in KEYS), "/")


def own_ids(block: pa.Table) -> pa.ChunkedArray:
    """Return the ids of a block without the prefixes of samples."""
    import pyarrow.compute as pc

    ids = block[ID]
    for key in KEYS:
        own = pc.replace_substring_regex(ids, "^[^/]*/", "")
        ids = pc.if_else(pc.equal(block[key], ""), ids, own)
    return ids


def need(columns: list[str], output: str, what: str) -> list[str]:
    """Return `columns`; raise UserError if there are none, as the output would be empty."""
    if not columns:
        raise UserError(
            f"outputs: {output} needs {what}, which these results do not have; drop it."
        )
    return columns
