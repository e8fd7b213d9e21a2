"""What of a run can go, by how much of it is to be kept."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from featuremill.base.errors import UserError
from featuremill.merge.outputs import FILES, partial_results
from featuremill.store import command_line, run_lock
from featuremill.store.files import read_sealed
from featuremill.store.results import Results

KEEP = ("all", "parts", "results", "nothing")
"""From the least that goes to all of it; each but the last takes what those before it take."""
TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}")
"""How `store.replacing` names what it has not finished."""
OLD_SECONDS = 3600.0
"""A temporary file that nobody wrote to for so long is taken for left behind."""
STORED = ("shards", "parts", "journals")


class Category(NamedTuple):
    """Files of one kind, said in a few words, and the folders that go with the last of them."""

    what: str
    paths: list[Path]
    folders: tuple[Path, ...] = ()


def removable(folder: Results, keep: str) -> list[Category]:
    """Return what can go when `keep` (one of `KEEP`) is to be kept, in the order of removal.

    A receipt goes before its part, and a part before its shard: what a kill leaves half done is
    then still computed right.

    Raises:
        UserError: when what the plan needs is to be kept, and there is no plan.
    """
    if keep == "nothing":
        return _everything(folder)
    found = _litter(folder)
    if keep == "parts":
        found += _beside_the_plan(folder)
    elif keep == "results":
        found += _made_of(folder)
    return _each_once(found)


def _litter(folder: Results) -> list[Category]:
    """Return what no run ever reads again."""
    store, receipts = folder.store, folder.root / "receipts"
    everywhere = [*files_in(folder.root), *files_in(store)]
    for place in (receipts, folder.root / "figures", *(store / name for name in STORED)):
        everywhere += files_below(place)
    return [
        Category(
            "journals and locks of finished parts",
            [path for path in files_below(store / "journals") if _is_of_a_part(folder, path)],
        ),
        Category(
            "telemetry of parts that were never finished",
            [path for path in files_below(store / "parts") if _is_orphaned(folder, path)],
        ),
        Category("damaged files", [path for path in everywhere if path.suffix == ".bad"]),
        _half_written(folder.root, everywhere),
        Category("spool of a killed plan", [*files_below(store / "spool")], (store / "spool",)),
        Category("values of a killed merge", [*files_below(store / "merge")], (store / "merge",)),
        *([_partial(folder.root)] if (folder.root / "manifest.json").exists() else []),
    ]


def _partial(root: Path) -> Category:
    """Return the partial results, one of which may be a folder."""
    names = partial_results()
    folders = _folders(root, names)
    files = [path for path in files_in(root) if path.name in names]
    files += [path for folder in folders for path in files_below(folder)]
    return Category("partial results", files, tuple(folders))


def _folders(root: Path, patterns: Iterable[str]) -> list[Path]:
    """Return the folders in `root` with such names; a link is none."""
    found = [path for pattern in patterns for path in root.glob(pattern)]
    return [path for path in found if path.is_dir() and not path.is_symlink()]


def _is_of_a_part(folder: Results, path: Path) -> bool:
    """Tell whether a journal's file belongs to a part that is finished."""
    part = folder.part(path.parent.name, path.name.partition(".")[0])
    return part.exists() and part.with_suffix(".json").exists()


def _is_orphaned(folder: Results, path: Path) -> bool:
    """Tell whether a file of samples has neither a part nor a journal from which one goes on."""
    shard = path.name.partition(".")[0]
    if path != folder.telemetry(path.parent.name, shard):
        return False
    journal = folder.journal(path.parent.name, shard)
    goes_on = folder.part(path.parent.name, shard), journal, journal.with_suffix(".log")
    return not any(place.exists() for place in goes_on)


def _half_written(root: Path, paths: Iterable[Path]) -> Category:
    """Return the temporary files of `paths`, and those of folders, that nobody writes any more."""
    results = (*FILES.values(), *partial_results())
    folders = _folders(root, [f".{name}.????????" for name in results])
    together = [[path] for path in paths if TEMPORARY.fullmatch(path.name)]
    # The first files of a folder are finished long before the last.
    together += [list(files_below(folder)) for folder in folders]
    at_work = _open_files() if together else set()
    left = [files for files in together if all(_is_abandoned(path, at_work) for path in files)]
    found = [path for files in left for path in files]
    return Category("half-written files", found, tuple(folders))


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
    plans = [read_sealed(path) for path in (folder.plan, folder.store / "plan.json")]
    recipes = {plan["recipe"] for plan in plans if plan}
    shards = {shard["shard"] for plan in plans if plan for shard in plan["shards"]}
    if not recipes:
        raise UserError(
            f"{folder.plan}: there is no plan that says what is needed; make one first "
            f"({command_line.again(folder.root)}), or give --keep nothing to start over."
        )
    computed: list[Path] = []
    for place in _computed(folder):
        computed += [
            path
            for path in files_below(place)
            if not (path.parent.name in recipes and path.name.lstrip(".")[:32] in shards)
        ]
    others = [path for path in computed if path.parent.name not in recipes]
    gone = [path for path in computed if path.parent.name in recipes]
    unnamed = [path for path in files_below(folder.store / "shards") if _shard(path) not in shards]
    return [
        Category("parts and receipts of other recipes", others, _computed(folder)),
        Category("parts and receipts of shards that left the plan", gone),
        Category("shards that left the plan", unnamed),
    ]


def _shard(path: Path) -> str:
    return path.name.lstrip(".").partition(".")[0]


def _computed(folder: Results) -> tuple[Path, ...]:
    """Return the folders with a folder a recipe, in the order of removal."""
    return folder.root / "receipts", folder.store / "parts", folder.store / "journals"


def _made_of(folder: Results) -> list[Category]:
    """Return everything but the results, the plan and its manifest."""
    receipts, parts, journals = _computed(folder)
    shards = folder.store / "shards"
    kept = [path for path in files_below(parts) if path.suffix == ".json"]
    return [
        Category("receipts", [*files_below(receipts), *kept], (receipts,)),
        Category("parts", [*files_below(parts)], (parts,)),
        Category("journals", [*files_below(journals)], (journals,)),
        Category("shards", [*files_below(shards)], (shards,)),
    ]


def _everything(folder: Results) -> list[Category]:
    """Return the whole run; its logs are where they are known to be only in results/<run>."""
    root, store = folder.root, folder.store
    stored, here = files_below(store, is_followed=True), files_below(root, is_followed=True)
    found = [
        Category("receipts", [*files_below(root / "receipts")]),
        Category("store", [*stored], (store,)),
        Category("results, plan and whatever else is here", [*here], (root,)),
    ]
    run = run_lock.whole_path(root)
    if run.parent.name == "results":
        logs = run.parent.parent / "logs" / run.name
        found.append(Category("logs", [*files_below(logs)], (logs,)))
    found.append(Category("owner's file", [run_lock.path_of(root)]))
    return _each_once(found)


def files_in(folder: Path) -> list[Path]:
    """Return the files in `folder`, a link to one too, but not what is in its folders."""
    try:
        with os.scandir(folder) as entries:
            return [Path(e.path) for e in entries if not e.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def files_below(folder: Path, is_followed: bool = False) -> Iterator[Path]:
    """Yield the files in `folder` and its folders; no link is followed, and a link is a file.

    With `is_followed`, `folder` itself may be a link.
    """
    if folder.is_symlink() and not is_followed:
        return
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from files_below(Path(entry.path))
        else:
            yield Path(entry.path)


def _each_once(categories: list[Category]) -> list[Category]:
    """Return the categories with each file in the first that has it."""
    seen: set[Path] = set()
    found = []
    for category in categories:
        paths = [path for path in category.paths if path not in seen]
        seen.update(paths)
        found.append(category._replace(paths=paths))
    return found
