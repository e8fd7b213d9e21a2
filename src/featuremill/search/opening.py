"""What of a run is searched: which results, their vectors, and the names of their rows.

Everything is opened, and seen to be what one manifest.json tells of, before the first vector is
read; what is open stays as it was, although a merge may replace the files meanwhile.
"""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from featuremill.base.errors import UserError
from featuremill.base.words import counted
from featuremill.merge.loading import pooled_column, written
from featuremill.merge.outputs import FILES, bytes_of, file_name, files_of
from featuremill.search.vectors import Mapped, Table, Vectors
from featuremill.store import command_line
from featuremill.store.agreement import are_results_of
from featuremill.store.files import read_sealed
from featuremill.store.results import Results

log = logging.getLogger("featuremill.search")
MANIFEST = "manifest.json"


def read_manifest(folder: Results, name: str) -> dict[str, Any] | None:  # border
    """Return what manifest.json, or manifest.partial.json, says; None where it cannot be read."""
    found = folder.find_delivery(is_partial=name != MANIFEST)
    return found.as_json() if found else None


class Searched(NamedTuple):
    """The results of a run, open."""

    folder: Results
    manifest: dict[str, Any]
    """What manifest.json says, or manifest.partial.json."""
    plan: dict[str, Any]
    """What plan.json says; empty where there is none. It may be newer than the results."""
    failed: Path
    """The list of records without vectors."""
    column: str
    vectors: Vectors
    table: Table

    @property
    def num_rows(self) -> int:
        """Vectors that are searched."""
        return self.table.num_rows


def open_results(root: Path, column: str | None, wants_partial: bool) -> Searched:
    """Open the results in `root`; say what about them is not as one would expect.

    Raises:
        UserError: when there are none, or none that have one vector a record with its id.
    """
    folder = Results(root)
    manifest, is_partial = _manifest(folder, wants_partial)
    table_path, npy_path = _files(root, manifest, is_partial)
    table = _table(root, table_path, column)
    vectors: Vectors = table
    if npy_path:
        vectors = _mapped(root, npy_path, table)
    if read_manifest(folder, file_name(MANIFEST, is_partial)) != manifest:
        raise UserError(f"{root}: a merge is writing these results; try again when it is done.")
    if not table.num_rows:
        raise UserError(f"{root}: no record of these results has a vector; see failed.tsv there.")
    plan = read_sealed(folder.plan) or {}
    _say(root, manifest, plan, is_partial)
    failed = root / file_name("failed.tsv", is_partial)
    return Searched(folder, manifest, plan, failed, table.column.name, vectors, table)


def _manifest(folder: Results, wants_partial: bool) -> tuple[dict[str, Any], bool]:
    """Return what tells of the results, and whether they are partial ones."""
    root = folder.root
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder; name a run's, such as results/demo.")
    for is_partial in (True,) if wants_partial else (False, True):
        path = root / file_name(MANIFEST, is_partial)
        if (found := read_manifest(folder, path.name)) is not None:
            return found, is_partial
        if path.exists():
            again = " --partial" if is_partial else ""
            raise UserError(
                f"{path}: it cannot be read, so nobody can tell what the results are; "
                f"featuremill merge {root}{again} writes them anew."
            )
    if not folder.plan.exists():
        raise UserError(f"{root}: this is no run's folder; name one, such as results/demo.")
    raise UserError(
        f"{root}: there are no {'partial ' if wants_partial else ''}results yet; let the run come "
        f"to its end ({command_line.again(root)}), or take what is computed by now "
        f"(featuremill merge {shlex.quote(str(root))} --partial)."
    )


def _files(root: Path, manifest: dict[str, Any], is_partial: bool) -> tuple[Path, Path | None]:
    """Return the table, and embeddings.npy where it is one of the results."""
    told = manifest["outputs"] if is_partial else written(root, manifest)
    there = {
        output: root / name
        for output, file in FILES.items()
        if (name := file_name(file, is_partial)) in told
    }
    table = there.get("parquet_dataset") or there.get("parquet")
    if table is None:
        adding = f"featuremill export {root} --to parquet"
        if is_partial:
            adding = f"featuremill merge {root} --partial --outputs {' '.join([*there, 'parquet'])}"
        raise UserError(
            f"{root}: search needs embeddings.parquet or embeddings/, which say whose vector is "
            f"which, and these results have {', '.join(told) or 'no file'}; {adding} adds it from "
            "the parts, without computing."
        )
    npy = there.get("npy")
    for path in (table, npy) if npy else (table,):
        _check(path, told[path.name], root)
    return table, npy


def _check(path: Path, about: Any, root: Path) -> None:
    size = bytes_of(path) if path.exists() else None
    if not isinstance(about, dict) or size != about.get("bytes"):
        raise _not_whole(path, root)


def _not_whole(path: Path, root: Path) -> UserError:
    return UserError(
        f"{path}: this is not what merge wrote; featuremill merge {root} writes it anew (if a "
        "merge is at work now, wait for it)."
    )


def _table(root: Path, path: Path, column: str | None) -> Table:
    try:
        files = [pq.ParquetFile(file, memory_map=True) for file in files_of(path)]
    except (pa.ArrowInvalid, OSError) as error:
        if getattr(error, "errno", None):
            raise
        raise _not_whole(path, root) from None
    schema = files[0].schema_arrow
    missing = {"id", "length", "sha256"} - set(schema.names)
    if missing or any(file.schema_arrow != schema for file in files):
        raise _not_whole(path, root)
    return Table(path, files, pooled_column(schema, column, path))


def _mapped(root: Path, path: Path, table: Table) -> Vectors:
    try:
        return Mapped(path, table.column, table.num_rows)
    except (ValueError, EOFError):
        raise _not_whole(path, root) from None


def _say(root: Path, manifest: dict[str, Any], plan: dict[str, Any], is_partial: bool) -> None:
    counts = manifest["counts"]
    if is_partial:
        log.warning(
            "partial results: %s of %s are not computed yet and are not searched.",
            f"{counts.get('pending', 0):,}",
            counted(counts.get("input", 0), "record"),
        )
    if plan and not are_results_of(plan, manifest, is_partial):
        log.warning(
            "%s: these results are of an earlier plan than plan.json; they are made new by: %s",
            root,
            command_line.again(root),
        )
