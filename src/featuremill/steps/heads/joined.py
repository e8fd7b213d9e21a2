"""Join the features of several runs by id, in bounded memory, and concatenate their vectors.

The first run is read from beginning to end, and rows of the others are found by id. Nothing is
padded: an id that a run lacks is listed, with the reason of that run if there is one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Sequence
from typing import NamedTuple, TextIO

import numpy as np

from featuremill.features import NOWHERE, Features, Index, Matrix
from featuremill.kit.arrays import refuse_not_finite
from featuremill.kit.errors import UserError
from featuremill.kit.ids import IdColumns
from featuremill.kit.text import Progress
from featuremill.kit.tsv import TsvWriter
from featuremill.steps.heads.card import Part
from featuremill.steps.heads.computed import Vectors

__all__ = ["CHOOSING"]
CHOOSING = "--vectors"
WHY_NOT_FINITE = (
    "of which no score can be made; leave that record out, or have its features computed anew."
)
log = logging.getLogger("featuremill.head")
Source = Features | Vectors
"""Features with one vector per record."""


def part_of(source: Source) -> Part:
    """Return the entry of a card for these features."""
    return Part(
        width=source.width,
        column=source.column,
        recipe=source.recipe,
        settings=source.settings,
        run=source.name,
    )


class Lacking(NamedTuple):
    """A record without a vector in one of the runs."""

    id: str
    run: str
    reason: str


Report = Callable[[Lacking], object]
"""A function that is called with each record that lacks a vector."""


def lacking_writer(file: TextIO, id_columns: IdColumns) -> Report:
    """Write the header of a table of records without features; return a function for its rows."""
    table = TsvWriter(file, [*id_columns.names, *Lacking._fields[1:]])
    return lambda lacking: table.row([*id_columns.cells(lacking.id), *lacking[1:]])


class Joined:
    """The records that all runs have, in the order of the first, with concatenated vectors."""

    def __init__(self, parts: Sequence[Source], wanted: Container[str] | None = None) -> None:
        """Read the ids of all parts but the first; only ids in `wanted` are joined.

        Raises:
            UserError: if only some of the parts have samples.
        """
        self._parts, self._wanted = parts, wanted
        self.id_columns = parts[0].id_columns
        for part in parts:
            if part.id_columns != self.id_columns:
                other, with_keys = sorted((part, parts[0]), key=lambda each: each.id_columns)
                raise UserError(
                    f"{with_keys.name}: its records are of samples, and those of {other.name} are "
                    "not, so they cannot be matched; name features of the same sheet."
                )
        self._others = [Index(part) for part in parts[1:]]
        self._failures: list[dict[str, list[str]]] = []
        """For each part, the reasons by id; several records may have the same id."""
        for part in parts:
            of_id: dict[str, list[str]] = {}
            for failure in part.failures():
                of_id.setdefault(failure.id, []).append(f"{failure.status}: {failure.reason}")
            self._failures.append(of_id)
        self.width = sum(part.width for part in parts)
        self.num_unwanted = 0
        """Number of records of the first run that are not wanted, once all blocks are read."""

    def blocks(self, report: Report) -> Iterator[tuple[list[str], Matrix]]:
        """Yield ids and vectors (rows, sum of widths); call `report` with each record of the first
        run that another run lacks.

        Raises:
            UserError: if a number is not finite.
        """
        first, num_read = self._parts[0], 0
        progress = Progress(log, "joining features" if self._others else "reading features")
        for ids, vectors in first.blocks():
            num_read += len(ids)
            if self._wanted is not None:
                is_wanted = np.array([id in self._wanted for id in ids], bool)
                self.num_unwanted += int((~is_wanted).sum())
                vectors = vectors[is_wanted]
                ids = [id for id, is_kept in zip(ids, is_wanted, strict=True) if is_kept]
            rows, is_in_all = [], np.ones(len(ids), bool)
            for number, other in enumerate(self._others, 1):
                of_other = other.rows_of(ids)
                rows.append(of_other)
                for row in np.flatnonzero(of_other == NOWHERE):
                    report(self.lacking(ids[row], number))
                is_in_all &= of_other != NOWHERE
            ids = [id for id, is_whole in zip(ids, is_in_all, strict=True) if is_whole]
            blocks = [vectors[is_in_all]]
            others = zip(self._parts[1:], rows, strict=True)
            blocks += [part.take(of_other[is_in_all]) for part, of_other in others]
            for part, block in zip(self._parts, blocks, strict=True):
                refuse_not_finite(block, ids, part.name, part.column, WHY_NOT_FINITE)
            if ids:
                yield ids, blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)
            progress.at(num_read, first.num_rows)

    def others(self) -> Iterator[Lacking]:
        """Yield all other records that a run lacks, each once, after `blocks`: first those that the
        first run lacks, then those that failed or were refused."""
        for number, other in enumerate(self._others, 1):
            rows = np.flatnonzero(~other.is_met)
            for start in range(0, len(rows), 2**17):
                ids = self._parts[number].ids_of(rows[start : start + 2**17])
                known = np.zeros(len(ids), bool)
                for earlier in self._others[: number - 1]:  # these have reported it already
                    known |= earlier.rows_of(ids) != NOWHERE
                for row in np.flatnonzero(~known):
                    yield self.lacking(ids[row], 0)
        for number, failures in enumerate(self._failures):
            for id, reasons in failures.items():
                for reason in reasons:
                    yield Lacking(id, self._parts[number].name, reason)
                for later in self._failures[number + 1 :]:
                    later.pop(id, None)

    def lacking(self, id: str, number: int, otherwise: str = "it has no such record") -> Lacking:
        """Return the entry for an id that the run with this number lacks."""
        reason, *_ = self._failures[number].pop(id, [otherwise])
        return Lacking(id, self._parts[number].name, reason)
