"""Space on a disk: where it is, and taken before it is written to."""

from __future__ import annotations

import os
from pathlib import Path


def take_space(descriptor: int, start: int, size: int) -> None:
    """Take disk space from `start` on now: a hole in a file would end in SIGBUS on a full disk.

    Where the system has no such call (macOS), the file only grows.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, size)
    else:
        os.ftruncate(descriptor, max(os.fstat(descriptor).st_size, start + size))


def nearest_folder(path: Path) -> Path:
    """Return the nearest folder that exists on the way to an absolute path."""
    return next(parent for parent in (path, *path.parents) if parent.is_dir())
