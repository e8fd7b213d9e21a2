"""What of a run can go, by how much of it is to be kept; and how it goes.

A receipt goes before its part, and a part before its shard: what a kill leaves half done is then
still computed right. No link is followed, but for a linked `store`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from featuremill.base.errors import UserError
from featuremill.base.progress import Progress
from featuremill.store import command_line, run_lock
from featuremill.store.formats import FILES
from featuremill.store.plan import Plan
from featuremill.store.results import Results

KEEP = ("all", "parts", "results", "nothing")
"""From the least that goes to all of it; each but the last takes what those before it take."""
TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}")
"""How `store.files.replacing` names what it has not finished."""
OLD_SECONDS = 3600.0
"""A temporary file that nobody wrote to for so long is taken for left behind."""
BLOCK_BYTES = 512
"""What `st_blocks` counts in, whatever the file system."""
log = logging.getLogger("featuremill.clean")


class Category(NamedTuple):
    """Files of one kind, said in a few words, and the folders that go with the last of them."""

    what: str
    paths: list[Path]
    folders: tuple[Path, ...] = ()


class Usage(NamedTuple):
    """Files and the bytes that they take on disk."""

    files: int
    bytes: int


def removable(folder: Results, keep: str) -> list[Category]:
    """Return what can go when `keep` (one of `KEEP`) is to be kept, in the order of removal, each
    file once.

    Raises:
        UserError: when what the plan needs is to be kept, and there is no plan.
    """
    if keep == "nothing":
        found = _everything(folder)
    else:
        found = _litter(folder)
        found += _beside_the_plan(folder) if keep == "parts" else []
        found += _made_of(folder) if keep == "results" else []
    seen: set[Path] = set()
    each_once = []
    for category in found:
        paths = [path for path in category.paths if path not in seen]
        seen.update(paths)
        each_once.append(category._replace(paths=paths))
    return each_once


def usage_of(categories: Iterable[Category]) -> list[Usage]:
    """Return how many files each category has and what they take; one with several names counts
    once."""
    seen: set[tuple[int, int]] = set()
    each = []
    for category in categories:
        sizes = [size for path in category.paths if (size := _new_bytes(path, seen)) is not None]
        each.append(Usage(len(sizes), sum(sizes)))
    return each


def remove(categories: Iterable[Category]) -> Usage:
    """Remove the files, and the folders that are empty then; return what that freed."""
    seen: set[tuple[int, int]] = set()
    num_files = num_bytes = 0
    shown = Progress(log, "removing", "files")
    for category in categories:
        for path in category.paths:
            shown.at(num_files)
            if (freed := _new_bytes(path, seen)) is not None:
                path.unlink(missing_ok=True)
                num_files, num_bytes = num_files + 1, num_bytes + freed
        for folder in category.folders:
            for inside, _, _ in os.walk(folder, topdown=False):
                with contextlib.suppress(OSError):  # not empty, a link, or gone
                    Path(inside).rmdir()
    return Usage(num_files, num_bytes)


def _new_bytes(path: Path, seen: set[tuple[int, int]]) -> int | None:
    """Return what the file adds to those `seen`; None when it has vanished."""
    try:
        about = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if (key := (about.st_dev, about.st_ino)) in seen:
        return 0
    seen.add(key)
    return about.st_blocks * BLOCK_BYTES


def _litter(folder: Results) -> list[Category]:
    """Return what no run ever reads again."""
    store = folder.store
    scratch = (store / "spool", store / "merge")
    found = [
        Category(
            "journals and locks of finished parts",
            [path for path in _below(store / "journals") if _is_of_a_part(folder, path)],
        ),
        Category(
            "telemetry of parts that were never finished",
            [path for path in _below(store / "parts") if _is_orphaned(folder, path)],
        ),
        *_halves(folder),
        Category("scratch files of a killed plan or merge", _below(*scratch), scratch),
    ]
    if folder.delivery.exists():
        partial = folder.partial.root
        found.append(Category("partial results", _below(partial), (partial,)))
    return found


def _is_of_a_part(folder: Results, path: Path) -> bool:
    """Tell whether a journal's file belongs to a part that is finished."""
    names = path.parent.name, path.name.partition(".")[0]
    return folder.part(*names).exists() and folder.kept_receipt(*names).exists()


def _is_orphaned(folder: Results, path: Path) -> bool:
    """Tell whether a file of samples has neither a part nor a journal from which one goes on."""
    names = path.parent.name, path.name.partition(".")[0]
    if path != folder.telemetry(*names):
        return False
    journal = folder.journal(*names)
    goes_on = folder.part(*names), journal, journal.with_suffix(".log")
    return not any(place.exists() for place in goes_on)


def _halves(folder: Results) -> list[Category]:
    """Return damaged files, and temporary ones, and folders, that nobody writes any more."""
    root, store = folder.root, folder.store
    places = (*_computed(folder), store / "shards", root / "figures")
    paths = [*_files_in(root), *_files_in(store), *_below(*places)]
    folders = [
        path
        for name in FILES.values()
        for path in root.glob(f".{name}.????????")
        if path.is_dir() and not path.is_symlink()
    ]
    together = [[path] for path in paths if TEMPORARY.fullmatch(path.name)]
    # The first files of a folder are finished long before the last.
    together += [_below(folder) for folder in folders]
    at_work = _open_files() if together else set()
    left = [files for files in together if all(_is_abandoned(path, at_work) for path in files)]
    return [
        Category("damaged files", [path for path in paths if path.suffix == ".bad"]),
        Category("half-written files", [file for files in left for file in files], tuple(folders)),
    ]


def _is_abandoned(path: Path, at_work: set[tuple[int, int]]) -> bool:
    try:
        about = path.lstat()
    except FileNotFoundError:
        return True
    is_old = time.time() - about.st_mtime > OLD_SECONDS
    return is_old and (about.st_dev, about.st_ino) not in at_work


def _open_files() -> set[tuple[int, int]]:
    """Return device and inode of each file that a process of ours has open on this machine."""
    found = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # somebody else's, or closed meanwhile
            about = descriptor.stat()
            found.add((about.st_dev, about.st_ino))
    return found


def _beside_the_plan(folder: Results) -> list[Category]:
    """Return what neither plan.json nor the store's plan names."""
    plans = [plan for path in (folder.plan, folder.kept_plan) if (plan := Plan.find(path))]
    if not plans:
        raise UserError(
            f"{folder.plan}: there is no plan that says what is needed; make one first "
            f"({command_line.again(folder.root)}), or give --keep nothing to start over."
        )
    recipes = {plan.recipe for plan in plans}
    shards = {entry.shard for plan in plans for entry in plan.shards}
    computed = [
        path
        for path in _below(*_computed(folder))
        if path.parent.name not in recipes or path.name.lstrip(".")[:32] not in shards
    ]
    cut = _below(folder.store / "shards")
    unnamed = [path for path in cut if path.name.lstrip(".").partition(".")[0] not in shards]
    return [
        Category("parts and receipts that the plan does not name", computed, _computed(folder)),
        Category("shards that left the plan", unnamed),
    ]


def _computed(folder: Results) -> tuple[Path, Path, Path]:
    """Return the folders with a folder a recipe, in the order of removal."""
    return folder.root / "receipts", folder.store / "parts", folder.store / "journals"


def _made_of(folder: Results) -> list[Category]:
    """Return everything but the results, the plan and its manifest."""
    receipts, parts, journals = _computed(folder)
    shards = folder.store / "shards"
    kept = [path for path in _below(parts) if path.suffix == ".json"]
    return [
        Category("receipts", [*_below(receipts), *kept], (receipts,)),
        Category("parts", _below(parts), (parts,)),
        Category("journals", _below(journals), (journals,)),
        Category("shards", _below(shards), (shards,)),
    ]


def _everything(folder: Results) -> list[Category]:
    """Return the whole run; its logs are where they are known to be only in results/<run>."""
    root, store = folder.root, folder.store
    here = [*_files_under(root)]
    found = [
        Category("receipts", _below(root / "receipts")),
        Category("store", [*_files_under(store)], (store,)),
        Category("results, plan and whatever else is here", here, (root,)),
    ]
    run = run_lock.whole_path(root)
    if run.parent.name == "results":
        logs = run.parent.parent / "logs" / run.name
        found.append(Category("logs", _below(logs), (logs,)))
    return [*found, Category("owner's file", [run_lock.path_of(root)])]


def _files_in(folder: Path) -> list[Path]:
    """Return the files in `folder`, a link to one too, but not what is in its folders."""
    there = folder.iterdir() if folder.is_dir() else ()
    return [path for path in there if path.is_symlink() or not path.is_dir()]


def _below(*folders: Path) -> list[Path]:
    """Return the files in `folders` and in their folders; a link, also one of `folders`, leads
    nowhere."""
    return [p for folder in folders if not folder.is_symlink() for p in _files_under(folder)]


def _files_under(folder: Path) -> Iterator[Path]:
    """Yield the files in `folder`, which may be a link, and in its folders; a link is a file."""
    for place, folders, files in os.walk(folder):
        for name in files:
            yield Path(place, name)
        for name in folders:
            if (path := Path(place, name)).is_symlink():
                yield path
