"""Space on a disk, taken before it is written to."""

from __future__ import annotations

import os


def take_space(descriptor: int, start: int, size: int) -> None:
    """Take disk space from `start` on now: a hole in a file would end in SIGBUS on a full disk.

    Where the system has no such call (macOS), the file only grows.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, size)
    else:
        os.ftruncate(descriptor, max(os.fstat(descriptor).st_size, start + size))
