"""The record of the inputs of finished files: results/<run>/.state/<product>.json.

plan, merge and report write it with their files; that of a step is written once its jobs have
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
"""Bytes of a file whose digest is kept; a smaller one is read in less than a second."""
YOUNG_SECONDS = 2
"""Age in seconds up to which a file may be written again with the same times, by the resolution of
file systems."""
log = logging.getLogger("featuremill.files")


def known_sha256_of(path: Path, folder: Path) -> str:
    """Return the sha256 of the file at `path`. That of a large file is cached in `folder`, as long
    as the file has the same size, times and inode: no program can set a ctime."""
    status, now = path.stat(), looks(path)
    if status.st_size < LARGE:
        return sha256_of(path)
    known, name = read_json(folder / KNOWN) or {}, str(path.absolute())
    match known.get(name):
        case [str(sha256), before] if before == now:
            return sha256
    log.info(f"{path}: reading it once ({human_bytes(status.st_size)}), as it came there later")
    sha256 = sha256_of(path)
    if time.time() - status.st_ctime < YOUNG_SECONDS:
        return sha256
    with contextlib.suppress(OSError):  # the folder of another user
        write_json(folder / KNOWN, {**known, name: [sha256, now]}, is_synced=False)
    return sha256


def came_at(path: Path) -> float:
    """Return the time when the file at `path` was written or got its name. Copying, unpacking and
    renaming may keep an older modification time."""
    status, name = path.stat(), path.lstat()  # a link has times of its own
    return max(status.st_mtime, status.st_ctime, name.st_mtime, name.st_ctime)


def looks(path: Path) -> list[int]:
    """Return size, times and inode of the file at `path`; links are followed."""
    return ours.looks(path, follows=True)


class Seen(Record):
    """A file when it was read or written."""

    sha256: str
    """Empty if unknown: then its time decides."""
    looks: list[int] = Field(default_factory=list)
    """Size, times and inode; empty for a folder."""

    @classmethod
    def at(cls, path: Path, folder: Path) -> Seen:
        if path.is_dir():
            return cls(sha256=digest_at(path))
        return cls(sha256=known_sha256_of(path, folder), looks=looks(path))

    def is_at(self, path: Path, folder: Path) -> bool:
        if self.looks and not path.is_dir():
            now = looks(path)
            if now == self.looks or now[0] != self.looks[0]:
                return now == self.looks
        return Seen.at(path, folder).sha256 == self.sha256


class State(JsonFile):
    """The config and the inputs from which some files were made."""

    config: dict[str, Any]
    inputs: dict[str, Seen]
    files: dict[str, Seen] = Field(default_factory=dict)
    """Output files by path relative to the folder of the project or of the run."""
    finished: float = 0.0
    """Set for files that list their inputs themselves: the time when they were written, in seconds
    since 1970. Older inputs have not changed."""

    def is_of(self, files: Iterable[str], folder: Path) -> bool:
        """Return whether this is the record of `files` with the content that they have now."""
        return all(
            (seen := self.files.get(inside)) and seen.is_at(Path(file), folder)
            for file, inside in ((file, os.path.relpath(file, folder.parent)) for file in files)
        )

    def others(self, inputs: Iterable[str], folder: Path, at: Path = Path()) -> list[str]:
        """Return the `inputs`, relative to `at`, whose content or position has changed since they
        were read, and inputs that are no longer listed. Missing files are left out."""
        known = {str(Path(name)): seen for name, seen in self.inputs.items()}
        named = {str(Path(name)): at / name for name in inputs}
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
        if seen is None or not seen.sha256:
            return seen is not None and path.stat().st_mtime <= self.finished
        return came_at(path) <= self.finished or seen.is_at(path, folder)


def path_of(folder: str | Path, product: str) -> str:
    return f"{folder}/{FOLDER}/{product}.json"


def planned_inputs(root: Path) -> Path:
    """Return the path of the record of the inputs of plan.json of the run in `root`, with their
    looks before they were read."""
    return Path(path_of(root, "read"))


def stated(config: Mapping[str, Any], sha256: Mapping[str, str] = MappingProxyType({})) -> State:
    """Return the record that finished files contain themselves: options by key, and the sha256 of
    inputs by path."""
    return State(
        config=dict(config), inputs={name: Seen(sha256=digest) for name, digest in sha256.items()}
    )


def note(
    path: Path,
    files: Iterable[str],
    inputs: Iterable[str],
    config: Mapping[str, Any],
    is_checked: bool = False,
) -> None:
    """Write the record of `files`, the last of which was written last, its `inputs` and
    the keys of the `config` that it depends on.

    An input that is newer than the files is left out, as it may not be what was read, unless its
    content `is_checked`.
    """
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    written = {os.path.relpath(file, folder.parent): Seen.at(Path(file), folder) for file in files}
    finished = math.inf if is_checked else Path([*files][-1]).stat().st_mtime
    existing = [Path(read) for read in inputs if Path(read).exists()]
    read = {str(each): Seen.at(each, folder) for each in existing if came_at(each) <= finished}
    State(config=dict(config), inputs=read, files=written).write(path)


def damaged(files: Iterable[str]) -> list[str]:
    """Return the `files` that featuremill wrote, by the record of `store.ours`, and that have been
    changed since, or replaced by an older copy."""
    return [file for file in files if ours.latest(Path(file)) and not ours.is_latest(Path(file))]
