"""Features in VirNucPro's files, read in place of a run's.

Three layouts, distinguished by their keys; files of one layout are read one after the other:

    *_DNABERT_S.pt  {'nucleotide': [id], 'data': [{'label': id, 'mean_representation': [float]}]}
    *_ESM.pt        {'proteins': [id], 'data': [tensor (2560,)]}
    *_merged.pt     {'ids': [id], 'data': tensor (N, 3328)}, the DNA's numbers before the protein's

Code in pickles is not run (torch's `weights_only`). The files do not record how they were made.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from featuremill.features import Matrix
from featuremill.kit.errors import UserError
from featuremill.kit.text import Progress, clipped, listed
from featuremill.kit.workloads import refuse_without_packages
from featuremill.steps.heads.card import NeedsTorch
from featuremill.steps.heads.computed import Vectors

__all__ = ["LAYOUTS", "Layout", "refuse_without_torch"]
WRONG = (ValueError, KeyError, TypeError)
log = logging.getLogger("featuremill.head")


def refuse_without_torch() -> None:
    """Raise UserError if torch is not installed, which reads and writes such files."""
    refuse_without_packages(NeedsTorch)


class Layout(NamedTuple):
    """A layout of files."""

    ids: str
    """The key of the ids in a file."""
    name: str
    """The column of the features, and a part of the names of the files."""
    vectors: Callable[[Any, Sequence[str]], Matrix]
    """Returns the vectors of the value under `data`."""


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
    """Return the layout, the ids and the vectors of the file `path`.

    Raises:
        UserError: it has none of the layouts.
    """
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
    except (*WRONG, RuntimeError, EOFError, UnpicklingError) as error:
        problem = clipped(" ".join(str(error).split()).split(". ")[0]).rstrip(".")
        raise UserError(
            f"{path}: it is not what VirNucPro keeps features in, with one vector an id "
            f"({type(error).__name__}: {problem}); name its *_DNABERT_S.pt, *_ESM.pt or "
            "*_merged.pt, or a run's folder."
        ) from None
    return layout, ids, vectors


def open_files(paths: Sequence[Path]) -> dict[Path, Vectors]:
    """Return the features of each of the `paths`; files of one layout have the same features, read
    one after the other. Memory holds the ids, a temporary file the vectors: torch takes seconds to
    read some of these files.

    Raises:
        UserError: torch is not installed, a file has none of the layouts, or an id occurs twice in
            one layout.
    """
    if paths:
        refuse_without_torch()
    by_layout: dict[Layout, tuple[BinaryIO, list[Path], list[str]]] = {}
    widths: dict[Layout, int] = {}
    progress = Progress(log, "reading VirNucPro's features")
    num_read = 0
    with contextlib.ExitStack() as stack:
        for path in paths:
            layout, its_ids, vectors = _read(path)
            if layout not in by_layout:
                by_layout[layout] = (stack.enter_context(tempfile.TemporaryFile()), [], [])
            scratch, its_paths, ids = by_layout[layout]
            if (width := vectors.shape[1]) != widths.setdefault(layout, width):
                raise UserError(
                    f"{path}: its vectors have {width:,} numbers, and those of {its_paths[0]} "
                    f"have {widths[layout]:,}; name files of one run."
                )
            scratch.write(np.ascontiguousarray(vectors).data)
            its_paths.append(path)
            ids += its_ids
            num_read += len(its_ids)
            progress.at(num_read)
        opened: dict[Path, Vectors] = {}
        for layout, (scratch, its_paths, ids) in by_layout.items():
            vectors = np.memmap(scratch, np.float32, "r", 0, (len(ids), widths[layout]))
            more = f" and {len(its_paths) - 1:,} more" if its_paths[1:] else ""
            features = Vectors(f"{its_paths[0]}{more}", layout.name, ids, vectors)
            opened |= dict.fromkeys(its_paths, features)
        return opened
