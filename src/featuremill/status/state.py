"""How a run stands: its shards, its results, what failed, what is in the way, what to type next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.words import counted
from featuremill.status.commands import Commands, Fix, Problem
from featuremill.status.delivered import DeliveryState, read_delivery_state, taken_over
from featuremill.status.shards import Shard, Shards, State
from featuremill.status.sources import (
    check_log,
    check_logs_before_plan,
    check_sources,
    is_newer,
    shown,
)
from featuremill.status.time_left import JobLeft, TimeLeft, time_left
from featuremill.store import lock_holder, run_lock
from featuremill.store.delivery import Written
from featuremill.store.failed import Group, read_list
from featuremill.store.plan import Plan
from featuremill.store.results import Results
from featuremill.workload import know_reasons

VERSION = 1
"""Of the JSON."""
DONE, NOT_DONE, DONE_WITH_FAILURES = 0, 1, 2
STATES = ("done", "unfinished", "done_with_failures")
"""By exit status."""
COUNTED: tuple[State, ...] = (
    *("finished", "removed", "running", "unclear", "begun", "waiting", "lost"),
)
IN_LOGS = {"crash", "hang", "error"}
"""Kinds of failures of which a shard's log tells more."""
TRACES = ("plan.json", "store", "receipts", "records.parquet", "manifest.json")
"""What a run's folder holds, sooner or later."""


Need = Literal["", "report", "retry", "run"]
"""Nothing; a report; failed records again; or the run has to go on."""


class Activity(NamedTuple):
    """Who is at the run as a whole."""

    is_running: bool | None = None
    """Whether its Snakemake runs; None where that cannot be told from here."""
    owner: run_lock.Owner | None = None
    """That Snakemake, or the last one."""
    is_planning: bool = False
    is_merging: bool = False


@dataclass
class RunState:
    """A run as it was found."""

    given: Path
    """What the user calls its folder."""
    activity: Activity = field(default_factory=Activity)
    verified: bool = False
    plan: Plan | None = None
    shards: list[Shard] = field(default_factory=list)
    delivery: DeliveryState = field(default_factory=DeliveryState)
    failures: list[Group] = field(default_factory=list)
    """Records without values, by reason."""
    unread_failures: int = 0
    """Failed rows of parts that were not read."""
    problems: list[Problem] = field(default_factory=list)
    time_left: TimeLeft | None = None
    needs: Need = ""
    """What is to be done next, by somebody who types."""
    next: list[str] = field(default_factory=list)
    """What to type."""
    forced: list[str] = field(default_factory=list)
    """Rules that have to be told to run then."""

    def count(self, *states: State) -> int:
        """Return how many shards are in one of `states`."""
        return sum(shard.state in states for shard in self.shards)

    @property
    def num_ended(self) -> int:
        """How many shards have nothing left to compute."""
        return self.count("finished", "removed")

    @property
    def num_failed(self) -> int:
        """How many records failed, as far as is known."""
        if self.delivery.delivery and self.delivery.is_merged:
            return self.delivery.delivery.counts.failed
        failed = sum(group.number for group in self.failures if group.status == "failed")
        return failed + self.unread_failures

    @property
    def is_running(self) -> bool:
        """Whether its Snakemake runs, as far as that can be told from here."""
        return bool(self.activity.is_running)

    @property
    def is_at_work(self) -> bool:
        """Whether something goes on by itself."""
        is_busy = self.activity.is_planning or self.activity.is_merging
        return self.is_running or is_busy or self.count("running") > 0

    @property
    def exit_status(self) -> int:
        """0 done, 1 not done, 2 done with failures."""
        if not self.delivery.is_merged or self.num_ended < len(self.shards):
            return NOT_DONE
        if any(problem.is_in_the_way for problem in self.problems):
            return NOT_DONE
        return DONE_WITH_FAILURES if self.num_failed else DONE

    def as_json(self) -> dict[str, Any]:
        """Return everything as one object, as docs/json.md explains it; what is not known is
        None."""
        plan, activity, delivered = self.plan, self.activity, self.delivery
        return {
            "version": VERSION,
            "folder": str(self.given),
            "run": plan.run if plan else None,
            "recipe": plan.recipe if plan else None,
            "workload": plan.workload if plan else None,
            "state": STATES[self.exit_status],
            "exit_status": self.exit_status,
            "is_at_work": self.is_at_work,
            "verified": self.verified,
            "input": plan.counts.as_json() if plan else None,
            "shards": {"total": len(self.shards)} | {name: self.count(name) for name in COUNTED},
            "records": self._sums("records"),
            "cost": self._sums("cost"),
            "running": [_begun(s) for s in self.shards if s.state in ("running", "unclear")],
            "begun": [_begun(s) for s in self.shards if s.state == "begun"],
            "is_planning": activity.is_planning,
            "is_merging": activity.is_merging,
            "merged": delivered.merged,
            "reported": delivered.reported,
            "outputs": _as_json(delivered.delivery.outputs) if delivered.delivery else {},
            "exported": _as_json(delivered.exported),
            "partial": list(delivered.partial),
            "failed": self.num_failed,
            "reasons": [group.as_json() for group in self.failures],
            "problems": [problem.as_json() for problem in self.problems],
            "snakemake": {
                "is_running": activity.is_running,
                **{
                    key: getattr(activity.owner, key, None)
                    for key in ("host", "pid", "started", "command")
                },
            },
            "time_left": self.time_left and self.time_left.as_json(),
            "next": self.next,
        }

    def _sums(self, what: str) -> dict[str, int]:
        """Return the sum over all shards, and over those that are computed."""
        finished = sum(getattr(shard, what) for shard in self.shards if shard.has_ended)
        return {"total": sum(getattr(shard, what) for shard in self.shards), "finished": finished}


def _as_json(files: Mapping[str, Written]) -> dict[str, Any]:
    return {name: written.as_json() for name, written in files.items()}


def _begun(shard: Shard) -> dict[str, Any]:
    assert shard.work
    return {
        "shard": shard.name,
        "state": shard.state,
        "records": shard.records,
        "committed_batches": shard.work.batches,
        "committed_records": shard.work.rows,
        "last_commit": shard.work.last_commit,
        **shard.work.holder._asdict(),
    }


@contextlib.contextmanager
def refusing_what_cannot_be_read(given: Path) -> Iterator[None]:
    """Say in a sentence what of the run's files cannot be read in the block.

    Raises:
        UserError: with that sentence.
    """
    try:
        yield
    except IntegrityError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(
            f"{error.filename or given}: {error.strerror or error}; while this cannot be read, "
            "the state of the run is unknown."
        ) from None


def read_state(given: Path, verifies: bool = False, named: Path | None = None) -> RunState:
    """Return how the run in the folder `given` stands; hash its files if it `verifies`. What is
    said to type calls it as the user `named` it, if that is not its folder.

    Raises:
        UserError: when that is no run's folder, or its files cannot be read.
    """
    results = Results(run_lock.whole_path(given))
    with refusing_what_cannot_be_read(given):
        state = RunState(given, activity_of(results), verifies)
        if results.plan.exists():
            _read_planned(state, results)
        else:
            _read_unplanned(state, results)
        _say_what_to_type(state, results, Commands(results.root, named or given, state.plan))
    return state


def unseen_by_snakemake(root: Path) -> list[Problem]:
    """Return what is in the way of the planned run in `root`, is found without reading values or
    hashing results, and that Snakemake would not see by itself.

    Raises:
        UserError: when the run's files cannot be read.
    """
    state = RunState(root)
    with refusing_what_cannot_be_read(root):
        _read_planned(state, Results(root), reads_reasons=False)
    return [
        one
        for one in state.problems
        if one.is_in_the_way and one.fix.again and one.fix.seen_by == "start"
    ]


def activity_of(results: Results) -> Activity:
    """Return who is at the run as a whole: its Snakemake, a plan or a merge."""
    last = run_lock.read(results.root)
    is_running = lock_holder.is_held(run_lock.path_of(results.root))
    is_elsewhere = last is not None and not last.is_of_this_machine()
    is_merging = bool(lock_holder.is_held(results.store / "merge.lock"))
    # A merge holds plan's lock too.
    is_planning = bool(lock_holder.is_held(results.store / "plan.lock")) and not is_merging
    return Activity(
        None if is_elsewhere and not is_running else is_running, last, is_planning, is_merging
    )


def is_run(results: Results, last: run_lock.Owner | None) -> bool:
    """Tell whether a run has left anything in its folder, or whether `last` began one."""
    return last is not None or any((results.root / name).exists() for name in TRACES)


def _read_unplanned(state: RunState, results: Results) -> None:
    """Tell of a run that has no plan yet why it has none."""
    last = state.activity.owner
    if not is_run(results, last):
        if not results.root.is_dir():
            raise UserError(f"{state.given}: there is no such folder; runs are in results/<run>.")
        raise UserError(
            f"{state.given}: this is no run's folder: it holds neither plan.json nor store/; runs "
            "are in results/<run>."
        )
    if not state.activity.is_planning:
        state.problems = check_logs_before_plan(results.root, last.weights if last else "")


def _read_planned(state: RunState, results: Results, reads_reasons: bool = True) -> None:
    """Tell of the plan's shards and results; why records failed stands in parts, which need not be
    read."""
    verifies, root = state.verified, results.root
    state.plan = plan = results.read_plan()
    know_reasons(plan.workload)
    delivery = results.find_delivery()
    # A receipt that is not newer than the results is what merge took over into their manifest.
    shards = Shards(results, plan, {} if verifies else taken_over(results, delivery)).read()
    delivered = read_delivery_state(results, plan, delivery, shards, verifies)
    if delivered.is_merged:  # then what has neither part nor receipt was removed
        shards = [
            shard._replace(state="removed", trouble="")
            if shard.state == "waiting" and not shard.receipt
            else shard
            for shard in shards
        ]
    state.shards, state.delivery = shards, delivered
    pending = [shard for shard in shards if not shard.has_ended]
    state.time_left = time_left(
        [shard.cost_left for shard in pending if shard.state != "running"],
        [JobLeft(shard.cost_left) for shard in pending if shard.state == "running"],
        (shard.receipt for shard in shards if shard.receipt),
    )
    is_manifest_readable = _read_failures(state, results, plan) if reads_reasons else True
    state.problems = [
        *check_sources(
            results,
            plan,
            shards,
            is_merged=delivered.is_merged,
            is_manifest_readable=is_manifest_readable,
            verifies=verifies,
        )
    ]
    if pending and (too_few := plan.too_few(len(shards))):
        log = shown(results.logs / "plan.log")
        advice = Fix(by_hand=f"{log} has the reason and a remedy.")
        state.problems.append(Problem("slots_idle", too_few, advice, is_in_the_way=False))
    if delivered.is_merged and delivered.reported != "yes":
        state.problems += check_log(root, "report", is_in_the_way=False)
    for problem in delivered.problems:  # while there is work, older results are in order
        is_one = problem.code != "results_older" or not pending
        state.problems.append(problem._replace(is_in_the_way=problem.is_in_the_way and is_one))
    if state.num_failed and not delivered.is_merged:
        what = (
            f"{counted(state.num_failed, 'record')} failed: the results of the others come only "
            "when max_failed is at least that."
        )
        by_hand = "Try them again (see above), or raise max_failed in the config."
        state.problems.append(Problem("failed", what, Fix(by_hand=by_hand), not pending))


def _read_failures(state: RunState, results: Results, plan: Plan) -> bool:
    """Tell why records failed; return whether records.parquet, which says whose, can be read."""
    is_removed = state.count("removed") > 0
    has_failed = any(shard.receipt and shard.receipt.failed for shard in state.shards)
    if not (is_removed or has_failed or plan.refusals):
        return True
    from featuremill.status import failures  # brings pyarrow

    if is_removed:
        state.failures = read_list(results.root / "failed.tsv").groups
        return True
    found = failures.read_failures(results, plan, state.shards, state.verified)
    state.failures, state.unread_failures = found.groups, found.unread
    return found.is_manifest_readable


def _say_what_to_type(state: RunState, results: Results, commands: Commands) -> None:
    state.problems = [
        problem
        if problem.fix.by_hand
        else problem._replace(commands=tuple(commands.fixing([problem.fix])))
        for problem in state.problems
    ]
    if not state.count("removed"):  # retry reads the parts
        state.failures = [
            group._replace(
                command=commands.retry(group.kind),
                logs=commands.logs() if group.kind in IN_LOGS else None,
            )
            if group.status == "failed"
            else group
            for group in state.failures
        ]
    in_the_way = [problem for problem in state.problems if problem.is_in_the_way]
    fixes = [one.fix for one in in_the_way]
    state.needs = _needs(state, results, in_the_way)
    if state.needs == "report":
        state.next = commands.report()
    elif state.needs == "retry":
        state.next = [commands.retry(), *commands.fixing([])]
    elif state.needs == "run":
        pending = [shard.name for shard in state.shards if not shard.has_ended]
        state.next, state.forced = commands.fixing(fixes, pending), commands.forced(fixes)


def _needs(state: RunState, results: Results, in_the_way: list[Problem]) -> Need:
    """Return what is needed: nothing while a Snakemake is at work, or when all is done."""
    if state.is_running:
        return ""
    if state.exit_status == DONE:
        return "" if state.delivery.reported == "yes" else "report"
    if state.exit_status == DONE_WITH_FAILURES:
        return "" if state.count("removed") else "retry"
    # Merge has counted what failed since the plan was made, with every part there.
    has_tried_to_merge = is_newer(results.store / "failed.tsv", results.plan)
    is_only_that = has_tried_to_merge and [one.code for one in in_the_way] == ["failed"]
    return "retry" if is_only_that else "run"
