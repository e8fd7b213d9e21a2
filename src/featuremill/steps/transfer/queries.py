"""Read queries: records of the run by id, or sequences, for which vectors are computed."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import itertools
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from featuremill.features import NOWHERE, Features
from featuremill.features.table import Matrix
from featuremill.inputs import COMPRESSED, FORMATS, in_memory, source
from featuremill.kit.errors import UserError
from featuremill.kit.ids import accession
from featuremill.kit.text import clipped, counted, one_line
from featuremill.kit.workloads import Record
from featuremill.steps.transfer.recipe import Recipe

MOST_NAMED = 5
"""The most queries without a vector that are logged one by one."""
Item = TypeVar("Item")
log = logging.getLogger("featuremill.search")


class Queries(NamedTuple):
    """A batch of queries."""

    ids: list[str]
    vectors: Matrix
    """The vectors, shape (queries, width)."""
    own_rows: list[int]
    """The row of each query in the run, by id and sequence, or `NOWHERE`."""


class Reader:
    """Reads queries in batches of `num_at_once`, and computes their vectors."""

    def __init__(
        self,
        searched: Features,
        recipe: Callable[[], Recipe],
        num_at_once: int,
        wants_own: bool,
    ) -> None:
        """`recipe` is called for the first sequence; `wants_own` asks for `own_rows`."""
        self._searched = searched
        self._wants_own = wants_own
        self._make_recipe = recipe
        self._recipe: Recipe | None = None
        self._num_at_once = num_at_once
        self._notes: Counter[str] = Counter()
        self._num_good = self._num_bad = 0

    def read(self, words: Sequence[str]) -> Iterator[Queries]:
        """Yield the queries in `words`, in order: files of sequences, and ids.

        A word is the path of a file, or one or several ids, separated by commas. An accession of
        exactly one record is accepted as its id.

        Raises:
            UserError: a word is neither a file nor ids, or there are no queries.
        """
        files = [word for word in words if _is_file(word)]
        if files and self._wants_own and self._searched.id_columns.keys:
            raise UserError(
                f"{files[0]}: a file does not name the sample of a sequence, so no record can be "
                "left out as the query itself; give ids such as <sample>/<id>, or do without "
                "--exclude-self (in Python, exclude_self)."
            )
        rows = self._rows([word for word in words if word not in files])
        for word in words:
            if word not in rows:
                yield from self._file_queries(Path(word))
                continue
            for batch in _in_pieces(rows[word], self._num_at_once):
                numbers = [rows[word][id] for id in batch]
                self._num_good += len(batch)
                yield Queries(batch, self._searched.take(np.array(numbers, np.int64)), numbers)
        self._log_notes(", ".join(words) or "queries")

    def of_sequences(self, sequences: Mapping[str, str]) -> Iterator[Queries]:
        """Yield the queries of a mapping from ids to sequences, read as by `compute`."""
        if sequences:
            self._recipe = recipe = self._make_recipe()
            by_number = dict(enumerate(sequences.values()))
            with tempfile.TemporaryDirectory() as folder:
                path, _ = in_memory.write(by_number, recipe.workload, recipe.options, Path(folder))
                try:
                    yield from self._file_queries(path, list(sequences))
                except UserError as error:
                    raise UserError(str(error).replace(str(path), "queries")) from None
        self._log_notes("queries")

    def _rows(self, words: Sequence[str]) -> dict[str, dict[str, int]]:
        """Return the ids of each word with their rows."""
        parts = {word: [part for part in word.split(",") if part] for word in words}
        row_of = self._searched.rows_of(words)
        ids_of = {word: [word] if word in row_of else each for word, each in parts.items()}
        row_of |= self._searched.rows_named(itertools.chain(*ids_of.values()))
        rows = {}
        for word, ids in ids_of.items():
            missing = [id for id in ids if id not in row_of]
            if missing or not ids:
                raise UserError(self._missing(word, missing))
            rows[word] = {id: row_of[id] for id in ids}
        return rows

    def _missing(self, word: str, ids: Sequence[str]) -> str:
        if not ids:
            return "query: it is empty; give a file of sequences, or ids of the run's records."
        if _is_meant_as_file(word):
            source.check(Path(word))  # raises UserError with the reason
        why = self._why_missing(ids[0])
        others = f" ({len(ids) - 1:,} more are missing)" if len(ids) > 1 else ""
        return (
            f"{self._searched.folder.root}: {why}{others}; give ids of records that have a vector, "
            "or a file of sequences."
        )

    def _why_missing(self, id: str) -> str:
        """Return a sentence on why `id` has no vector."""
        shown_id = one_line(id)
        with contextlib.suppress(OSError, ValueError, KeyError, csv.Error):  # only an explanation
            for failure in self._searched.failures():
                if shown_id in (failure.id, accession(failure.id)):
                    states = {"pending": "is not computed yet", "refused": "was refused"}
                    state = states.get(failure.status, "failed")
                    why = "" if failure.status == "pending" else f" ({failure.reason})"
                    return f"the record {id!r} has no vector: it {state}{why}"
        return f"there is no record '{clipped(id)}'"

    def _file_queries(self, path: Path, ids: Sequence[str] | None = None) -> Iterator[Queries]:
        """Yield the queries of a file; with `ids`, the ids in the file are indices."""
        self._recipe = recipe = self._recipe or self._make_recipe()
        records: Iterable[Record] = recipe.records(path)
        if ids is not None:
            records = (record._replace(id=ids[int(record.id)]) for record in records)
        for batch in _in_pieces(self._good(records), self._num_at_once):
            vectors = recipe.vectors(
                [record.payload for record in batch],
                lambda index, why, batch=batch: self._refuse(batch[index], why),  # type: ignore[misc]
            )
            good = np.flatnonzero(~np.isnan(vectors).any(1)).tolist()
            self._num_good += len(good)
            records_here = [batch[index] for index in good]
            own = self._own_rows(records_here)
            yield Queries([record.id for record in records_here], vectors[good], own)

    def _good(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            if record.reason:
                self._refuse(record, record.reason)
            else:
                self._notes.update(filter(None, record.note.split("; ")))
                yield record

    def _refuse(self, record: Record, reason: str) -> None:
        self._num_bad += 1
        if self._num_bad <= MOST_NAMED:
            log.warning("query %s is left out: %s.", record.id or f"at line {record.line}", reason)

    def _own_rows(self, records: Sequence[Record]) -> list[int]:
        """Return the row of each record in the run, by id and sequence, or NOWHERE."""
        if not self._wants_own:
            return [NOWHERE] * len(records)
        rows = self._searched.rows_of({record.id for record in records})
        stored = self._searched.records_of(np.array(list(rows.values()), np.int64))
        sha256_of = {row: record.sha256 for row, record in stored.items()}
        own = []
        for record in records:
            row = rows.get(record.id, NOWHERE)
            is_same = sha256_of.get(row) == hashlib.sha256(record.payload).hexdigest()
            own.append(row if is_same else NOWHERE)
        return own

    def _log_notes(self, what: str) -> None:
        """Log notes and refused queries; raise UserError if there are no queries."""
        for note, count in sorted(self._notes.items()):
            log.info("%s: %s.", counted(count, "query", "queries"), note)
        if self._num_bad > MOST_NAMED:
            log.warning("%s queries are left out in all.", f"{self._num_bad:,}")
        if not self._num_good:
            why = f"all {self._num_bad:,} were refused" if self._num_bad else "it holds no sequence"
            raise UserError(f"{what}: there is nothing to look for, as {why}.")


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except OSError:  # the name is too long, such as a sequence
        return False


def _is_meant_as_file(word: str) -> bool:
    suffixes = tuple(suffix for kind in FORMATS for suffix in (*kind.suffixes, *COMPRESSED))
    with contextlib.suppress(OSError):
        return word.lower().endswith(suffixes) or Path(word).exists()
    return False


def _in_pieces(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while piece := list(itertools.islice(iterator, size)):
        yield piece
