"""Files: atomic writes, digests, and JSON."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from featuremill.base.errors import IntegrityError, UserError

DIGEST_LENGTH = 32
"""Hex digits of a shard's or recipe's name: 128 bits."""


SEAL = "seal"
"""Key of a JSON file's own digest, which detects damaged numbers and names."""
TEMPORARY = re.compile(r"\.(.+)\.([0-9a-f]{8})")
"""The name of a temporary file or folder; `is_temporary` distinguishes it from others' files."""
Identity = tuple[int, int, int] | None
"""Size, modification time in ns and inode of a file, of which a write changes one; None for no
file."""
MOST_SYNCED = 1_000
"""A folder with more files is synced by one call for the machine, not file by file."""


def digest_of(parts: Iterable[bytes]) -> str:
    """Return the digest of `parts` in their order, as hex."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part)
    return state.hexdigest()[:DIGEST_LENGTH]


def sha256_of(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def files_below(folder: Path) -> list[str]:
    """Return the files below `folder`, sorted, as paths inside it, without files and folders whose
    name begins with a dot.

    Raises:
        OSError: it, or a folder in it, cannot be read.
        UserError: a name is not in UTF-8.
    """

    def fail(error: OSError) -> NoReturn:
        raise error

    listed = []
    for inside, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if name[0] != "."]
        paths = [Path(inside, name) for name in names if name[0] != "."]
        listed += [path.relative_to(folder).as_posix() for path in paths if path.is_file()]
    for name in listed:
        if not name.isascii() and (shown := os.fsencode(name).decode("utf-8", "replace")) != name:
            raise UserError(f"{folder}: the name of {shown} in it is not in UTF-8; rename it.")
    return sorted(listed)


def digest_at(path: Path, *others: Path, digest: Callable[[Path], str] = sha256_of) -> str:
    """Return the sha256 of the file, or of the folder's files, at `path`; one of all if several.
    `digest` returns that of a file."""
    if others:
        several = enumerate((path, *others))
        return digest_of_folder({str(n): digest_at(each, digest=digest) for n, each in several})
    if not path.is_dir():
        return digest(path)
    return digest_of_folder({name: digest(path / name) for name in files_below(path)})


def bytes_at(path: Path) -> int:
    """Return the size of the file, or of the folder's files, at `path`."""
    names = files_below(path) if path.is_dir() else [""]
    return sum((path / name).stat().st_size for name in names)


def digest_of_folder(sha256_by_name: Mapping[str, str]) -> str:
    """Return one sha256 for files of a folder: the digest of the sorted lines of `sha256sum`."""
    lines = [f"{sha256}  {name}\n" for name, sha256 in sorted(sha256_by_name.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def identity_of(path: Path) -> Identity:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def make_own_folder(folder: Path) -> None:
    """Make `folder` for this user, if it is not there, and check that no other user can put files
    into it: its parent may be open to all.

    Raises:
        OSError: it is a link, or another user's, or open to others.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()  # another user's link may lead to a folder of this user
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise OSError("it is a link, or belongs to another user")
    if status.st_mode & 0o022:
        raise OSError("others may write into it; chmod 700 closes it")


@contextlib.contextmanager
def replacing(path: Path, is_synced: bool = True) -> Iterator[Path]:
    """Yield a temporary path in `path`'s folder. If the block ends well, it is synced and becomes
    `path`.

    A reader sees the old file or the complete new one, also after a kill. Without sync this does
    not hold for a machine that loses power: use `sync_folder` later.
    """
    temporary = temporary_file(path)
    try:
        yield temporary
        if is_synced:
            sync(temporary)
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # mkstemp's 0600 would hide results from the group
        temporary.replace(path)
        if is_synced:
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(path: Path, is_synced: bool = True) -> Iterator[Path]:
    """Yield a temporary folder. If the block ends well, it is synced, unless the block did so, and
    becomes `path`."""
    temporary = temporary_folder(path)
    try:
        inside = temporary / path.name  # mkdir heeds the umask, mkdtemp's 0700 does not
        inside.mkdir()
        yield inside
        if is_synced:
            sync_folder(inside)
        remove(path)
        inside.replace(path)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary)


def temporary_file(path: Path) -> Path:
    """Make an empty temporary file beside `path` and return it; after a kill `is_temporary`
    recognizes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    return _certified(Path(new), path.name)


def temporary_folder(path: Path) -> Path:
    """Make an empty temporary folder beside `path` and return it, like `temporary_file`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.")
    return _certified(Path(new), path.name)


@contextlib.contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """Yield a new folder for temporary files, beside `path`, and remove it with its content."""
    folder = temporary_folder(path)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left(path: Path) -> None:
    """Remove the temporary files and folders that killed processes left of `path`. No other process
    may be writing it."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        if is_temporary(left):
            remove(left)


def is_temporary(path: Path) -> bool:
    """Return whether `replacing`, `replacing_folder` or `scratch` made the file or folder at
    `path`: its name has a digest of its inode, which no other file and no copy has."""
    named = TEMPORARY.fullmatch(path.name)
    try:
        return named is not None and named[2] == _mark(named[1], path.lstat().st_ino)
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_in_temporary(path: Path) -> bool:
    """Return whether the file at `path` is a temporary one, or is in a temporary folder."""
    return any(map(is_temporary, (path, *path.parents)))


def _certified(new: Path, name: str) -> Path:
    """Rename a file or folder, so that its name identifies it as temporary."""
    return new.rename(new.with_name(f".{name}.{_mark(name, new.lstat().st_ino)}"))


def _mark(name: str, inode: int) -> str:
    return hashlib.sha256(f"featuremill {name} {inode}".encode()).hexdigest()[:8]


def sync_folder(folder: Path) -> None:
    files = [*folder.rglob("*"), folder]
    if len(files) > MOST_SYNCED:
        os.sync()
    else:
        for file in files:
            sync(file)


def remove(path: Path) -> None:
    """Remove the file, or the folder with its content, at `path`, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Force the file or folder `path` to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in the file `path`; None if the file is missing or invalid."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: Path, value: Any, is_synced: bool = True) -> None:
    """Write `value` to `path` atomically, readable by people."""
    with replacing(path, is_synced) as temporary:
        temporary.write_text(as_text(value), "utf-8")


def as_text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    return {**value, SEAL: seal_of(value)}


def seal_of(value: Mapping[str, Any]) -> str:
    """Return the digest of the JSON object `value` for its key SEAL."""
    canonical = json.dumps(value, sort_keys=True)
    return digest_of([canonical.encode()])


Number = int | float
"""A count or a measure; 0 and 0.0 are written differently, and stay as they were."""


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object: keys in the order of the fields, without those that were not
        set."""
        return self.model_dump(mode="json", exclude_unset=True)


class JsonFile(Record):
    NEWEST: ClassVar[int] = 1
    """The newest `version` that this class reads."""
    REMEDY: ClassVar[str] = "delete it and run the same command again: what is computed is kept"
    IS_SEALED: ClassVar[bool] = True
    """Whether the file is written with its own digest. A file without one is read unchecked: early
    files have none."""

    version: int = 1
    seal: str | None = Field(default=None, exclude=True)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the content of the file `path`.

        Raises:
            FileNotFoundError: there is none.
            IntegrityError: it is not what was written.
            UserError: a newer featuremill wrote it.
        """
        content = cls._parsed(path)
        if content is None:
            raise IntegrityError(f"{path}: its content is not what was written; {cls.REMEDY}.")
        return content

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """Return the content of the file `path`; None if it is missing or damaged.

        Raises:
            UserError: a newer featuremill wrote it.
        """
        try:
            return cls._parsed(path)
        except FileNotFoundError:
            return None

    @classmethod
    def _parsed(cls, path: Path) -> Self | None:
        try:
            text = path.read_text("utf-8")
            value = json.loads(text)
        except FileNotFoundError:
            raise
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict):
            return None
        version = value.get("version", 1)
        if isinstance(version, int) and version > cls.NEWEST:
            raise UserError(
                f"{path}: a newer featuremill wrote it (version {version} of this file, and here "
                f"{cls.NEWEST} is the newest that is known); use that featuremill, or a new `run`."
            )
        if value.pop(SEAL, None) not in (None, seal_of(value)):
            return None
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None

    def write(self, path: Path, is_synced: bool = True) -> None:
        """Write the file `path`, readable by people; readers see the old or the new content."""
        write_json(path, self.content(), is_synced)

    def content(self) -> dict[str, Any]:
        value = self.as_json()
        return sealed(value) if self.IS_SEALED else value
