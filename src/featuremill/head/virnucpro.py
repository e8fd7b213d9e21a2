"""The features that VirNucPro wrote, read in place of a run's.

Three layouts, told apart by their keys; files of one of them belong together, one after the other:

    *_DNABERT_S.pt  {'nucleotide': [id], 'data': [{'label': id, 'mean_representation': [float]}]}
    *_ESM.pt        {'proteins': [id], 'data': [tensor (2560,)]}
    *_merged.pt     {'ids': [id], 'data': tensor (N, 3328)}, the DNA's numbers before the protein's

They are read without running what pickles may hold (torch's `weights_only`), and they say nothing
of how they were made.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from featuremill.base.errors import UserError
from featuremill.base.text import clipped
from featuremill.base.words import listed
from featuremill.head.card import NeedsTorch
from featuremill.head.features import Index, Matrix, Rows
from featuremill.store.plan import Settings
from featuremill.workload import refuse_without_packages

WRONG = (ValueError, KeyError, TypeError)
KEPT_FILES = 2
"""Files whose content is in memory."""


class Layout(NamedTuple):
    """A kind of file."""

    ids: str
    """The key of the ids."""
    called: str
    vectors: Callable[[Any, Sequence[str]], Matrix]
    """Makes the vectors of what stands under `data`."""


def _of_tensors(data: Any, _ids: Sequence[str]) -> Matrix:
    import torch

    rows = data if isinstance(data, torch.Tensor) else torch.stack(list(data))
    found: Matrix = rows.float().numpy()
    return found


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


class Content(NamedTuple):
    """What stands in a file."""

    layout: Layout
    ids: list[str]
    vectors: Matrix


@functools.lru_cache(KEPT_FILES)
def _read(path: Path) -> Content:
    """Return what stands in the file `path`.

    Raises:
        UserError: when that is none of the layouts.
    """
    import torch

    try:
        told = torch.load(path, weights_only=True, map_location="cpu")
        layout = next((layout for layout in LAYOUTS if layout.ids in told), None)
        if layout is None:
            raise ValueError(f"it holds {listed([*map(str, told)] or ['nothing'])}")
        ids = [str(id) for id in told[layout.ids]]
        if len(ids) != len(told["data"]):
            raise ValueError(f"{len(ids)} ids and {len(told['data'])} vectors")
        vectors = layout.vectors(told["data"], ids)
        if vectors.ndim != 2:
            raise ValueError("no record")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; name one that VirNucPro wrote.") from None
    except (*WRONG, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        problem = clipped(" ".join(str(error).split()).split(". ")[0]).rstrip(".")
        raise UserError(
            f"{path}: it is not what VirNucPro keeps features in, with one vector an id "
            f"({type(error).__name__}: {problem}); name its *_DNABERT_S.pt, *_ESM.pt or "
            "*_merged.pt, or a run's folder."
        ) from None
    return Content(layout, ids, vectors)


class FileFeatures:
    """Features in files of one layout, one after the other; memory holds the ids of all."""

    recipe: str | None = None
    settings: Settings | None = None

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._ids: list[list[str]] = []
        widths = []
        for path in paths:
            content = _read(path)
            self._ids.append(content.ids)
            widths.append(content.vectors.shape[1])
            if widths[-1] != widths[0]:
                raise UserError(
                    f"{path}: its vectors have {widths[-1]:,} numbers, and those of {paths[0]} "
                    f"have {widths[0]:,}; name files of one run."
                )
        self.column, self.width = content.layout.called, widths[0]
        self._edges = np.cumsum([0, *map(len, self._ids)])
        self.num_rows = int(self._edges[-1])
        more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
        self.name = f"{paths[0]}{more}"
        Index(self)  # no id twice, also in what is read from its beginning to its end

    def blocks(self) -> Iterator[tuple[list[str], Matrix]]:
        for path in self._paths:
            content = _read(path)
            yield content.ids, content.vectors

    def _files_of(self, rows: Rows) -> Iterator[tuple[int, Rows, Rows]]:
        """Yield the number of each file with some of `rows`, their places here and there."""
        number_of = np.searchsorted(self._edges, rows, "right") - 1
        for number in np.unique(number_of).tolist():
            places = np.flatnonzero(number_of == number)
            yield number, places, rows[places] - self._edges[number]

    def ids_of(self, rows: Rows) -> list[str]:
        found = np.empty(len(rows), object)
        for number, places, inside in self._files_of(rows):
            found[places] = [self._ids[number][row] for row in inside]
        ids: list[str] = found.tolist()
        return ids

    def take(self, rows: Rows) -> Matrix:
        found = np.empty((len(rows), self.width), np.float32)
        for number, places, inside in self._files_of(rows):
            found[places] = _read(self._paths[number]).vectors[inside]
        return found

    def failures(self) -> dict[str, str]:
        return {}


def layout_of(path: Path) -> str:
    """Return what VirNucPro calls the layout of the file `path`: DNABERT_S, ESM or merged.

    Raises:
        UserError: when torch is not installed, or the file has none of the layouts.
    """
    refuse_without_packages(NeedsTorch)
    return _read(path).layout.called
