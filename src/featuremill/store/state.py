"""What finished files were made of: results/<run>/.state/<product>.json.

It is written when the files are: by plan, merge and report, and for steps once their jobs have
ended.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import Field

from featuremill.base.words import human_bytes
from featuremill.store import ours
from featuremill.store.files import JsonFile, Record, digest_at, read_json, sha256_of, write_json
from featuremill.store.formats import KNOWN

FOLDER = ".state"
LARGE = 100_000_000
"""Bytes from which a digest is worth keeping; fewer are read in less than a second."""
YOUNG_SECONDS = 2
"""Within which a file may be written to again and look the same, as clocks of disks tick."""
log = logging.getLogger("featuremill.files")


def known_sha256_of(path: Path, folder: Path) -> str:
    """Return the sha256 of the file at `path`; of a large one it is kept in `folder`, with how the
    file looked. One that still looks so was not written to since: no program can set a ctime.

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


def came_at(path: Path) -> float:
    """Return when the file at `path` was written, or came there by whatever way: a copy, an archive
    and a renaming may give it an older time of writing."""
    status, name = path.stat(), path.lstat()  # a link may be new, too
    return max(status.st_mtime, status.st_ctime, name.st_mtime, name.st_ctime)


class Seen(Record):
    """A file as it was read or written."""

    sha256: str
    """Empty where no digest is known: then its time decides."""
    looks: list[int] = Field(default_factory=list)
    """Its size, both times and inode; of a folder nothing."""

    @classmethod
    def at(cls, path: Path, folder: Path) -> Seen:
        """Return how the file at `path` is; digests of large ones are kept in `folder`."""
        if path.is_dir():
            return cls(sha256=digest_at(path))
        return cls(sha256=known_sha256_of(path, folder), looks=ours.looks(path))

    def is_at(self, path: Path, folder: Path) -> bool:
        """Return whether the file at `path` has the same content."""
        if self.looks and not path.is_dir():
            now = ours.looks(path)
            if now == self.looks or now[0] != self.looks[0]:
                return now == self.looks
        return Seen.at(path, folder).sha256 == self.sha256


class State(JsonFile):
    """The file."""

    asked: dict[str, Any] = Field(default_factory=dict)
    """What the config asked for, by key."""
    made_of: dict[str, Seen] = Field(default_factory=dict)
    """What was read, by path."""
    files: dict[str, Seen] = Field(default_factory=dict)
    """What was made, by path as it is seen from the project's, or the run's, folder."""
    finished: float = 0.0
    """When the files were made, as seconds since 1970, where they list themselves what they were
    made of: inputs that were there by then are the same."""

    def is_of(self, files: Iterable[str], folder: Path) -> bool:
        """Return whether this is about `files` as they are now."""
        return all(
            (seen := self.files.get(inside)) and seen.is_at(Path(file), folder)
            for file, inside in ((file, os.path.relpath(file, folder.parent)) for file in files)
        )

    def others(self, made_of: Iterable[str], folder: Path, at: Path = Path()) -> list[str]:
        """Return which of `made_of`, seen from `at`, are not what was read, or not in that order,
        and what was read besides; what is gone is left out."""
        known = {str(Path(name)): seen for name, seen in self.made_of.items()}
        named = {str(Path(name)): at / name for name in made_of}
        then = [name for name in known if name in named]
        now = [name for name in named if name in known]
        moved = {name for name, before in zip(now, then, strict=True) if name != before}
        changed = [
            name
            for name, path in named.items()
            if path.exists() and (name in moved or not self._is_of(path, known.get(name), folder))
        ]
        return [*changed, *(name for name in known if name not in named)]

    def _is_of(self, path: Path, seen: Seen | None, folder: Path) -> bool:
        """Return whether the file at `path` is what was `seen`."""
        if seen is None or not seen.sha256:
            return seen is not None and path.stat().st_mtime <= self.finished
        return came_at(path) <= self.finished or seen.is_at(path, folder)


def path_of(folder: str | Path, product: str) -> str:
    """Return the file about what is called `product` in the project's, or the run's, folder."""
    return f"{folder}/{FOLDER}/{product}.json"


def stated(asked: Mapping[str, Any], sha256: Mapping[str, str] = MappingProxyType({})) -> State:
    """Return what finished files list themselves of what they were made of: options by key, and the
    sha256 of the files that were read by path."""
    return State(
        asked=dict(asked), made_of={name: Seen(sha256=digest) for name, digest in sha256.items()}
    )


def note(
    path: Path,
    files: Iterable[str],
    made_of: Iterable[str],
    asked: Mapping[str, Any],
    is_checked: bool = False,
) -> None:
    """Write that `files` were made, the last one last, of `made_of` and as it was `asked`.

    Of what came to its place after that it is not known whether it was read, unless its content
    `is_checked`.
    """
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    made = {os.path.relpath(file, folder.parent): Seen.at(Path(file), folder) for file in files}
    finished = math.inf if is_checked else Path([*files][-1]).stat().st_mtime
    existing = [Path(read) for read in made_of if Path(read).exists()]
    read = {str(each): Seen.at(each, folder) for each in existing if came_at(each) <= finished}
    State(asked=dict(asked), made_of=read, files=made).write(path)


def damaged(files: Iterable[str]) -> list[str]:
    """Return which of `files` were changed since featuremill wrote them, as far as that is
    recorded."""
    return [file for file in files if ours.latest(Path(file)) and not ours.is_ours(Path(file))]
