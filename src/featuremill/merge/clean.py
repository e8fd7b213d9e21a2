"""clean: list the files of a run that are not needed, with their bytes, and remove them.

Nothing is removed without `--yes`, or while the run is computed. Other runs, weights and targets
of links (except a linked `store`) stay, and so does what featuremill did not write, or what was
changed since: `store.ours` has the record of that, `store.stored` the names that content gives. Of
a config these are all its runs, and with `--keep nothing` the files of its steps.

A receipt is removed before its part, and a part before its shard: what an interrupted clean leaves
is still computed right.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import NamedTuple

from featuremill.base import run_log
from featuremill.base.arguments import add_runs
from featuremill.base.errors import UserError
from featuremill.base.locking import claimed
from featuremill.base.log import is_log
from featuremill.base.progress import Progress
from featuremill.base.words import counted, human_bytes
from featuremill.config.runs import named
from featuremill.store import (
    command_line,
    delivered,
    formats,
    lock_holder,
    ours,
    run_lock,
    stored,
)
from featuremill.store.delivery import Delivery
from featuremill.store.files import is_in_temporary, is_temporary
from featuremill.store.plan import Plan
from featuremill.store.results import Results

KEEP = ("all", "parts", "results", "nothing")
"""Values of `--keep`, from the one that removes the fewest files to the one that removes most."""
DEFAULT_KEEP = "parts"
OF_RECIPES = ("receipts", "store/parts", "store/journals")
"""Folders with a folder for each recipe, in the order of removal."""
SHARDS, IDENTITIES = "store/shards", f"store/{delivered.IDENTITIES}"
DELIVERED = f"store/{delivered.FOLDER}"
STORED = (*OF_RECIPES, SHARDS, IDENTITIES, DELIVERED)
"""Folders of a run whose files are removed with `--keep results`, and in part with `parts`."""
OLD_SECONDS = 3600.0
"""A temporary file without a write for so long counts as left behind."""
BLOCK_BYTES = 512
"""The unit of `st_blocks`, whatever the file system."""
MOST_NAMED = 5
log = logging.getLogger("featuremill.clean")


class Usage(NamedTuple):
    """A number of files, and their bytes on disk."""

    files: int
    bytes: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
    parser.add_argument(
        "--keep",
        choices=KEEP,
        default=DEFAULT_KEEP,
        help="all: only litter goes; parts: what an edit of the input still needs stays; results: "
        "only the finished results stay; nothing: start over (default: parts)",
    )
    parser.add_argument("--yes", action="store_true", help="remove it; without this, only list it")


def run(arguments: argparse.Namespace) -> None:
    runs, keep = named(arguments.run_folder), arguments.keep
    folders = [Results(folder) for folder in runs.folders]
    if not runs.is_one:  # one of them may not have begun
        folders = [folder for folder in folders if folder.root.exists()] or folders[:1]
    for folder in folders:
        _check_run(folder)
    with ExitStack() as stack:
        for root in runs.folders:
            stack.enter_context(run_lock.alone(root))
        for folder in folders:
            stack.enter_context(refusing_others(folder))
        by_place, every, places = dict[str, list[Path]](), list[Path](), list[Path]()
        staying = set[Path]()
        for folder in folders:
            if keep == "results":
                check_whole(folder)
            beside = "" if len(folders) == 1 else f"{folder.root}: "
            every += (paths := removable(folder, keep))
            for path in paths:
                by_place.setdefault(f"{beside}{_place_of(folder, path)}", []).append(path)
            places += places_of(folder, keep)
            if keep == "nothing":
                staying |= {*_everything(folder)} - {*paths}
        if len(folders) > 1:
            places.append(folders[0].root.parent)
        for product in runs.steps if keep == "nothing" else ():
            of_step = [
                *map(Path, (*product.removable, *product.logs, *filter(None, [product.state])))
            ]
            places += of_step
            below = [path for place in of_step for path in _at(place)]
            if product.lock and lock_holder.is_held(Path(product.lock)):
                raise UserError(
                    f"{Path(product.lock).parent}: a process is making {product.label}; wait for "
                    "it, or stop it."
                )
            has_record = any(ours.latest(Path(file)) for file in product.files)
            logs = {*map(Path, product.logs)}
            ours_of_step = [
                path
                for path in below
                if (
                    has_record or is_log(path)
                    if path in logs
                    else _is_lock(path, product.lock) or _is_beside(path) or ours.is_ours(path)
                )
            ]
            staying |= {*below} - {*ours_of_step}
            if others := [path for path in ours_of_step if path not in every]:
                by_place[product.label] = others
                every += others
        if kept := sorted(staying - {*every}):
            log.info("%s", _said_of(kept))
        for place, paths in by_place.items():
            log.info("%s: %s", place, _told(usage_of(paths)))
        if not every:
            is_default = keep == DEFAULT_KEEP
            option = "" if is_default else f"with --keep {keep} "
            more = "; --keep results and --keep nothing go further" if is_default else ""
            log.info("%sthere is nothing to remove%s", option, more)
        elif arguments.yes:
            log.info("removed: %s", _told(remove(every, places)))
        else:
            log.info("in all: %s; give --yes to remove it", _told(usage_of(every)))


def after_run(run_folder: Path, keep: str) -> str:
    """Remove the files that the config's `keep` does not name, and return a line about them.

    The main Snakemake process, which has the lock of the run, calls it at the end.

    Raises:
        UserError: the results are not whole, or a command works on the run.
    """
    folder = Results(run_folder)
    with refusing_others(folder):
        check_whole(folder)
        removed = remove(removable(folder, keep), places_of(folder, keep))
    return f"keep: {keep}: removed {_told(removed)}." if removed.files else ""


def _told(used: Usage) -> str:
    return f"{counted(used.files, 'file')}, {human_bytes(used.bytes)}"


def _check_run(folder: Results) -> None:
    """Refuse a folder without a plan and its records.parquet, and without a store."""
    is_planned = folder.records.exists() and folder.find_plan() is not None
    if not is_planned and not (folder.store / "plan.lock").exists():
        raise UserError(f"{folder.root}: there is no run here; name a folder such as results/demo.")


@contextlib.contextmanager
def refusing_others(folder: Results) -> Iterator[None]:
    """Lock the run for the block, so that plan and merge wait.

    Raises:
        UserError: a command works on the run.
    """
    with ExitStack() as stack:
        for verb in ("plan", "merge") if folder.store.is_dir() else ():
            # A missing file is created, as a first merge may begin at any moment.
            path = folder.store / f"{verb}.lock"
            if claimed(stack.enter_context(path.open("a")), path) is False:
                raise UserError(
                    f"{folder.root}: a featuremill {verb} works on this run; wait for it, or stop "
                    "it."
                )
        run_lock.refuse_jobs(folder.root)
        yield


def check_whole(folder: Results) -> None:
    """Refuse results that are not finished, not those of the plan, or changed since merge.

    Raises:
        UserError: with the file, and what to do.
    """
    if problem := _problem(folder):
        raise UserError(
            f"{problem}, so their parts have to stay; let the run come to its end first "
            f"({command_line.again(folder.root)}), or give --keep nothing to start over."
        )


def _problem(folder: Results) -> str:
    plan, results = folder.find_plan(), folder.find_delivery()
    if results is None:
        return f"{folder.delivery}: there are no finished results"
    if plan is None or not _belong(folder, plan, results):
        return f"{folder.delivery}: these results are not those of {folder.plan.name}"
    for name, told in results.outputs.items():
        file = folder.root / name
        if not file.exists():
            return f"{file}: this result is gone"
        if not told.is_at(file):
            return f"{file}: this is not the file that merge wrote"
    return ""


def _belong(folder: Results, plan: Plan, results: Delivery) -> bool:
    """Return whether the results are those of the plan and of the parts that have receipts."""
    if not results.is_of(plan):
        return False
    here = (entry for entry in results.parts if folder.receipt(plan.recipe, entry).exists())
    receipts = ((shard, folder.find_receipt(plan.recipe, shard)) for shard in here)
    return all(found and found.part == results.parts[shard] for shard, found in receipts)


def removable(folder: Results, keep: str) -> list[Path]:
    """Return the files that are not needed for what to `keep` (one of `KEEP`), each once, in the
    order of removal.

    Raises:
        UserError: what the plan needs is to be kept, and there is no plan.
    """
    if keep == "nothing":
        found = _everything(folder)
    else:
        found = _litter(folder)
        is_needed = _needed_by_plan(folder) if keep == "parts" else lambda *_: False
        for place in STORED if keep != "all" else ():
            paths = sorted(_below(folder.root / place), key=lambda path: path.suffix != ".json")
            found += [path for path in paths if not is_needed(place, path)]
    own = cache(ours.is_ours)
    return [path for path in dict.fromkeys(found) if _is_own(folder, path, own)]


def _needed_by_plan(folder: Results) -> Callable[[str, Path], bool]:
    """Return a function of a place in `STORED` and a file in it: whether plan.json, or the plan in
    the store, names the file."""
    plans = [plan for path in (folder.plan, folder.kept_plan) if (plan := Plan.find(path))]
    if not plans:
        raise UserError(
            f"{folder.plan}: there is no plan, so what is needed is unknown; make one first "
            f"({command_line.again(folder.root)}), or give --keep nothing to start over."
        )
    recipes = {plan.recipe for plan in plans}
    shards = {entry.shard for plan in plans for entry in plan.shards}

    def is_needed(place: str, path: Path) -> bool:
        if place in (IDENTITIES, DELIVERED):
            return place == DELIVERED
        is_of_plan = path.name.lstrip(".")[:32] in shards
        return is_of_plan and (place == SHARDS or path.parent.name in recipes)

    return is_needed


def _is_own(folder: Results, path: Path, is_ours: Callable[[Path], bool]) -> bool:
    """Return whether featuremill wrote the file and it is unchanged: by the record, or by a name
    that content gives."""
    if not path.is_relative_to(folder.root):  # the owner's file
        return True
    if _is_beside(path) or is_in_temporary(path):
        return True
    inside = path.relative_to(folder.root)
    first = inside.parts[0]
    if first in ("receipts", folder.store.name):
        return stored.is_stored(folder, path)
    if inside == Path(run_log.NAME):
        return is_log(path, run_log.ENTRY)
    if first == folder.logs.name and path.suffix == ".log" and is_log(path):
        return True
    return is_ours(folder.root / first) or (inside != Path(first) and is_ours(path))


def _is_lock(path: Path, lock: str) -> bool:
    return lock == str(path) and not path.is_symlink() and not path.stat().st_size


def _is_beside(path: Path) -> bool:
    """Return whether it is a record or Snakemake's."""
    return path.name in formats.BESIDE


def _said_of(staying: Sequence[Path]) -> str:
    named = ", ".join(map(str, staying[:MOST_NAMED]))
    more = f" and {len(staying) - MOST_NAMED:,} more" if len(staying) > MOST_NAMED else ""
    return (
        f"stays: {named}{more}: featuremill did not write "
        f"{'it, or it was' if len(staying) == 1 else 'them, or they were'} changed since"
    )


def usage_of(paths: Iterable[Path]) -> Usage:
    """Return the number of files and their bytes; a file with several names counts once."""
    seen: set[tuple[int, int]] = set()
    sizes = [size for path in paths if (size := _new_bytes(path, seen)) is not None]
    return Usage(len(sizes), sum(sizes))


def places_of(folder: Results, keep: str) -> list[Path]:
    """Return the folders that are removed, with those in them, once they are empty."""
    if keep == "nothing":
        return [folder.store.resolve(), folder.root]
    places = [folder.root / place for place in STORED]
    places += [folder.partial.root, *_temporary_folders(folder)]
    return [place for place in places if not place.is_symlink()]


def remove(paths: Iterable[Path], places: Iterable[Path]) -> Usage:
    """Remove the files, and the folders of `places` that are empty then; return what that freed."""
    seen: set[tuple[int, int]] = set()
    named: dict[Path, dict[tuple[int, int], Path]] = {}
    num_files = num_bytes = 0
    shown = Progress(log, "removing", "files")
    for path in paths:
        shown.at(num_files)
        if (freed := _new_bytes(path, seen)) is not None:
            with ours.keeping_known(*_in_results(path, named)):
                path.unlink(missing_ok=True)
            num_files, num_bytes = num_files + 1, num_bytes + freed
    for place in places:
        for inside, _, _ in os.walk(place, topdown=False):
            with contextlib.suppress(OSError):  # not empty, a link, or gone
                left = list(Path(inside).iterdir())
                for path in left if all(path.name in formats.BESIDE for path in left) else ():
                    path.unlink()
                Path(inside).rmdir()
    return Usage(num_files, num_bytes)


def _in_results(
    path: Path, named: dict[Path, dict[tuple[int, int], Path]]
) -> tuple[Path, Path | None]:
    """Return the folder of the run, and the second name of a delivered file in the results; `named`
    is a cache."""
    if not _is_in_results(path):
        return path.parent, None
    root = path.parents[3]
    if root not in named:
        results = Results(root).find_delivery()
        files = (file for name in (results.outputs if results else ()) for file in _at(root / name))
        named[root] = {_inode(file.lstat()): file for file in files}
    return root, named[root].get(_inode(path.lstat()))


def _is_in_results(path: Path) -> bool:
    """Return whether the file is a delivered one with a second name in the results. Then removing
    it frees nothing."""
    is_delivered = path.parent.parent.name == delivered.FOLDER
    return is_delivered and path.exists() and path.lstat().st_nlink > 1


def _inode(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


def _new_bytes(path: Path, seen: set[tuple[int, int]]) -> int | None:
    """Return the bytes of a file that is not among those `seen`; None if it is gone."""
    try:
        about = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if (key := _inode(about)) in seen or _is_in_results(path):
        return 0
    seen.add(key)
    return about.st_blocks * BLOCK_BYTES


def _place_of(folder: Results, path: Path) -> str:
    """Return the part of the run that a file belongs to, such as "store/parts"."""
    if not path.is_relative_to(folder.root):
        return str(path)
    names = path.relative_to(folder.root).parts
    is_stored = names[0] == folder.store.name and len(names) > 2
    return "/".join(names[: 2 if is_stored else 1])


def _litter(folder: Results) -> list[Path]:
    """Return the files that no run reads again."""
    root, store = folder.root, folder.store
    paths = _below(store / "journals", store / "parts")
    found = [path for path in paths if _is_done(folder, path) or _is_orphaned(folder, path)]
    places = (root / place for place in (*OF_RECIPES, SHARDS))
    paths = [*_files_in(root), *_files_in(store), *_below(*places)]
    found += [path for path in paths if path.suffix == ".bad"]
    together = [[path] for path in paths if is_temporary(path)]
    # The first files of a folder are finished long before the last.
    together += [_below(left) for left in _temporary_folders(folder)]
    found += [file for files in together if all(map(_is_old, files)) for file in files]
    partial = (folder.partial.root,) if folder.delivery.exists() else ()
    return found + _below(*partial)


def _temporary_folders(folder: Results) -> list[Path]:
    """Return the temporary folders of jobs that run or were killed."""
    store = folder.store
    places = (folder.root, store, store / delivered.FOLDER, store / delivered.IDENTITIES)
    found = (path for place in places for path in place.glob(".*"))
    return [path for path in found if is_temporary(path) and path.is_dir()]


def _is_done(folder: Results, path: Path) -> bool:
    """Return whether the file is one of a journal whose part is finished."""
    names = path.parent.name, path.name.partition(".")[0]
    is_finished = folder.part(*names).exists() and folder.kept_receipt(*names).exists()
    return is_finished and path.is_relative_to(folder.store / "journals")


def _is_orphaned(folder: Results, path: Path) -> bool:
    """Return whether the file is telemetry without a part and without a journal to resume."""
    names = path.parent.name, path.name.partition(".")[0]
    journal = folder.journal(*names)
    goes_on = folder.part(*names), journal, journal.with_suffix(".log")
    return path == folder.telemetry(*names) and not any(place.exists() for place in goes_on)


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > OLD_SECONDS
    except FileNotFoundError:
        return True


def _everything(folder: Results) -> list[Path]:
    receipts, owner = _below(folder.root / "receipts"), run_lock.path_of(folder.root)
    return [*receipts, *_files_under(folder.store), *_files_under(folder.root), owner]


def _at(place: Path) -> list[Path]:
    """Return the file, or the files below the folder, at `place`; a link leads nowhere."""
    if place.is_symlink() or place.is_file():
        return [place]
    return [*_files_under(place)]


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
