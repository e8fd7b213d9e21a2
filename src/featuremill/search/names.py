"""Who is who: ids to rows and back, and why an id has no vector."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from featuremill.base.accession import accessions
from featuremill.base.text import one_line
from featuremill.search.vectors import Table

MOST_NEAR = 3
"""Ids that are named where there is none of the name asked for."""
MIN_SHARED = 2
"""Letters that a name must share with the one asked for."""


class Record(NamedTuple):
    """What a row of the results is."""

    id: str
    length: int
    sha256: str
    description: str = ""
    """Tables of early versions had none."""


def rows_of(table: Table, ids: Iterable[str]) -> dict[str, int]:
    """Return the rows of those of `ids` that are there."""
    found: dict[str, int] = {}
    wanted = set(ids)
    asked = pa.array(wanted, pa.string())
    for group in table.groups:
        if len(found) == len(wanted):
            break
        here = group.read(["id"])["id"]
        places = pc.indices_nonzero(pc.is_in(here, value_set=asked))
        names = here.take(places).to_pylist()
        rows = (group.first_row + int(place) for place in places.to_numpy())
        found.update(zip(names, rows, strict=True))
    return found


def ids_of_accessions(table: Table, names: Iterable[str]) -> dict[str, list[str]]:
    """Return the ids of the records that have one of `names` as accession, `MOST_NEAR` at most."""
    found: dict[str, list[str]] = {}
    asked = pa.array(set(names), pa.string())
    for group in table.groups if len(asked) else ():
        ids = group.read(["id"])["id"]
        here = accessions(ids)  # as in the column of that name, which early tables lack
        places = pc.indices_nonzero(pc.is_in(here, value_set=asked))
        pairs = zip(here.take(places).to_pylist(), ids.take(places).to_pylist(), strict=True)
        for name, id in pairs:
            if len(of_name := found.setdefault(name, [])) < MOST_NEAR:
                of_name.append(id)
    return found


def records_of(table: Table, rows: npt.NDArray[np.int64]) -> dict[int, Record]:
    """Return what the `rows` are."""
    found: dict[int, Record] = {}
    ascending = np.unique(rows)
    for group in table.groups:
        if len(places := group.rows_in(ascending)):
            here = ascending[places]
            block = group.read(list(Record._fields)).take(pa.array(here - group.first_row))
            columns = (block[name] for name in Record._fields if name in block.column_names)
            told = map(Record, *(column.to_pylist() for column in columns))
            found.update(zip(here.tolist(), told, strict=True))
    return found


def why_missing(table: Table, failed: Path, id: str) -> str:
    """Return in a sentence why `id` has no vector, or which ids are like it."""
    if told := _listed(failed, id):
        status, reason = told
        state = {"pending": "is not computed yet", "refused": "was refused"}.get(status, "failed")
        why = "" if status == "pending" else f" ({reason})"
        return f"the record {id!r} has no vector: it {state}{why}"
    near = _like(table, id)
    hint = f"; the nearest names are {', '.join(near)}" if near else ""
    return f"there is no record {id!r}{hint}"


def _listed(failed: Path, id: str) -> tuple[str, str] | None:
    """Return the status and the reason that failed.tsv has for `id`."""
    try:
        with failed.open(encoding="utf-8", newline="") as rows:
            for row in csv.DictReader(rows, delimiter="\t"):
                if row["id"] == one_line(id):
                    return str(row["status"]), str(row["reason"])
    except (OSError, ValueError, KeyError, csv.Error):
        pass  # it only explains
    return None


def _like(table: Table, id: str) -> list[str]:
    """Return ids that hold `id`, or else most of its beginning."""
    for part in (id, id[: -(-3 * len(id) // 4)]):
        found: list[str] = []
        for group in table.groups if len(part) >= MIN_SHARED else ():
            here = group.read(["id"])["id"]
            alike = here.filter(pc.match_substring(here, part, ignore_case=True))
            found += alike.slice(0, MOST_NEAR - len(found)).to_pylist()
            if len(found) == MOST_NEAR:
                break
        if found:
            return found
    return []
