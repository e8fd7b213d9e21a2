"""Split records into regions, by a table of stretches of residues; each is a record.

The network sees the whole record; the vectors are of the region's residues only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from featuremill.base.errors import UserError
from featuremill.base.matching import Matcher
from featuremill.base.reasons import Kind, is_missing
from featuremill.base.text import clipped
from featuremill.inputs import NamedColumns, columns, names_in_table, rows
from featuremill.inputs.letters import parts_of, wrong_id
from featuremill.workload import Record

STARTS = (("start",), ("begin", "first", "from"))
ENDS = (("end",), ("stop", "last", "to"))
NAMES = (("name",), ("region", "domain", "feature"))
"""Names of the columns by rank, the first rank preferred."""
NO_REGION = Kind(
    "region",
    ("no region of this record",),
    "The table of options.regions has no row with this id. Add one, or take the record out.",
)
UNSEEN = "a region beyond max_residues"
BEYOND = Kind(
    "region_end",
    ("a region beyond the end", UNSEEN),
    "The row of options.regions was written for another sequence, or for more residues than are "
    "read. Fix its end, take it out, or raise max_residues.",
)
REASONS = (NO_REGION, BEYOND)
"""The reasons of a workload that reads regions."""


class Region(NamedTuple):
    """A stretch of residues of a record."""

    first: int
    last: int
    """The last residue, from 1, inclusive, as in UniProt."""
    name: str
    line: int


class Regions:
    """The regions in a table, by the id or accession of their record.

    Raises:
        UserError: if a row is not a region, or two regions of a record have the same name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        names = names_in_table(path, "regions")
        id = columns.find_id(path, names)
        start, end = (
            names[columns.find_column(path, names, "", ranks, wanted)]
            for ranks, wanted in ((STARTS, "start"), (ENDS, "end"))
        )
        others = [name for index, name in enumerate(names) if index != id]
        named = columns.first_of(others, NAMES)
        self._of: dict[str, list[Region]] = {}
        wanted = (start, end, *([named] if named else []))
        for row in rows([path], NamedColumns(id_column=names[id], names=wanted)):
            if row.reason:
                raise UserError(f"{path}:{row.line}: this row has no id ({row.reason}); fix it.")
            values = json.loads(row.payload)
            name = str(values[named] or "").strip() if named else ""
            name = "" if is_missing(name) else name
            region = self._region(values[start], values[end], name, row.line)
            of_record = self._of.setdefault(row.id, [])
            if region.name in (other.name for other in of_record):
                raise UserError(
                    f"{path}:{row.line}: {clipped(row.id)!r} has two regions called "
                    f"{region.name!r}; give them names of their own, in a column 'name'."
                )
            of_record.append(region)
        self._lines = {id: of_id[0].line for id, of_id in self._of.items()}

    def _region(self, start: object, end: object, name: str, line: int) -> Region:
        first, last = self._whole(start, "start", line), self._whole(end, "end", line)
        if not 1 <= first <= last:
            raise UserError(
                f"{self._path}:{line}: {first} to {last} is no region; residues count from 1, and "
                "start and end are both in it."
            )
        if wrong := wrong_id(name or "-"):
            raise UserError(
                f"{self._path}:{line}: the name of this region cannot be part of an id ({wrong}); "
                "write it on one line, without control characters."
            )
        return Region(first, last, name or f"{first}-{last}", line)

    def _whole(self, value: object, what: str, line: int) -> int:
        text = str(value).strip().removesuffix(".0")
        if not (text.isascii() and text.isdecimal()):
            raise UserError(
                f"{self._path}:{line}: its {what} is {clipped(str(value))!r}, and that is no whole "
                "number; fix it."
            )
        return int(text)

    def split(self, records: Iterator[Record], most: int | None) -> Iterator[Record]:
        """Yield a record for each region of `records`; a region beyond the first `most` residues is
        refused.

        Raises:
            UserError: if a region has no record, or several.
        """
        names = Matcher(self._path, self._lines, "record of the inputs")
        for record in records:
            name = names.name_of(record.id)
            regions = [] if name is None else self._of[name]
            if not regions:
                reason = record.reason or NO_REGION.reason()
                yield record._replace(payload=b"", reason=reason)
            for region in regions:
                cut = record if record.reason else self._cut(record, region, most)
                yield cut._replace(id=f"{record.id}/{region.name}")
        names.check()
        if left := names.unmatched:
            first = left[0]
            more = f" (and {len(left) - 1:,} more ids)" if len(left) > 1 else ""
            raise UserError(
                f"{self._path}:{self._of[first][0].line}: no record of the inputs is called "
                f"{clipped(first)!r}{more}; fix the id, or take the row out."
            )

    def _cut(self, record: Record, region: Region, most: int | None) -> Record:
        parts = parts_of(record.payload)
        length = len(parts.letters)
        num_seen = min(length, most or length)
        if region.last > num_seen:
            where = f"{self._path}:{region.line} ends at residue {region.last:,} of"
            reason = BEYOND.reason(f"{where} {length:,}")
            if region.last <= length:
                reason = BEYOND.reason(f"{where} {num_seen:,} that are read", UNSEEN)
            return record._replace(payload=b"", reason=reason)
        payload = parts._replace(region=(region.first, region.last)).payload
        return record._replace(payload=payload, length=length)
