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
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
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
from featuremill.config.project import Runs, runs_of
from featuremill.store import (
    command_line,
    delivered_shards,
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
SHARDS, IDENTITIES = "store/shards", f"store/{delivered_shards.IDENTITIES}"
DELIVERED = f"store/{delivered_shards.FOLDER}"
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
    runs, keep = runs_of(arguments.run_folder), arguments.keep
    folders = [Results(folder) for folder in runs.folders]
    if not runs.is_one:  # some sets of features may have no folder yet
        folders = [folder for folder in folders if folder.root.exists()] or folders[:1]
    for folder in folders:
        is_planned = folder.records.exists() and folder.find_plan() is not None
        if not is_planned and not (folder.store / "plan.lock").exists():
            raise UserError(
                f"{folder.root}: there is no run here; name a folder such as results/demo."
            )
    with ExitStack() as stack:
        for root in runs.folders:
            stack.enter_context(run_lock.alone(root))
        for folder in folders:
            stack.enter_context(refusing_others(folder))
        selected = Selection()
        for folder in folders:
            selected.add_run(folder, keep, "" if len(folders) == 1 else f"{folder.root}: ")
        if len(folders) > 1:
            selected.folders.append(folders[0].root.parent)
        if keep == "nothing":
            selected.add_steps(runs)
        selected.show()
        files = selected.parts
        if not files:
            is_default = keep == DEFAULT_KEEP
            option = "" if is_default else f"with --keep {keep} "
            more = "; --keep results and --keep nothing go further" if is_default else ""
            log.info("%sthere is nothing to remove%s", option, more)
        elif arguments.yes:
            log.info("removed: %s", _in_words(remove(files, selected.folders)))
        else:
            log.info("in all: %s; give --yes to remove it", _in_words(usage_of(files)))


@dataclass(frozen=True)
class Selection:
    """What is removed."""

    parts: dict[Path, str] = field(default_factory=dict)
    """The files, in the order of removal, and the part of a run or the step of each."""
    folders: list[Path] = field(default_factory=list)
    """Folders that are removed, with those in them, once they are empty."""
    kept: set[Path] = field(default_factory=set)
    """Files beside them that featuremill did not write, or that were changed since."""

    def add_run(self, folder: Results, keep: str, name: str) -> None:
        """Add what is removed of a run; `name` is shown before its parts."""
        if keep == "results":
            check_whole(folder)
        paths = removable(folder, keep)
        self.parts.update({path: f"{name}{_part_of(folder, path)}" for path in paths})
        self.folders.extend(folders_of(folder, keep))
        if keep == "nothing":
            self.kept.update({*_files_of(folder)} - {*paths})

    def add_steps(self, runs: Runs) -> None:
        """Add the files of the steps' products; some may be in the folder of a run.

        Raises:
            UserError: a process writes one of them.
        """
        for product in runs.steps:
            lock, logs = product.lock, {*map(Path, product.logs)}
            if lock and lock_holder.is_held(Path(lock)):
                raise UserError(
                    f"{Path(lock).parent}: a process is making {product.label}; wait for it, or "
                    "stop it."
                )
            is_known = any(ours.latest(Path(file)) for file in product.files)
            folders = [*map(Path, product.removable), *logs, *map(Path, {product.state} - {""})]
            self.folders.extend(folders)
            for path in (path for folder in folders for path in _at(folder)):
                is_lock = lock == str(path) and not path.is_symlink() and not path.stat().st_size
                is_own = is_lock or path.name in formats.BESIDE or ours.is_ours(path)
                if (is_known or is_log(path)) if path in logs else is_own:
                    self.parts.setdefault(path, product.label)
                else:
                    self.kept.add(path)

    def show(self) -> None:
        """Print how much of each part is removed, and what stays."""
        if kept := sorted(self.kept - self.parts.keys()):
            shown = ", ".join(map(str, kept[:MOST_NAMED]))
            more = f" and {len(kept) - MOST_NAMED:,} more" if len(kept) > MOST_NAMED else ""
            which = "it, or it was" if len(kept) == 1 else "them, or they were"
            why = f"featuremill did not write {which} changed since"
            log.info("stays: %s%s: %s", shown, more, why)
        by_part = defaultdict[str, list[Path]](list)
        for path, part in self.parts.items():
            by_part[part].append(path)
        for part, paths in by_part.items():
            log.info("%s: %s", part, _in_words(usage_of(paths)))


def after_run(run_folder: Path, keep: str) -> str:
    """Remove the files that the config's `keep` does not name, and return a line about them.

    The main Snakemake process, which has the lock of the run, calls it at the end.

    Raises:
        UserError: the results are not whole, or a command works on the run.
    """
    folder = Results(run_folder)
    with refusing_others(folder):
        check_whole(folder)
        removed = remove(removable(folder, keep), folders_of(folder, keep))
    return f"keep: {keep}: removed {_in_words(removed)}." if removed.files else ""


def _in_words(used: Usage) -> str:
    return f"{counted(used.files, 'file')}, {human_bytes(used.bytes)}"


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
    for name, written in results.outputs.items():
        file = folder.root / name
        if not file.exists():
            return f"{file}: this result is gone"
        if not written.is_at(file):
            return f"{file}: this is not the file that merge wrote"
    return ""


def _belong(folder: Results, plan: Plan, results: Delivery) -> bool:
    """Return whether the results are those of the plan and of the parts that have receipts."""
    if not results.is_of(plan):
        return False
    here = (entry for entry in results.parts if folder.receipt(plan.recipe, entry).exists())
    receipts = ((shard, folder.find_receipt(plan.recipe, shard)) for shard in here)
    return all(receipt and receipt.part == results.parts[shard] for shard, receipt in receipts)


def removable(folder: Results, keep: str) -> list[Path]:
    """Return the files that are not needed for what to `keep` (one of `KEEP`), in the order of
    removal.

    Raises:
        UserError: what the plan needs is to be kept, and there is no plan.
    """
    files, is_ours = _files_of(folder), cache(ours.is_ours)
    litter = _litter(folder, files) if keep != "nothing" else set(files)
    is_needed = _needed_by_plan(folder) if keep == "parts" else lambda *_: keep == "all"

    def is_removed(path: Path) -> bool:
        part = _part_of(folder, path)
        is_stored = part in STORED and path != folder.root / part
        return path in litter or (is_stored and not is_needed(part, path))

    return [path for path in files if is_removed(path) and _is_own(folder, path, is_ours)]


def _needed_by_plan(folder: Results) -> Callable[[str, Path], bool]:
    """Return a function of a name in `STORED` and a file in it: whether plan.json, or the plan in
    the store, names the file."""
    plans = [plan for path in (folder.plan, folder.kept_plan) if (plan := Plan.find(path))]
    if not plans:
        raise UserError(
            f"{folder.plan}: there is no plan, so what is needed is unknown; make one first "
            f"({command_line.again(folder.root)}), or give --keep nothing to start over."
        )
    recipes = {plan.recipe for plan in plans}
    shards = {entry.shard for plan in plans for entry in plan.shards}

    def is_needed(part: str, path: Path) -> bool:
        if part in (IDENTITIES, DELIVERED):
            return part == DELIVERED
        is_of_plan = path.name.lstrip(".")[:32] in shards
        return is_of_plan and (part == SHARDS or path.parent.name in recipes)

    return is_needed


def _is_own(folder: Results, path: Path, is_ours: Callable[[Path], bool]) -> bool:
    """Return whether featuremill wrote the file and it is unchanged: by the record, or by a name
    that content gives."""
    if not path.is_relative_to(folder.root):  # the owner's file
        return True
    if path.name in formats.BESIDE or is_in_temporary(path):
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


def usage_of(paths: Iterable[Path]) -> Usage:
    """Return the number of files and their bytes; a file with several names counts once."""
    sizes = [size for _, size in _freed(paths)]
    return Usage(len(sizes), sum(sizes))


def folders_of(folder: Results, keep: str) -> list[Path]:
    """Return the folders that are removed, with those in them, once they are empty."""
    if keep == "nothing":
        return [folder.store.resolve(), folder.root]
    above = (folder.root, folder.store, *(folder.root / name for name in (DELIVERED, IDENTITIES)))
    temporary = [path for parent in above for path in parent.glob(".*") if is_temporary(path)]
    folders = [*(folder.root / name for name in STORED), folder.partial.root, *temporary]
    return [path for path in folders if path.is_dir() and not path.is_symlink()]


def remove(paths: Iterable[Path], folders: Iterable[Path]) -> Usage:
    """Remove the files, and the `folders` that are empty then; return what that freed."""
    results: dict[Path, dict[tuple[int, int], Path]] = {}
    num_files = num_bytes = 0
    shown = Progress(log, "removing", "files")
    for path, size in _freed(paths):
        shown.at(num_files)
        second = _second_name(path, results)
        with ours.touching(second) if second else contextlib.nullcontext():
            path.unlink(missing_ok=True)
        num_files, num_bytes = num_files + 1, num_bytes + size
    for folder in folders:
        for inside, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):  # not empty, a link, or gone
                left = list(Path(inside).iterdir())
                for path in left if all(path.name in formats.BESIDE for path in left) else ():
                    path.unlink()
                Path(inside).rmdir()
    return Usage(num_files, num_bytes)


def _second_name(path: Path, known: dict[Path, dict[tuple[int, int], Path]]) -> Path | None:
    """Return the second name that a delivered file has in the results. `known` has the files of
    results by inode, by folder of the run."""
    if not _is_in_results(path):
        return None
    root = path.parents[3]
    if root not in known:
        results = Results(root).find_delivery()
        files = (file for name in (results.outputs if results else ()) for file in _at(root / name))
        known[root] = {_inode(file.lstat()): file for file in files}
    return known[root].get(_inode(path.lstat()))


def _is_in_results(path: Path) -> bool:
    """Return whether the file is a delivered one with a second name in the results. Then removing
    it frees nothing."""
    is_delivered = path.parent.parent.name == delivered_shards.FOLDER
    return is_delivered and path.exists() and path.lstat().st_nlink > 1


def _inode(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


def _freed(paths: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    """Yield each of the files that is there, and the bytes that are freed by its removal: 0 for a
    further name of a file."""
    seen: set[tuple[int, int]] = set()
    for path in paths:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            about = path.lstat()
            is_further = _inode(about) in seen or _is_in_results(path)
            if not is_further:
                seen.add(_inode(about))
            yield path, 0 if is_further else about.st_blocks * BLOCK_BYTES


def _part_of(folder: Results, path: Path) -> str:
    """Return the part of the run that a file belongs to, such as "store/parts"."""
    if not path.is_relative_to(folder.root):
        return str(path)
    names = path.relative_to(folder.root).parts
    is_stored = names[0] == folder.store.name and len(names) > 2
    return "/".join(names[: 2 if is_stored else 1])


def _litter(folder: Results, files: Iterable[Path]) -> set[Path]:
    """Return those of the `files` of a run that no command reads again."""
    litter, temporary = set[Path](), dict[Path, list[Path]]()
    has_results = folder.delivery.exists()
    for path in files:
        inside = [above for above in path.parents if above.is_relative_to(folder.root)]
        if outer := next(filter(is_temporary, (*reversed(inside), path)), None):
            temporary.setdefault(outer, []).append(path)
            continue
        is_partial = has_results and folder.partial.root in inside
        if is_partial or _is_over(folder, path) or path.suffix == ".bad":
            litter.add(path)
    # The first files of a folder are finished long before the last.
    left = (paths for paths in temporary.values() if all(map(_is_old, paths)))
    return litter.union(*left)


def _is_over(folder: Results, path: Path) -> bool:
    """Return whether the file is one of a journal whose part is finished, or telemetry without a
    part and without a journal to resume."""
    names = path.parent.name, path.name.partition(".")[0]
    part, journal = folder.part(*names), folder.journal(*names)
    if path.is_relative_to(folder.store / "journals"):
        return part.exists() and folder.kept_receipt(*names).exists()
    resumed = part, journal, journal.with_suffix(".log")
    return path == folder.telemetry(*names) and not any(file.exists() for file in resumed)


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > OLD_SECONDS
    except FileNotFoundError:
        return True


def _files_of(folder: Results) -> list[Path]:
    """Return all files of a run, in the order of removal."""
    files = {*_files_under(folder.root), *_files_under(folder.store)}

    def order(path: Path) -> tuple[int, bool]:
        part = _part_of(folder, path)
        number = STORED.index(part) if part in STORED else len(STORED)
        return number + (path.parent == folder.root), path.suffix != ".json"

    return [*sorted(files, key=order), run_lock.path_of(folder.root)]


def _at(path: Path) -> list[Path]:
    """Return the file, or the files below the folder, at `path`. A link is a file."""
    if path.is_symlink() or path.is_file():
        return [path]
    return [*_files_under(path)]


def _files_under(folder: Path) -> Iterator[Path]:
    """Yield the files in `folder`, which may be a link, and in its folders; a link is a file."""
    for inside, folders, names in os.walk(folder):
        links = (name for name in folders if Path(inside, name).is_symlink())
        yield from (Path(inside, name) for name in (*names, *links))
