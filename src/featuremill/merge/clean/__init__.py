"""clean: say what of a run can go and how many bytes that frees, and remove it.

Nothing goes without `--yes`, and nothing while the run is computed. Knows only the run's own files:
those of other runs, the weights and whatever a link leads to (but for a linked `store`) are left.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from featuremill.base.errors import UserError
from featuremill.base.locking import claimed
from featuremill.base.sizes import counted, human_bytes
from featuremill.merge.clean.categories import KEEP, Category, removable
from featuremill.merge.clean.removal import Usage, remove, usage_of
from featuremill.merge.clean.whole import check_whole
from featuremill.store import run_lock
from featuremill.store.files import read_sealed
from featuremill.store.results import Results

DEFAULT_KEEP = "parts"
log = logging.getLogger("featuremill.clean")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `featuremill clean`."""
    parser.add_argument("run_folder", type=Path, help="results/<run>")
    parser.add_argument(
        "--keep",
        choices=KEEP,
        default=DEFAULT_KEEP,
        help="all: only litter goes; parts: what an edit of the input still needs stays; results: "
        "only the finished results stay; nothing: start over (default: parts)",
    )
    parser.add_argument("--yes", action="store_true", help="remove it; without this, only list it")


def run(arguments: argparse.Namespace) -> None:
    """Carry out `featuremill clean`."""
    folder = Results(arguments.run_folder)
    check_run(folder)
    with run_lock.alone(folder.root), undisturbed(folder):
        found = _found(folder, arguments.keep)
        usage = usage_of(found)
        for category, used in zip(found, usage.each, strict=True):
            log.info("%s: %s", category.what, _told(used))
        if not usage.all.files:
            log.info("%s", _nothing(arguments.keep))
        elif arguments.yes:
            log.info("removed: %s", _told(remove(found)))
        else:
            log.info("in all: %s; give --yes to remove it", _told(usage.all))


def after_run(run_folder: Path, keep: str) -> str:
    """Remove what the config's `keep` gives up, and return the line that says so.

    For the main Snakemake process, which has the run's lock, when everything is done.

    Raises:
        UserError: when the results are not whole, or something is at the run.
    """
    folder = Results(run_folder)
    with undisturbed(folder):
        check_whole(folder)
        removed = remove(removable(folder, keep))
    return f"keep: {keep}: removed {_told(removed)}." if removed.files else ""


def _found(folder: Results, keep: str) -> list[Category]:
    if keep == "results":
        check_whole(folder)
    return [category for category in removable(folder, keep) if category.paths]


def _nothing(keep: str) -> str:
    if keep == DEFAULT_KEEP:
        return "there is nothing to remove; --keep results and --keep nothing go further"
    return f"with --keep {keep} there is nothing to remove"


def _told(used: Usage) -> str:
    return f"{counted(used.files, 'file')}, {human_bytes(used.bytes)}"


def check_run(folder: Results) -> None:
    """Refuse a folder that is not a run's.

    Raises:
        UserError: when neither a plan with its manifest nor a store of ours is there.
    """
    plan = read_sealed(folder.plan) or {}
    is_planned = {"recipe", "shards"} <= set(plan) and folder.manifest.exists()
    if is_planned or (folder.store / "plan.lock").exists():
        return
    raise UserError(f"{folder.root}: there is no run here; name a folder such as results/demo.")


@contextlib.contextmanager
def undisturbed(folder: Results) -> Iterator[None]:
    """Keep plan and merge away from the run meanwhile; refuse while any verb is at it.

    Raises:
        UserError: when one is.
    """
    with ExitStack() as stack:
        for verb in ("plan", "merge") if folder.store.is_dir() else ():
            # Made where there is none: a first merge may begin at any moment.
            path = folder.store / f"{verb}.lock"
            if claimed(stack.enter_context(path.open("a")), path) is False:
                raise UserError(
                    f"{folder.root}: a featuremill {verb} is at this run; wait for it, or stop it."
                )
        run_lock.refuse_jobs(folder)
        yield
