"""The sha256 of large files that are not ours, read once while nothing is written to them.

A folder keeps them in KNOWN: of each path the digest, and how the file looked (size, both times,
inode, device). A file that still looks so was not written to since: no program can set a ctime.
"""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

from featuremill.base.words import human_bytes
from featuremill.store.files import read_json, sha256_of, write_json
from featuremill.store.formats import KNOWN

LARGE = 100_000_000
"""Bytes from which a digest is worth keeping; fewer are read in less than a second."""
YOUNG_SECONDS = 2
"""Within which a file may be written to again and look the same, as clocks of disks tick."""
log = logging.getLogger("featuremill.files")


def known_sha256_of(path: Path, folder: Path) -> str:
    """Return the sha256 of the file at `path`; of a large one it is kept in `folder`.

    Raises:
        OSError: the file cannot be read.
    """
    about = path.stat()
    if about.st_size < LARGE:
        return sha256_of(path)
    looks = [about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino, about.st_dev]
    known, name = read_json(folder / KNOWN) or {}, str(path.absolute())
    match known.get(name):
        case [str(sha256), before] if before == looks:
            return sha256
    log.info(f"{path}: reading it once ({human_bytes(about.st_size)}), as it came there later")
    sha256 = sha256_of(path)
    if time.time() - about.st_ctime < YOUNG_SECONDS:
        return sha256
    with contextlib.suppress(OSError):  # the folder of another user
        write_json(folder / KNOWN, {**known, name: [sha256, looks]}, is_synced=False)
    return sha256
