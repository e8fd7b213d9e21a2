"""The files in receipts/ and store/ of a run that featuremill wrote: those with a digest in their
path, and those in the record (`store.ours`)."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from pathlib import Path

from featuremill.store import delivered_shards, ours
from featuremill.store.files import sha256_of
from featuremill.store.formats import FAILED, index_of
from featuremill.store.results import Results

_HEX = "[0-9a-f]{32}"
PLACES = re.compile(
    rf"receipts/(delivered/\d{{4}}\.json|{_HEX}(/{_HEX}\.json)?)"
    rf"|store/((journals|parts|shards)(/{_HEX})?"
    rf"|journals/{_HEX}/{_HEX}\.(arrows|log|lock)"
    rf"|parts/{_HEX}/{_HEX}\.(arrows|json|telemetry\.jsonl|bad)"
    rf"|shards/{_HEX}\.(arrow|bad)"
    rf"|{delivered_shards.IDENTITIES}/{_HEX}/(rows\.bin|rows\.npy|survey\.json))"
)
"""Paths of files, or of links in their place, relative to the run's folder."""
LOCKS = {"plan.lock", "merge.lock", "deliver.lock"}


def is_stored(folder: Results, path: Path) -> bool:
    """Return whether featuremill wrote the file `path` in receipts/ or store/ of a run."""
    inside = path.relative_to(folder.root).as_posix()
    if PLACES.fullmatch(inside) or inside == folder.store.name:  # which may be a link
        return True
    first, *others = inside.split("/")
    if first != folder.store.name:
        return False
    match others:
        case [name] if name in LOCKS:
            return not path.is_symlink() and not path.stat().st_size
        case [name] if name in FAILED and not ours.is_ours(path):
            # Early versions did not record them.
            copied = folder.root / name
            return ours.is_ours(copied) and sha256_of(copied) == sha256_of(path)
        case [delivered_shards.FOLDER, key, *names]:
            return "/".join(names) in _delivered(folder.store / delivered_shards.FOLDER / key)
    return ours.is_ours(path)


def _delivered(shard_folder: Path) -> set[str]:
    """Return the names of the files of a shard that was delivered in its folder."""
    path = shard_folder / delivered_shards.ANSWER
    answer = delivered_shards.DeliveredShard.find(path) if path.is_file() else None
    if answer is None:
        return set()
    names = [file.path for file in answer.files]
    return {delivered_shards.ANSWER, delivered_shards.FAILURES, *names, *map(index_of, names)}


def discard(folder: Results, inside: Path) -> None:
    """Remove the files of featuremill in `inside`, a folder in receipts/ or store/ of a run; then
    remove empty folders."""
    files = (Path(each, name) for each, _, names in os.walk(inside) for name in names)
    stored = [path for path in files if is_stored(folder, path)]
    # Files that list others come last, so that the others are still known after a kill.
    for path in sorted(stored, key=lambda path: path.name == delivered_shards.ANSWER):
        path.unlink(missing_ok=True)
    for each, _, _ in os.walk(inside, topdown=False):
        with contextlib.suppress(OSError):  # not empty
            Path(each).rmdir()


def forget_delivered(folder: Results, keys: Collection[str]) -> None:
    """Remove the folders in store/delivered/ except those of `keys`; without keys, also the records
    that were laid out by shard."""
    shards = folder.store / delivered_shards.FOLDER
    for each in shards.iterdir() if shards.is_dir() else ():
        if each.name not in keys:
            discard(folder, each)
    if not keys:
        discard(folder, shards)
        discard(folder, folder.store / delivered_shards.IDENTITIES)
