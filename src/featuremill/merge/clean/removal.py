"""How many bytes files take on disk, and removing them; links are never followed."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.base.progress import Progress
from featuremill.merge.clean.categories import Category

log = logging.getLogger("featuremill.clean")
BLOCK_BYTES = 512
"""What `st_blocks` counts in, whatever the file system."""


class Usage(NamedTuple):
    """Files and the bytes that they take on disk."""

    files: int
    bytes: int


class Usages(NamedTuple):
    """What each category takes, and what they take together."""

    each: list[Usage]
    all: Usage


class _Meter:
    """Adds up what files take; one with several names counts once."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()

    def bytes_of(self, path: Path) -> int | None:
        """Return what the file adds; None when it has vanished."""
        try:
            about = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        key = (about.st_dev, about.st_ino)
        if key in self._seen:
            return 0
        self._seen.add(key)
        return about.st_blocks * BLOCK_BYTES


def usage_of(categories: Sequence[Category]) -> Usages:
    """Return how many files there are and what they take."""
    meter = _Meter()
    each = []
    for category in categories:
        sizes = [size for path in category.paths if (size := meter.bytes_of(path)) is not None]
        each.append(Usage(len(sizes), sum(sizes)))
    return Usages(each, Usage(sum(u.files for u in each), sum(u.bytes for u in each)))


def remove(categories: Iterable[Category]) -> Usage:
    """Remove the files, and the folders that are empty then; return what that freed."""
    meter = _Meter()
    files = size = 0
    shown = Progress(log, "removing", "files")
    for category in categories:
        for path in category.paths:
            shown.at(files)
            freed = meter.bytes_of(path)
            if freed is not None:
                path.unlink(missing_ok=True)
                files, size = files + 1, size + freed
        for folder in category.folders:
            for inside in _folders_below(folder):
                with contextlib.suppress(OSError):  # not empty, or gone
                    inside.rmdir()
    return Usage(files, size)


def _folders_below(folder: Path) -> Iterator[Path]:
    """Yield `folder` and all folders in it, the inner ones first; a link is a file."""
    try:
        with os.scandir(folder) as entries:
            inside = [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in inside:
        yield from _folders_below(path)
    yield folder
