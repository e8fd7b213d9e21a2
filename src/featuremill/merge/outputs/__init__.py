"""Result files: one small writer a format, each fed with blocks of finished rows in input order."""

from __future__ import annotations

import hashlib
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa

from featuremill.base.errors import UserError
from featuremill.store.files import sha256_of
from featuremill.store.formats import ABOUT as ABOUT
from featuremill.store.formats import FORMATS, sidecar_of
from featuremill.store.formats import files_of as files_of

FILES = {name: format.file for name, format in FORMATS.items()}
FOLDERS = frozenset(name for name, format in FORMATS.items() if format.is_folder)
"""Outputs that are a folder of files."""
FAILED = ("failed.tsv", "failed.fa")
"""What every merge writes beside its outputs: records without values, and how to try them again."""
EXPORTS = "exports.json"
"""What `featuremill export` wrote beside the results; a merge removes it with the files."""
IDENTITY = pa.schema(
    {
        "id": pa.string(),
        "description": pa.string(),
        "length": pa.int64(),
        "sha256": pa.binary(32),
    }
)
"""What stands before the values in every block."""


def file_name(file: str, is_partial: bool) -> str:
    """Return the name of a result file: that of a partial one says so, before its ending."""
    path = Path(file)
    return f"{path.stem}.partial{path.suffix}" if is_partial else file


def partial_results() -> list[str]:
    """Return the names of all that is written of partial results: files, and the folders of
    `FOLDERS`."""
    results = [file_name(file, is_partial=True) for file in FILES.values()]
    written = ("manifest.json", *FAILED, "report.html")
    return [
        *results,
        *(sidecar_of(file) for file in results),
        *(file_name(file, is_partial=True) for file in written),
    ]


def bytes_of(path: Path) -> int:
    """Return the size of a result, as manifest.json has it."""
    return sum(file.stat().st_size for file in files_of(path))


def digest_of_result(path: Path) -> str:
    """Return the sha256 of a result, as manifest.json has it.

    A folder's is that of what `sha256sum part-*` (or of all `.pt` files, sorted) prints in it.
    """
    if not path.is_dir():
        return sha256_of(path)
    lines = [f"{sha256_of(file)}  {file.relative_to(path)}\n" for file in files_of(path)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


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
