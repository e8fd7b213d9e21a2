"""Matching of the rows of a user's table with records, by id or by the accession in the id.

A match by the whole id has priority. An accession that two records have is refused, and so are two
rows of one record. If few names match, the error suggests a form in which more would.

    names = Matcher(path, {name: line, ...}, "record of the inputs")
    for record in records:
        name = names.name_of(record.id)      # None if the table has no row of it
    names.check()
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from featuremill.base.errors import UserError
from featuremill.base.id_columns import ID_ALONE, IdColumns, accession
from featuremill.base.text import clipped
from featuremill.base.words import counted

FEW = 0.5
"""If a smaller share of the names matches, the table is refused."""
MOST_NAMED = 3
MOST_REMEMBERED = 100_000
"""Records whose ids are kept for the suggestion."""
FORMS: Mapping[str, Callable[[str], str]] = {
    "as accessions": accession,
    "in other capitals": str.lower,
    "without versions": lambda name: re.sub(r"\.[0-9]+$", "", accession(name)),
    "as entry names": lambda name: name.rpartition("|")[2],
    "as middle fields, of which only accessions of UniProt's pattern count": lambda name: (
        name.split("|")[1] if name.count("|") == 2 else name
    ),
    "as first words": lambda name: accession(name.split(None, 1)[0]) if name.strip() else name,
}
"""Changes of the names in a table and of ids that might make them equal."""


class Matcher:
    """Matches the names in a table with the ids of records."""

    def __init__(
        self,
        path: Path,
        line_of: Mapping[str, int],
        noun: str,
        id_columns: IdColumns = ID_ALONE,
        log: logging.Logger | None = None,
    ) -> None:
        """`line_of` has the line of each name in the table `path`. `noun` names what is matched,
        such as "record of results/my", and `id_columns` make its ids. Warnings go to `log`."""
        self._path, self._line_of, self._noun, self._log = path, line_of, noun, log
        self._id_columns = id_columns
        self.id_of: dict[str, str] = {}
        """The ids of the matched records, by name in the table."""
        self._other_id_of: dict[str, str] = {}
        """Ids that have a row, by their accessions, which have another row."""
        self._met: dict[str, None] = {}
        self._num_met = 0

    @property
    def unmatched(self) -> list[str]:
        """The names that no record has matched so far, in the order of the table."""
        return [name for name in self._line_of if name not in self.id_of]

    def match(self, ids: Iterable[str]) -> Matcher:
        """Match the records `ids`, first those by whole ids; return self.

        Raises:
            UserError: as `name_of` does.
        """
        later = []
        for id in ids:
            if id not in self._line_of and self._short(id) in self._line_of:
                later.append(id)
            else:
                self.name_of(id)
        for id in later:
            self.name_of(id)
        return self

    def name_of(self, id: str) -> str | None:
        """Return the name in the table of the record `id`; None if it has no row.

        Raises:
            UserError: another record has this name, or the accession.
        """
        self._num_met += 1
        if len(self._met) < MOST_REMEMBERED:
            self._met[id] = None
        short = self._short(id)
        if id in self._line_of:
            if short != id and short in self._line_of:
                self._other_id_of[short] = id
            return self._is_of(id, id)
        if short == id or short not in self._line_of or self.id_of.get(short) == short:
            return None
        return self._is_of(short, id)

    def _is_of(self, name: str, id: str) -> str:
        if (other := self.id_of.setdefault(name, id)) != id:
            raise UserError(
                f"{self._path}:{self._line_of[name]}: {clipped(name)!r} is the accession of more "
                f"than one {self._noun}, such as {clipped(other)!r} and {clipped(id)!r}; write the "
                "whole id."
            )
        return name

    def _short(self, id: str) -> str:
        return self._id_columns.accession(id)

    def check(self) -> None:
        """Warn of unmatched names, once all records were passed.

        Raises:
            UserError: two rows match one record, no name matches, or less than half do. A table of
                far more records than there are may have fewer matches.
        """
        for short, id in self._other_id_of.items():
            if short not in self.id_of:
                raise UserError(
                    f"{self._path}:{self._line_of[short]}: {clipped(short)!r} is the record "
                    f"{clipped(id)!r}, which has a row in line {self._line_of[id]}; leave one of "
                    "them."
                )
        if not (unmatched := self.unmatched):  # or no names at all
            return
        num_names, num_matched = len(self._line_of), len(self.id_of)
        first = f"{clipped(unmatched[0])!r} (line {self._line_of[unmatched[0]]})"
        is_of_more = num_names > self._num_met / FEW
        if not num_matched or (num_matched < FEW * num_names and not is_of_more):
            how = f"only {num_matched:,} of its" if num_matched else "none of its"
            first_id = f", whose first is {clipped(next(iter(self._met)))!r}" * bool(self._met)
            raise UserError(
                f"{self._path}: {how} {num_names:,} ids is a {self._noun}{first_id}; the "
                f"first that is none is {first}; {self._remedy(unmatched)}."
            )
        if self._log:
            some = ", ".join(repr(clipped(name)) for name in unmatched[:MOST_NAMED])
            more = ", ..." if len(unmatched) > MOST_NAMED else ""
            self._log.warning(
                "%s: %s of its %s no %s: %s%s.",
                self._path,
                f"{len(unmatched):,}",
                counted(num_names, "id is", "ids are"),
                self._noun,
                some,
                more,
            )

    def _remedy(self, unmatched: list[str]) -> str:
        """Return an advice: the form of ids that would match most of the names."""
        num_matches: dict[str, int] = {}
        for says, form in FORMS.items():
            ids = {self._own(id) for id in self._met}
            known = {form(id) for id in ids} | {form(accession(id)) for id in ids}
            num_matches[says] = sum(form(self._own(name)) in known for name in unmatched)
        best = max(num_matches, key=lambda says: num_matches[says])
        if num_matches[best] * 2 > len(unmatched):
            return (
                f"{best}, {num_matches[best]:,} of the others would match, so write the ids as the "
                "records have them"
            )
        return (
            "write the ids as the records have them, name the right column of ids, or take the "
            "rows of other records out"
        )

    def _own(self, id: str) -> str:
        return self._id_columns.cells(id)[-1]
