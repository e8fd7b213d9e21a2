"""What of a run is searched: which results, their vectors, and the names of their rows.

Everything is opened, and seen to be what one manifest.json tells of, before the first vector is
read; what is open stays as it was, although a merge may replace the files meanwhile.
"""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from featuremill.base.errors import UserError
from featuremill.base.words import counted
from featuremill.merge.loading import CHOOSING, pooled_column
from featuremill.search.table import Mapped, Table, Vectors
from featuremill.store import command_line
from featuremill.store.delivery import Delivery
from featuremill.store.formats import bytes_of, files_of, outputs_of
from featuremill.store.plan import Plan
from featuremill.store.results import Results

log = logging.getLogger("featuremill.search")


class Searched(NamedTuple):
    """The results of a run, open."""

    folder: Results
    place: Results
    """Where the results are: `folder`, or that of the partial ones."""
    results: Delivery
    plan: Plan | None
    """It may be newer than the results."""
    vectors: Vectors
    table: Table

    @property
    def num_rows(self) -> int:
        """Vectors that are searched."""
        return self.table.num_rows


def open_results(
    root: Path, column: str | None, wants_partial: bool, choosing: str = CHOOSING
) -> Searched:
    """Open the results in `root`; say what about them is not as one would expect. `choosing` is how
    a column of several is chosen.

    Raises:
        UserError: when there are none, or none that have one vector a record with its id.
    """
    folder = Results(root)
    place, results = _delivered(folder, wants_partial)
    table_path, npy_path = _files(folder, place, results)
    table = _table(root, table_path, column, choosing)
    vectors = _mapped(root, npy_path, table) if npy_path else table
    if place.find_delivery() != results:
        raise UserError(f"{root}: a merge is writing these results; try again when it is done.")
    if not table.num_rows:
        raise UserError(f"{root}: no record of these results has a vector; see failed.tsv there.")
    searched = Searched(folder, place, results, folder.find_plan(), vectors, table)
    _say(searched)
    return searched


def _delivered(folder: Results, wants_partial: bool) -> tuple[Results, Delivery]:
    """Return where the results are, whole ones before partial ones, and what tells of them."""
    root = folder.root
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder; name a run's, such as results/demo.")
    for place in (folder.partial,) if wants_partial else (folder, folder.partial):
        if (found := place.find_delivery()) is not None:
            return place, found
        if place.delivery.exists():
            again = " --partial" if place != folder else ""
            raise UserError(
                f"{place.delivery}: it cannot be read, so nobody can tell what the results are; "
                f"featuremill merge {root}{again} writes them anew."
            )
    if not folder.plan.exists():
        raise UserError(f"{root}: this is no run's folder; name one, such as results/demo.")
    raise UserError(
        f"{root}: there are no {'partial ' if wants_partial else ''}results yet; let the run come "
        f"to its end ({command_line.again(root)}), or take what is computed by now "
        f"(featuremill merge {shlex.quote(str(root))} --partial)."
    )


def _files(folder: Results, place: Results, results: Delivery) -> tuple[Path, Path | None]:
    """Return the table, and embeddings.npy where it is one of the results."""
    root, told = folder.root, place.written()
    there = {output: place.root / file for file, output in outputs_of(told).items()}
    table = there.get("parquet_dataset") or there.get("parquet")
    if table is None:
        adding = f"featuremill export {root} --to parquet"
        if results.partial:
            adding = f"featuremill merge {root} --partial --outputs {' '.join([*there, 'parquet'])}"
        raise UserError(
            f"{root}: this needs embeddings.parquet or embeddings/, which say whose vector is "
            f"which, and these results have {', '.join(told) or 'no file'}; {adding} adds it from "
            "the parts, without computing."
        )
    npy = there.get("npy")
    for path in (table, npy) if npy else (table,):
        if not path.exists() or bytes_of(path) != told[path.name].bytes:
            raise _not_whole(path, root)
    return table, npy


def _not_whole(path: Path, root: Path) -> UserError:
    return UserError(
        f"{path}: this is not what merge wrote; featuremill merge {root} writes it anew (if a "
        "merge is at work now, wait for it)."
    )


def _table(root: Path, path: Path, column: str | None, choosing: str) -> Table:
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
    return Table(path, files, pooled_column(schema, column, path, choosing))


def _mapped(root: Path, path: Path, table: Table) -> Mapped:
    try:
        return Mapped(path, table.column, table.num_rows)
    except (ValueError, EOFError):
        raise _not_whole(path, root) from None


def _say(searched: Searched) -> None:
    counts, plan, root = searched.results.counts, searched.plan, searched.folder.root
    if searched.results.partial:
        log.warning(
            "partial results: %s of %s are not computed yet and are not searched.",
            f"{counts.pending:,}",
            counted(counts.input, "record"),
        )
    if plan and not searched.results.is_of(plan):
        log.warning(
            "%s: these results are of an earlier plan than plan.json; they are made new by: %s",
            root,
            command_line.again(root),
        )
