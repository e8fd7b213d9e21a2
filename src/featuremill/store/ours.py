"""The files that featuremill wrote, and so may remove or replace. All other files are kept.

Each folder with results has a record (`formats.RECORD`) with a line for each file: its name, its
sha256, and its looks (size, modification time, ctime and inode) when it was written. A file with
the same looks was not changed: no program can set a ctime. For other looks, as after a copy, the
digest decides. Any other file with the name of a result is moved aside. If a line is lost, a file
of featuremill is moved aside, too.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from featuremill.base.errors import UserError
from featuremill.store import formats
from featuremill.store.files import (
    SEAL,
    as_text,
    is_in_temporary,
    is_temporary,
    read_json,
    remove,
    replacing,
    replacing_folder,
    seal_of,
    sha256_of,
    sync,
    sync_folder,
)

ASIDE = re.compile(r".+\.yours-\d+(\..*)?")
"""The name of a file that was moved aside."""
MOST_BYTES = 1 << 18
"""The size of a record from which only the last line of each file is kept."""
MOST_ABOVE = 6
"""The number of folders above a file whose records may name it. The record of a result that is a
folder is beside that folder."""
NOT_OURS = "featuremill did not write it"
Say = Callable[[str], object]
Lines = dict[str, list[dict[str, Any]]]
"""The lines of a record, by file."""
log = logging.getLogger("featuremill.files")


def is_ours(path: Path) -> bool:
    """Return whether featuremill wrote the file, or all files of the folder, at `path`, and none
    was changed: a record has it, or it is JSON with a valid seal."""
    if path.is_dir() and not path.is_symlink():
        inside, read = contents(path), functools.cache(_read)  # once for all files
        return bool(inside) and all(_is_recorded(file, read) for file in inside)
    if path.is_symlink() or not path.is_file():
        return False
    if is_in_temporary(path) or _is_recorded(path):
        return True
    value = read_json(path) if path.suffix == ".json" else None
    return value is not None and value.pop(SEAL, None) == seal_of(value)


def is_latest(path: Path) -> bool:
    """Return whether the file at `path` has the bytes that featuremill wrote last, and not those of
    an older copy."""
    return _is_recorded(path, are_older_valid=False)


def _is_recorded(
    path: Path, read: Callable[[Path], Lines] | None = None, are_older_valid: bool = True
) -> bool:
    """Return whether the file at `path` is as a line of a record describes it, or, if older lines
    are not valid, the last line of a record."""
    if path.is_symlink() or not path.is_file():
        return False
    lines = list[dict[str, Any]]()
    for *_, of_record in _entries(path, read):
        lines += of_record if are_older_valid else of_record[-1:]
    stamp = looks(path)
    if any(line["seen"] == stamp for line in lines):
        return True
    digests = {line["sha256"] for line in lines if line["seen"][0] == stamp[0]}
    return bool(digests) and sha256_of(path) in digests


def contents(folder: Path) -> list[Path]:
    """Return all files, links and empty folders below `folder`, but for the record itself."""
    paths = []
    for inside, folders, names in os.walk(folder):
        links = [name for name in folders if Path(inside, name).is_symlink()]
        paths += [Path(inside, name) for name in (*names, *links) if name not in formats.BESIDE]
        if not (folders or names) and Path(inside) != folder:
            paths.append(Path(inside))
    return paths


def is_beside(name: str) -> bool:
    """Return whether a file of this name is a record, Snakemake's, or was moved aside."""
    return name in formats.BESIDE or bool(ASIDE.fullmatch(name))


def give_way(path: Path, say: Say = log.warning, *, is_named: bool = False) -> None:
    """Move the file or folder at `path` aside unless featuremill wrote it.

    A file that the user named (`is_named`) and that featuremill never wrote stays, to be replaced.

    Raises:
        UserError: the user named a folder.
    """
    if is_named and path.is_dir():
        raise UserError(f"{path}: this is a folder; name a file.")
    is_known = latest(path) is not None
    if not os.path.lexists(path) or is_ours(path) or (is_named and not is_known):
        return
    if path.is_dir() and not path.is_symlink():
        discard(path, say=log.debug)
        if not path.exists():
            return
        for name in formats.BESIDE:
            (path / name).unlink(missing_ok=True)
    new = _aside(path)
    path.rename(new)
    why = "it was changed since featuremill wrote it" if is_known else NOT_OURS
    say(f"{path}: {why}; it is kept as {new}.")


@contextlib.contextmanager
def keeping_old(path: Path, say: Say = log.warning) -> Iterator[Path]:
    """Yield a temporary path, which becomes the file `path`. An older file with other bytes is
    moved aside, even if featuremill wrote it. Nothing is recorded: this is for a user's folder."""
    with replacing(path) as new:
        yield new
        if path.is_file() and path.read_bytes() != new.read_bytes():
            old = _aside(path)
            path.rename(old)
            say(f"{path}: the older one is kept as {old}.")


def vacate(path: Path, say: Say = log.warning) -> None:
    """Remove the file or folder at `path` if featuremill wrote it; otherwise move it aside."""
    give_way(path, say)
    remove(path)


def discard(path: Path, say: Say = log.warning) -> None:
    """Remove the files at `path` that featuremill wrote; the others stay, with a warning."""
    is_folder = path.is_dir() and not path.is_symlink()
    inside = contents(path) if is_folder else [path] if os.path.lexists(path) else []
    ours = [file for file in inside if is_ours(file)]
    if len(ours) == len(inside):
        remove(path)
        return
    for file in ours:
        file.unlink()
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):  # not empty
            Path(folder).rmdir()
    why = "in it is what featuremill did not write, or" if is_folder else f"{NOT_OURS}, or it"
    say(f"{path} is kept: {why} was changed since.")


@contextlib.contextmanager
def delivering(
    path: Path,
    *,
    is_named: bool = False,
    is_synced: bool = True,
    digest: Callable[[Path], str] = sha256_of,
) -> Iterator[Path]:
    """Yield a temporary path. If the block succeeds, it becomes the file `path`, which is recorded;
    another file there is moved aside.

    `digest` returns the sha256 of the temporary file. `is_named` is as in `give_way`.
    """
    if is_named and path.is_dir():  # hours earlier
        give_way(path, is_named=True)
    with replacing(path, is_synced) as temporary:
        yield temporary
        sha256 = {"": digest(temporary)}
        if is_synced:  # before `give_way`: a sync may take minutes, and a user may save a file
            sync(temporary)
        give_way(path, is_named=is_named)
        # Recorded before the rename: the process may be killed after it.
        _append(path.parent, path.name, temporary, sha256)
    _append(path.parent, path.name, path, sha256)


@contextlib.contextmanager
def delivering_folder(
    path: Path, digests: Callable[[Path], Mapping[str, str]] | None = None
) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` and is recorded, as a file of `delivering` is.

    `digests` returns the sha256 of each file in the folder, by its path inside.
    """
    with replacing_folder(path, is_synced=False) as temporary:
        yield temporary
        sha256_by_name = (digests or digests_at)(temporary)
        sync_folder(temporary)  # as in `delivering`
        give_way(path)
        _append(path.parent, path.name, temporary, sha256_by_name)


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` as `delivering` does, readable by people."""
    with delivering(path) as temporary:
        temporary.write_text(as_text(value), "utf-8")


def note(path: Path) -> None:
    """Record that featuremill wrote the file, or all files of the folder, at `path`."""
    _append(path.parent, path.name, path, digests_at(path))


def digests_at(path: Path) -> dict[str, str]:
    """Return the sha256 of each file below the folder `path` by its path inside; of a file, its own
    under ""."""
    if not path.is_dir():
        return {"": sha256_of(path)}
    files = sorted(file for file in contents(path) if file.is_file())
    return {str(file.relative_to(path)): sha256_of(file) for file in files}


def latest(path: Path) -> dict[str, Any] | None:
    """Return the last line of the records about the file at `path`."""
    lines = [line for *_, of_record in _entries(path) for line in of_record]
    return lines[-1] if lines else None


@contextlib.contextmanager
def touching(path: Path, before: Mapping[str, Any] | None = MappingProxyType({})) -> Iterator[None]:
    """Record the looks of the file at `path` after the block, which changes its times, as Snakemake
    does at the end of a job, or removes another hard link to it.

    `before` is the `latest` line at the start of the job. If the job recorded nothing, featuremill
    wrote the file. If it recorded other looks, a person changed the file. By default, there was no
    job: only a file with recorded looks is recorded again.
    """
    stamp = looks(path) if path.is_file() else None
    same = [
        (folder, name, {"": line["sha256"]})
        for folder, name, lines in _entries(path)
        for line in lines
        if line["seen"] == stamp
    ]
    is_recorded = latest(path) != before or any(
        looks(file) == line["seen"]
        for file in (contents(path) if path.is_dir() else ())
        for *_, lines in _entries(file)
        for line in lines
    )
    yield
    if same:
        folder, name, sha256 = same[-1]
        _append(folder, name, path, sha256)
    elif not is_recorded and path.exists() and not is_ours(path):
        note(path)


def _entries(
    path: Path, read: Callable[[Path], Lines] | None = None
) -> Iterator[tuple[Path, str, list[dict[str, Any]]]]:
    """Yield, for each record, its folder, its name of the file at `path`, and its lines about it,
    the latest last."""
    parts = path.absolute().parts
    for depth in range(len(parts) - 1, max(0, len(parts) - 1 - MOST_ABOVE), -1):
        folder, name = Path(*parts[:depth]), "/".join(parts[depth:])
        yield folder, name, (read or _read)(folder / formats.RECORD).get(name, [])


_known: dict[Path, tuple[list[int], Lines]] = {}
"""A cache: the lines of records, and the looks of the records when they were read."""
_compacted: dict[Path, int] = {}
"""The size in bytes of each record when this process last compacted it."""


def _read(record: Path) -> Lines:
    try:
        stamp = looks(record)
        if (known := _known.get(record)) and known[0] == stamp:
            return known[1]
        text = record.read_text("utf-8", "replace")
    except OSError:
        return {}
    lines: Lines = {}
    for line in text.splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):  # half a line of a kill
            value = json.loads(line)
            if isinstance(value["sha256"], str) and isinstance(value["seen"], list):
                lines.setdefault(value["name"], []).append(value)
    _known[record] = stamp, lines
    return lines


def _append(folder: Path, name: str, at: Path, digests: Mapping[str, str]) -> None:
    """Append lines to the record of `folder` about the file or folder that has or gets the `name`
    in it and is now `at` a path, with the `digests` of its files (`digests_at`). On a full disk
    they are lost, but no file is."""
    if is_temporary(folder.parent):  # recorded as a whole later
        return
    record, lines = folder / formats.RECORD, list[dict[str, Any]]()
    for inside, sha256 in digests.items():
        new = {"name": f"{name}/{inside}" if inside else name, "sha256": sha256}
        lines.append(new | {"seen": looks(at / inside)})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    with contextlib.suppress(OSError):
        before, known = looks(record) if record.exists() else [0], _known.get(record)
        with record.open("a", encoding="utf-8") as file:
            file.write(text)
        after = looks(record)
        if known and known[0] == before and after[0] == before[0] + len(text):
            for line in lines:  # so that a record of many files is not read after each
                known[1].setdefault(line["name"], []).append(line)
            _known[record] = after, known[1]
        if after[0] > max(MOST_BYTES, 4 * len(text), 2 * _compacted.get(record, 0)):
            read = _read(record).items()
            last = [lines[-1] for name, lines in read if (folder / name).exists()]
            with replacing(record, is_synced=False) as temporary:
                temporary.write_text("".join(json.dumps(line) + "\n" for line in last), "utf-8")
            _compacted[record] = record.stat().st_size


def looks(path: Path, follows: bool = False) -> list[int]:
    """Return size, modification time, ctime and inode of a file. Each write changes the ctime, and
    no program can set it."""
    status = path.stat(follow_symlinks=follows)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _aside(path: Path) -> Path:
    """Return a free name: embeddings.yours-1.h5ad beside embeddings.h5ad."""
    ends = path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:]
    stem = path.name.removesuffix("".join(ends))
    names = (path.with_name(f"{stem}.yours-{n}{''.join(ends)}") for n in itertools.count(1))
    return next(new for new in names if not os.path.lexists(new))
