"""Result files: one small writer a format, each fed with blocks of finished rows in input order."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa

from featuremill.base.errors import UserError

IDENTITY = pa.schema(
    {
        "id": pa.string(),
        "description": pa.string(),
        "length": pa.int64(),
        "sha256": pa.binary(32),
    }
)
"""What stands before the values in every block."""


class Target(NamedTuple):
    """What a writer is told when it opens."""

    path: Path
    values: pa.Schema
    num_rows: int
    provenance: dict[str, str]
    """Workload, model, recipe and versions, for the file's own attributes."""

    def pooled(self) -> list[str]:
        """Return the names of the columns with one vector a record."""
        return [f.name for f in self.values if pa.types.is_fixed_size_list(f.type)]

    def per_residue(self) -> list[str]:
        """Return the names of the columns with one vector a residue."""
        return [f.name for f in self.values if pa.types.is_list(f.type)]


class Writer(Protocol):
    """One open result file."""

    def write(self, block: pa.Table) -> None:
        """Append a block: the columns of `IDENTITY`, then the values."""

    def close(self) -> None:
        """Finish the file."""


def open_writer(name: str, target: Target) -> Writer:
    """Return the writer of the output called `name`, opened on `target`.

    Raises:
        UserError: when the values hold nothing that this format could store.
    """
    module = import_module(f"featuremill.merge.outputs.{name}")
    writer: Writer = module.Writer(target)
    return writer


def need(columns: list[str], output: str, what: str) -> list[str]:
    """Return `columns`, or refuse an output that would be empty."""
    if not columns:
        raise UserError(
            f"outputs: {output} needs {what}; change the workload's options, or drop it."
        )
    return columns
