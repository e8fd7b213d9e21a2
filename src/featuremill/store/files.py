"""Where a run keeps its things, how a file gets its final name, and what its digest is.

results/<run>/plan.json                        what is to be computed (Snakemake's checkpoint)
results/<run>/manifest.parquet                 one row an input record
results/<run>/receipts/<recipe>/<shard>.json   one a finished part (declared to Snakemake)
results/<run>/store/shards/<shard>.arrow       records, named by their content; never deleted by a
rule
results/<run>/store/parts/<recipe>/<shard>.{arrows,json,telemetry.jsonl}
results/<run>/store/journals/<recipe>/<shard>.{arrows,log,lock}
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.base.errors import IntegrityError, UserError

DIGEST_LENGTH = 32
"""Hex digits of a shard's or recipe's name: 128 bits."""


SEAL = "seal"
"""Key of a JSON file's own digest: a damaged byte must not pass for another number or name."""


class RunFolder(NamedTuple):
    """The paths of one run."""

    root: Path

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def manifest(self) -> Path:
        return self.root / "manifest.parquet"

    @property
    def store(self) -> Path:
        return self.root / "store"

    def shard(self, shard: str) -> Path:
        return self.store / "shards" / f"{shard}.arrow"

    def part(self, recipe: str, shard: str) -> Path:
        return self.store / "parts" / recipe / f"{shard}.arrows"

    def telemetry(self, recipe: str, shard: str) -> Path:
        """Return the file that says how the part's job goes, or went."""
        return self.store / "parts" / recipe / f"{shard}.telemetry.jsonl"

    def journal(self, recipe: str, shard: str) -> Path:
        """Return the journal's data file; its log and lock stand beside it."""
        return self.store / "journals" / recipe / f"{shard}.arrows"

    def receipt(self, recipe: str, shard: str) -> Path:
        return self.root / "receipts" / recipe / f"{shard}.json"


def digest_of(parts: Iterable[bytes]) -> str:
    """Return the digest of `parts` in their order, as hex."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part)
    return state.hexdigest()[:DIGEST_LENGTH]


def sha256_of(path: Path) -> str:
    """Return the sha256 of the file `path`, as hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def make_own_folder(folder: Path) -> None:
    """Make `folder` for this user, if it is not there; see that nobody else can put files into it:
    it may lie where everybody writes.

    Raises:
        OSError: when it is a link, somebody else's, or open to others.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = folder.lstat()  # a link of somebody else's may lead to a folder of ours
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        raise OSError("it is a link, or belongs to somebody else")
    if about.st_mode & 0o022:
        raise OSError("others may write into it; chmod 700 closes it")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in `path`'s folder that becomes `path`, synced, when the block ends
    well.

    A reader sees the old file or the whole new one, whatever dies in between.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        sync(temporary)
        temporary.chmod(0o666 & ~_umask())  # mkstemp's 0600 would hide results from the group
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def take_space(descriptor: int, start: int, size: int) -> None:
    """Take disk space from `start` on now: a hole in a file would end in SIGBUS on a full disk.

    Where the system has no such call (macOS), the file only grows.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, size)
    else:
        os.ftruncate(descriptor, max(os.fstat(descriptor).st_size, start + size))


def sync(path: Path) -> None:
    """Force the file or folder `path` to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`; None when it is not there or not whole."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` atomically, readable by people."""
    with replacing(path) as temporary:
        temporary.write_text(as_text(value), "utf-8")


def as_text(value: Any) -> str:
    """Return `value` as JSON that people can read."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """Write the JSON object `value` to `path` atomically, with a digest of itself."""
    write_json(path, sealed(value))


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON object `value` with a digest of itself."""
    return {**value, SEAL: _seal_of(value)}


def read_sealed(path: Path) -> dict[str, Any] | None:
    """Return what `write_sealed` wrote; None when it is not there, or not what was written.

    An object without a seal counts as whole: older ones have none.
    """
    value = read_json(path)
    if value is None:
        return None
    seal = value.pop(SEAL, None)
    return value if seal in (None, _seal_of(value)) else None


def read_plan(folder: RunFolder) -> dict[str, Any]:
    """Return what the plan of `folder` says.

    Raises:
        UserError: when there is none.
        IntegrityError: when it is not what was written.
    """
    if not folder.plan.exists():
        from featuremill.store import command_line  # which reads owners from here

        raise UserError(
            f"{folder.plan}: there is no plan yet; make one first "
            f"({command_line.again(folder.root)})."
        )
    plan = read_sealed(folder.plan)
    if plan is None:
        raise IntegrityError(
            f"{folder.plan}: its content is not what was written; delete it and run the same "
            "command again: what is computed is kept."
        )
    return plan


def _seal_of(value: Mapping[str, Any]) -> str:
    canonical = json.dumps(json.loads(json.dumps(value)), sort_keys=True)
    return digest_of([canonical.encode()])


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
