"""One look at a run: read what is there, and say it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from featuremill.base.errors import UserError
from featuremill.base.sizes import counted
from featuremill.status import report, sources, view
from featuremill.status.commands import Commands
from featuremill.status.facts import DONE, DONE_WITH_FAILURES, ENDED, Facts, Snakemake
from featuremill.status.logs import check_log
from featuremill.status.problems import Mend, Problem
from featuremill.status.rest import estimate
from featuremill.status.results import read_manifest, read_results, taken_over
from featuremill.status.shards import Shard, read_shards
from featuremill.status.sources import is_newer
from featuremill.store import lock_holder, run_lock
from featuremill.store.files import read_sealed
from featuremill.store.results import Results

PLANNED = {
    "run": str,
    "recipe": str,
    "workload": str,
    "settings": dict,
    "inputs": list,
    "counts": dict,
    "refusals": dict,
    "shards": list,
    "manifest_sha256": str,
}
"""What is read of plan.json, and of which type it is."""
IN_LOGS = {"crash", "hang", "error"}
"""Kinds of failures of which a shard's log tells more."""
TRACES = ("store", "receipts", "manifest.parquet", "manifest.json")
"""What a run's folder holds, sooner or later, beside plan.json."""


def run(arguments: argparse.Namespace) -> int:
    """Carry out `featuremill status`; return 0 done, 1 not done, 2 done with failures."""
    given: Path = arguments.run_folder
    with said_of_damage(given):
        facts = look(given, arguments.verify)
        if arguments.json:
            said = json.dumps(report.as_json(facts), indent=2, ensure_ascii=False)
        else:
            said = "\n".join(view.lines(facts))
    sys.stdout.write(f"{said}\n")
    return facts.exit_status


@contextlib.contextmanager
def said_of_damage(given: Path) -> Iterator[None]:
    """Say in a sentence what of the run's files cannot be read in the block.

    Raises:
        UserError: with that sentence.
    """
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{error.filename or given}: {error.strerror or error}; while this cannot be read, "
            "nobody can tell how far the run is."
        ) from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        # Damaged JSON can lack any key, and hold anything.
        raise UserError(
            f"{given}: plan.json, manifest.json or a receipt does not hold what it should "
            f"({type(error).__name__}: {error}); delete plan.json and run the same command again: "
            "what is computed stays."
        ) from error


def look(given: Path, verifies: bool = False) -> Facts:
    """Return what there is of the run in the folder `given`; hash its files if it `verifies`.

    Raises:
        UserError: when that is no run's folder, or its plan cannot be read.
    """
    # `.` has no name; links stay, as Snakemake sees them.
    root = Path(os.path.normpath(given.absolute()))
    folder = Results(root)
    last = run_lock.read(root)
    facts = Facts(given, *at_work(folder, last), verifies)
    if not folder.plan.exists():
        _refuse_what_is_no_run(folder, given, last)
        problems = [] if facts.is_planning else _why_no_plan(root, last)
        return replace(facts, problems=problems, next=Commands(root, given, None).mending([]))
    facts = _with_plan(facts, folder, read_plan(folder, given))
    return _with_commands(facts, Commands(root, given, facts.plan))


def unseen_by_snakemake(root: Path) -> list[Problem]:
    """Return what is in the way of the planned run in `root`, is found without reading values or
    hashing results, and that Snakemake would not see by itself.

    Raises:
        UserError: when the run's files cannot be read.
    """
    folder = Results(root)
    nobody = Facts(root, Snakemake(None, None), False, False, False)
    with said_of_damage(root):
        facts = _with_plan(nobody, folder, read_plan(folder, root), reads_reasons=False)
    return [
        one
        for one in facts.problems
        if one.is_in_the_way and one.mend.again and one.mend.seen_by == "start"
    ]


def _why_no_plan(root: Path, last: run_lock.Owner | None) -> list[Problem]:
    """Return what failed on the way to a plan: the weights, which come first, or the plan."""
    weights = Path(last.weights) if last and last.weights else None
    if weights and not (root.parent.parent / weights).exists():
        log = root.parent.parent / "logs" / "weights" / f"{weights.stem}.log"
        if problems := check_log(root, "weights", log=log):
            return problems
    return check_log(root, "plan")


def at_work(folder: Results, last: run_lock.Owner | None) -> tuple[Snakemake, bool, bool]:
    """Return the run's Snakemake, whether a plan is being made, and whether a merge."""
    is_running = lock_holder.is_held(run_lock.path_of(folder.root))
    is_elsewhere = last is not None and not last.is_of_this_machine()
    is_merging = bool(lock_holder.is_held(folder.store / "merge.lock"))
    # A merge holds plan's lock too.
    is_planning = bool(lock_holder.is_held(folder.store / "plan.lock")) and not is_merging
    snakemake = Snakemake(None if is_elsewhere and not is_running else is_running, last)
    return snakemake, is_planning, is_merging


def is_run(folder: Results, last: run_lock.Owner | None) -> bool:
    """Tell whether a run has left anything in its folder, or whether `last` began one."""
    names = (folder.plan.name, *TRACES)
    return last is not None or any((folder.root / name).exists() for name in names)


def _refuse_what_is_no_run(folder: Results, given: Path, last: run_lock.Owner | None) -> None:
    if is_run(folder, last):
        return
    if not folder.root.is_dir():
        raise UserError(f"{given}: there is no such folder; runs are in results/<run>.")
    raise UserError(
        f"{given}: this is no run's folder: it holds neither plan.json nor store/; runs are in "
        "results/<run>."
    )


def read_plan(folder: Results, given: Path) -> dict[str, Any]:
    """Return what plan.json says, with all that is read of it here.

    Raises:
        UserError: when it cannot be read as a plan.
    """
    plan = read_sealed(folder.plan)
    shards = (plan or {}).get("shards")
    if (
        plan is None
        or not all(isinstance(plan.get(key), kind) for key, kind in PLANNED.items())
        or not isinstance(shards, list)
        or not all({"shard", "records", "cost", "bytes"} <= set(shard) for shard in shards)
    ):
        raise UserError(
            f"{given / folder.plan.name}: this cannot be read as a plan; delete it and run the "
            "same command again: what is computed stays."
        )
    return plan


def _with_plan(
    facts: Facts, folder: Results, plan: dict[str, Any], reads_reasons: bool = True
) -> Facts:
    """Return `facts` with all that there is of the plan's shards and results; why records failed
    stands in parts, which need not be read."""
    verifies = facts.verified
    manifest = read_manifest(folder)
    # A receipt that is not newer than the results is what merge took over into their manifest.
    shards = read_shards(folder, plan, {} if verifies else taken_over(folder, manifest))
    results = read_results(folder, plan, manifest, shards, verifies)
    is_merged = results.merged == "yes"
    if is_merged:
        shards = [_removed(shard) for shard in shards]
    facts = replace(facts, plan=plan, shards=shards, results=results, rest=estimate(shards))
    if reads_reasons:
        facts = _with_failures(facts, folder, plan)
    has_work = facts.count(*ENDED) < len(shards)
    has_no_report = is_merged and results.reported != "yes"
    problems = [
        *sources.check_parts(folder, plan, shards, verifies),
        *sources.check_manifest(folder, plan, facts.is_manifest_readable, verifies),
        *sources.check_inputs(folder, plan, is_merged, verifies),
        *sources.check_weights(folder, plan, has_work),
        *sources.check_versions(plan),
        *(check_log(folder.root, "report", False) if has_no_report else []),
        *(
            one._replace(is_in_the_way=one.is_in_the_way and _matters(one, has_work))
            for one in results.problems
        ),
    ]
    if facts.num_failed and not is_merged:
        what = (
            f"{counted(facts.num_failed, 'record')} failed: the results of the others come only "
            "when max_failed is at least that."
        )
        by_hand = "Try them again (see above), or raise max_failed in the config."
        problems.append(Problem("failed", what, Mend(by_hand=by_hand), not has_work))
    has_tried = not has_work and is_newer(folder.store / "failed.tsv", folder.plan)
    return replace(facts, problems=problems, has_tried_to_merge=has_tried)


def _matters(problem: Problem, has_work: bool) -> bool:
    """Tell whether a problem of results is one: while there is work, older ones are in order."""
    return problem.code != "results_older" or not has_work


def _removed(shard: Shard) -> Shard:
    """Return the shard of whole results: with neither part nor receipt, it was removed."""
    if shard.state == "waiting" and not shard.receipt:
        return shard._replace(state="removed", trouble="")
    return shard


def _with_failures(facts: Facts, folder: Results, plan: dict[str, Any]) -> Facts:
    has_failed = any(shard.receipt and shard.receipt["failed"] for shard in facts.shards)
    if not (has_failed or plan["refusals"] or facts.count("removed")):
        return facts
    from featuremill.status.failures import read_failures  # brings pyarrow and NumPy

    found = read_failures(folder, plan, facts.shards, facts.verified)
    return replace(
        facts,
        groups=found.groups,
        unread_failures=found.unread,
        is_manifest_readable=found.is_manifest_readable,
    )


def _with_commands(facts: Facts, commands: Commands) -> Facts:
    problems = [
        problem._replace(commands=tuple(commands.mending([problem.mend])))
        if not problem.mend.by_hand
        else problem
        for problem in facts.problems
    ]
    groups = [
        group._replace(
            command=commands.retry(group.key.kind),
            logs=commands.logs() if group.key.kind in IN_LOGS else None,
        )
        if group.key.status == "failed" and not facts.count("removed")  # retry reads the parts
        else group
        for group in facts.groups
    ]
    return replace(facts, problems=problems, groups=groups, next=_next(facts, commands))


def _next(facts: Facts, commands: Commands) -> list[str]:
    """Return what to type: nothing while a Snakemake is at work, or when all is done."""
    if facts.snakemake.is_running:
        return []
    if facts.exit_status == DONE:
        return [] if facts.results and facts.results.reported == "yes" else commands.report()
    if facts.exit_status == DONE_WITH_FAILURES:
        return [] if facts.count("removed") else [commands.retry(), *commands.mending([])]
    in_the_way = [problem for problem in facts.problems if problem.is_in_the_way]
    if facts.has_tried_to_merge and [one.code for one in in_the_way] == ["failed"]:
        return [commands.retry(), *commands.mending([])]
    return commands.mending(
        [one.mend for one in in_the_way], [s.name for s in facts.shards if s.state not in ENDED]
    )
