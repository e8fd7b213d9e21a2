"""When a file was written, or came to its place."""

from __future__ import annotations

from pathlib import Path


def came_at(path: Path) -> float:
    """Return when the file at `path` was written, or came there by whatever way: a copy, an archive
    and a renaming may give it an older time of writing."""
    status, name = path.stat(), path.lstat()  # a link may be new, too
    return max(status.st_mtime, status.st_ctime, name.st_mtime, name.st_ctime)
