"""clean: say what of a run can go and how many bytes that frees, and remove it.

Nothing goes without `--yes`, and nothing while the run is computed. Knows only the run's own files:
those of other runs, the weights and whatever a link leads to (but for a linked `store`) are left.
What can go is in `featuremill.merge.removable`.
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
from featuremill.base.words import counted, human_bytes
from featuremill.merge.removable import KEEP, Usage, removable, remove, usage_of
from featuremill.store import command_line, run_lock
from featuremill.store.delivery import Delivery
from featuremill.store.plan import Plan
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
    folder, keep = Results(arguments.run_folder), arguments.keep
    _check_run(folder)
    with run_lock.alone(folder.root), refusing_others(folder):
        if keep == "results":
            check_whole(folder)
        found = [category for category in removable(folder, keep) if category.paths]
        each = usage_of(found)
        for category, used in zip(found, each, strict=True):
            log.info("%s: %s", category.what, _told(used))
        total = Usage(sum(used.files for used in each), sum(used.bytes for used in each))
        if not total.files:
            is_default = keep == DEFAULT_KEEP
            asked = "" if is_default else f"with --keep {keep} "
            more = "; --keep results and --keep nothing go further" if is_default else ""
            log.info("%sthere is nothing to remove%s", asked, more)
        elif arguments.yes:
            log.info("removed: %s", _told(remove(found)))
        else:
            log.info("in all: %s; give --yes to remove it", _told(total))


def after_run(run_folder: Path, keep: str) -> str:
    """Remove what the config's `keep` gives up, and return the line that says so.

    For the main Snakemake process, which has the run's lock, when everything is done.

    Raises:
        UserError: when the results are not whole, or something is at the run.
    """
    folder = Results(run_folder)
    with refusing_others(folder):
        check_whole(folder)
        removed = remove(removable(folder, keep))
    return f"keep: {keep}: removed {_told(removed)}." if removed.files else ""


def _told(used: Usage) -> str:
    return f"{counted(used.files, 'file')}, {human_bytes(used.bytes)}"


def _check_run(folder: Results) -> None:
    """Refuse a folder in which is neither a plan with its manifest nor a store of ours."""
    is_planned = folder.manifest.exists() and folder.find_plan() is not None
    if not is_planned and not (folder.store / "plan.lock").exists():
        raise UserError(f"{folder.root}: there is no run here; name a folder such as results/demo.")


@contextlib.contextmanager
def refusing_others(folder: Results) -> Iterator[None]:
    """Keep plan and merge away from the run for the block; refuse while any verb is at it.

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


def check_whole(folder: Results) -> None:
    """Refuse results that are not finished, not those of the plan, or not what merge wrote.

    Raises:
        UserError: says which file, and what to do.
    """
    if problem := _problem(folder):
        raise UserError(
            f"{problem}, so what they are made of has to stay; let the run come to its end first "
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
    """Tell whether the results are those of the plan and of the parts whose receipts are here."""
    if not results.is_of(plan):
        return False
    here = (entry for entry in results.parts if folder.receipt(plan.recipe, entry).exists())
    receipts = ((shard, folder.find_receipt(plan.recipe, shard)) for shard in here)
    return all(found and found.part == results.parts[shard] for shard, found in receipts)
