"""Features for a head that are not of a run: computed from a file of records by the head's recipes,
or read from files that VirNucPro wrote. Payloads and ids are in memory, vectors in temporary files.

Computed features equal those of a run of the file: the same records, refused and failed for the
same reasons, and the same vectors. VirNucPro's files do not record how they were made; they have
three layouts, distinguished by their keys:

    *_DNABERT_S.pt  {'nucleotide': [id], 'data': [{'label': id, 'mean_representation': [float]}]}
    *_ESM.pt        {'proteins': [id], 'data': [tensor (2560,)]}
    *_merged.pt     {'ids': [id], 'data': tensor (N, 3328)}, the DNA's numbers before the protein's

Code in pickles is not run (torch's `weights_only`).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import shlex
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from featuremill.features import Failure, Index, Matrix, Rows
from featuremill.inputs import distinct_records
from featuremill.kit.arrays import matrix
from featuremill.kit.devices import DeviceChoice
from featuremill.kit.errors import UserError
from featuremill.kit.ids import ID_ALONE, IdColumns
from featuremill.kit.runs import Results, Settings
from featuremill.kit.text import Progress, clipped, counted, listed, records
from featuremill.kit.workloads import Record
from featuremill.steps.heads.card import Part, require
from featuremill.steps.transfer.recipe import Origin, Recipe

__all__ = ["LAYOUTS", "Layout"]
ROWS_AT_ONCE = 4096
log = logging.getLogger("featuremill.head")


class Choices(NamedTuple):
    """The device and the weights that compute features."""

    device: DeviceChoice | None = None
    """The device; None: that of the run on which the head was trained."""
    weights: Sequence[Path] = ()
    """Files weights/<name>.json that replace those of the run."""


class NewRecords:
    """The records of a file, counted and refused as in a run, and their values by a recipe."""

    def __init__(self, path: Path, recipe: Recipe) -> None:
        """Read the file. An id with two payloads is refused, a repeated record counts once."""
        self._recipe = recipe
        all_records = [*recipe.records(path)]
        good, refused = distinct_records(all_records)
        self.good = [*good.values()]
        """Each record once, in the order of the file."""
        self._positions = [*good]
        """The position of each good record among all records of the file."""
        self._failures: dict[int, Failure] = {}
        for position, (record, reason) in refused.items():
            self._refuse(position, record, "refused", reason)
        of_records = (record.note.split("; ") for record in all_records if not record.reason)
        notes = Counter(filter(None, itertools.chain.from_iterable(of_records)))
        for note, count in sorted(notes.items()):
            log.info("%s: %s.", counted(count, "record"), note)
        if num_again := len(all_records) - len(good) - len(refused):
            says = counted(num_again, "record is", "records are")
            log.info("%s there again, with the same id and sequence: each counts once.", says)

    def _refuse(self, position: int, record: Record, status: str, reason: str) -> None:
        failure = Failure(record.id, record.source, str(record.line), status, reason)
        self._failures[position] = failure

    def batches(self, start: int, end: int) -> Iterator[tuple[list[list[int]], pa.RecordBatch]]:
        """Yield for each row of values the indices of its records from `start`, and the values."""

        def refuse(index: int, reason: str) -> None:
            record = self.good[start + index]
            self._refuse(self._positions[start + index], record, "failed", reason)

        payloads = [record.payload for record in self.good[start:end]]
        yield from self._recipe.batches(payloads, refuse)

    def failures(self) -> list[Failure]:
        """Return the records without values so far, in the order of the file."""
        return [failure for _, failure in sorted(self._failures.items())]


@dataclass(eq=False)
class Vectors:
    """Vectors from files, one for each id, with the methods of a run's features.

    Raises:
        UserError: if an id occurs twice.
    """

    name: str
    column: str
    ids: Sequence[str]
    vectors: Matrix
    sha256s: Sequence[str] = ()
    """The digest of each payload; empty if unknown."""
    failed: Sequence[Failure] = ()
    rows: Rows | None = None
    """The row of `vectors` for each id; None: the ids are in the order of the rows."""
    recipe: str | None = None
    settings: Settings | None = None
    id_columns: ClassVar[IdColumns] = ID_ALONE

    def __post_init__(self) -> None:
        self.num_rows, self.width = len(self.ids), self.vectors.shape[1]
        Index(self)  # refuses an id that occurs twice

    def blocks(self) -> Iterator[tuple[list[str], Matrix]]:
        for start in range(0, self.num_rows, ROWS_AT_ONCE):
            rows = np.arange(start, min(start + ROWS_AT_ONCE, self.num_rows))
            yield self.ids_of(rows), self.take(rows)

    def ids_of(self, rows: Rows) -> list[str]:
        return [self.ids[row] for row in rows.tolist()]

    def take(self, rows: Rows) -> Matrix:
        return self.vectors[rows if self.rows is None else self.rows[rows]]

    def digests(self) -> Iterator[tuple[str, str]]:
        return zip(self.ids, self.sha256s, strict=False)

    def failures(self) -> Iterator[Failure]:
        return iter(self.failed)


def open_computed(
    folder: Path, path: Path, parts: Sequence[Part], choices: Choices
) -> list[Vectors]:
    """Compute the features of a file of records, one for each of the `parts` of the head in
    `folder`.

    Raises:
        UserError: if a recipe is unknown or cannot be repeated, or no record can be computed.
    """
    by_recipe: dict[str, list[Part]] = {}
    for part in parts:
        by_recipe.setdefault(str(part.recipe), []).append(part)
    by_column: dict[tuple[str, str | None], Vectors] = {}
    for name, some in by_recipe.items():
        recipe = Recipe(origin_of(folder, some[0], path), choices.device, choices.weights, log)
        by_column |= {(name, own.column): own for own in _computed(path, recipe, some)}
    return [by_column[str(part.recipe), part.column] for part in parts]


def origin_of(folder: Path, part: Part, path: Path) -> Origin:
    """Return the origin of a head's vectors, with which those of the records in `path` can be
    computed.

    Raises:
        UserError: if the origin is unknown.
    """
    if part.settings is None or part.column is None:
        config = shlex.quote(path.with_suffix(".yaml").name)
        raise UserError(
            f"{path}: {folder} was imported and does not contain how its features are computed; "
            f"compute them first: featuremill init {shlex.quote(str(path))}, with the model and "
            f"options of the head, then featuremill run {config}, and name the folder of that run "
            "here."
        )
    run = Results(Path(part.run)) if part.run and Path(part.run).is_dir() else None
    return Origin(str(folder), part.settings, part.recipe, part.column, run, run)


def _computed(path: Path, recipe: Recipe, parts: Sequence[Part]) -> list[Vectors]:
    """Compute the vectors of all `parts`, which share the `recipe`."""
    new = NewRecords(path, recipe)
    vectors: dict[str, Matrix] = {}
    is_there = np.zeros(len(new.good), bool)
    progress, num_done = Progress(log, "computing features"), 0
    columns = {part.column for part in parts if part.column}
    for indices, values in new.batches(0, len(new.good)):
        rows = np.array([index for equal in indices for index in equal], np.int64)
        of_row = np.repeat(np.arange(len(indices)), [len(equal) for equal in indices])
        for column in columns:
            of_column = matrix(values.column(column))
            if column not in vectors:
                shape, dtype = (len(new.good), of_column.shape[1]), of_column.dtype
                with tempfile.TemporaryFile() as file:  # deleted with the array
                    file.truncate(shape[0] * shape[1] * dtype.itemsize)
                    vectors[column] = np.memmap(file, dtype, "r+", 0, shape)
            vectors[column][rows] = of_column[of_row]
        is_there[rows] = True
        num_done += len(rows)
        progress.at(num_done, len(new.good))
    failures = new.failures()
    if not is_there.any():
        first = failures[0]
        raise UserError(
            f"{path}: none of its {records(len(failures))} has features; the first is "
            f"{first.id or f'at line {first.line}'!r} ({first.status}: {first.reason})."
        )
    rows = np.flatnonzero(is_there)
    ids = [new.good[row].id for row in rows.tolist()]
    sha256s = [hashlib.sha256(new.good[row].payload).hexdigest() for row in rows.tolist()]
    known = sha256s, failures, rows
    return [
        Vectors(str(path), name, ids, vectors[name], *known, part.recipe, part.settings)
        for part in parts
        if (name := part.column)
    ]


class Layout(NamedTuple):
    """A layout of VirNucPro's files of features."""

    ids: str
    """The key of the ids in a file."""
    name: str
    """The column of the features; the names of the files contain it."""
    vectors: Callable[[Any, Sequence[str]], Matrix]
    """A function that returns the vectors of the value under `data`."""


def _of_tensors(data: Any, _ids: Sequence[str]) -> Matrix:
    import torch

    rows = data if isinstance(data, torch.Tensor) else torch.stack(list(data))
    return rows.float().numpy()


def _of_means(data: Any, ids: Sequence[str]) -> Matrix:
    for number, (entry, id) in enumerate(zip(data, ids, strict=True), 1):
        if entry["label"] != id:
            raise ValueError(f"record {number} is {id!r} and {entry['label']!r}")
    return np.array([entry["mean_representation"] for entry in data], np.float32)


LAYOUTS = (
    Layout("nucleotide", "DNABERT_S", _of_means),
    Layout("proteins", "ESM", _of_tensors),
    Layout("ids", "merged", _of_tensors),
)


def _read(path: Path) -> tuple[Layout, list[str], Matrix]:
    """Return the layout, the ids and the vectors of a file; UserError without such a layout."""
    import torch

    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
        layout = next((layout for layout in LAYOUTS if layout.ids in content), None)
        if layout is None:
            raise ValueError(f"it holds {listed([*map(str, content)] or ['nothing'])}")
        ids = [str(id) for id in content[layout.ids]]
        if len(ids) != len(content["data"]):
            raise ValueError(f"{len(ids)} ids and {len(content['data'])} vectors")
        vectors = layout.vectors(content["data"], ids)
        if vectors.ndim != 2:
            raise ValueError("no record")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; name one that VirNucPro wrote.") from None
    except (ValueError, KeyError, TypeError, RuntimeError, EOFError, UnpicklingError) as error:
        problem = clipped(" ".join(str(error).split()).split(". ")[0]).rstrip(".")
        raise UserError(
            f"{path}: it is not what VirNucPro keeps features in, with one vector an id "
            f"({type(error).__name__}: {problem}); name its *_DNABERT_S.pt, *_ESM.pt or "
            "*_merged.pt, or a run's folder."
        ) from None
    return layout, ids, vectors


def open_files(paths: Sequence[Path]) -> dict[Path, Vectors]:
    """Return the features of each of the `paths`. Files of one layout are concatenated and share
    their features. Vectors go to a temporary file, because torch reads these files slowly.

    Raises:
        UserError: if torch is not installed, a file has none of the layouts, or an id occurs twice
            in one layout.
    """
    if paths:
        require("safetensors", "torch")
    by_layout: dict[Layout, tuple[int, BinaryIO, list[Path], list[str]]] = {}
    progress = Progress(log, "reading VirNucPro's features")
    num_read = 0
    with contextlib.ExitStack() as stack:
        for path in paths:
            layout, its_ids, vectors = _read(path)
            if layout not in by_layout:
                file = stack.enter_context(tempfile.TemporaryFile())
                by_layout[layout] = vectors.shape[1], file, [], []
            width, scratch, its_paths, ids = by_layout[layout]
            if vectors.shape[1] != width:
                raise UserError(
                    f"{path}: its vectors have {vectors.shape[1]:,} numbers, and those of "
                    f"{its_paths[0]} have {width:,}; name files of one run."
                )
            scratch.write(np.ascontiguousarray(vectors).data)
            its_paths.append(path)
            ids += its_ids
            num_read += len(its_ids)
            progress.at(num_read)
        opened: dict[Path, Vectors] = {}
        for layout, (width, scratch, its_paths, ids) in by_layout.items():
            vectors = np.memmap(scratch, np.float32, "r", 0, (len(ids), width))
            more = f" and {len(its_paths) - 1:,} more" if its_paths[1:] else ""
            features = Vectors(f"{its_paths[0]}{more}", layout.name, ids, vectors)
            opened |= dict.fromkeys(its_paths, features)
        return opened
