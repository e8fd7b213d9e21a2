"""Where a run keeps its things, how a file gets its final name, and what its digest is.

results/<run>/plan.json                        what is to be computed (Snakemake's checkpoint)
results/<run>/manifest.parquet                 one row an input record
results/<run>/receipts/<recipe>/<shard>.json   one a finished part (declared to Snakemake)
results/<run>/store/shards/<shard>.arrow       records, named by their content; never deleted by a
rule results/<run>/store/parts/<recipe>/<shard>.arrows
results/<run>/store/journals/<recipe>/<shard>.{arrows,log,lock}
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

DIGEST_LENGTH = 32
"""Hex digits of a shard's or recipe's name: 128 bits."""


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


def recipe_of(settings: Mapping[str, Any]) -> str:
    """Return the digest of everything that determines the values."""
    canonical = json.dumps(settings, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return digest_of([canonical.encode()])


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
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` atomically, readable by people."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
