"""Reads the state of a run: `poll` reads only new data, `inspect` reads all files and finds the
problems and the next commands.

A poll reads new receipts and what was appended to telemetry. It reads all shards again when the
plan changes, and once a minute.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.text import plain
from featuremill.base.words import counted, in_words
from featuremill.config import Run, find_run, products
from featuremill.status import outdated
from featuremill.status.commands import Commands, Fix, Problem, shown
from featuremill.status.jobs import TelemetryTail, job_of, time_left
from featuremill.status.outdated import error_in_log, is_newer, problems_before_plan
from featuremill.status.results import DeliveryState, manifest_receipts, read_delivery_state
from featuremill.status.run_state import DONE, DONE_WITH_FAILURES, Activity, Need, RunState
from featuremill.status.shards import Shards
from featuremill.store import command_line, lock_holder, run_lock
from featuremill.store.delivery import Delivery
from featuremill.store.failed import Group, Reason, read_list
from featuremill.store.files import Identity, identity_of
from featuremill.store.plan import Plan
from featuremill.store.results import Results
from featuremill.workload import know_reasons

IN_LOGS = {"crash", "hang", "error"}
"""Kinds of failures that a shard's log explains further."""
TRACES = ("plan.json", "store", "receipts", "records.parquet", "manifest.json")
REREAD_SECONDS = 60.0
"""Seconds between two readings of all shards."""
MOST_FAILING_PARTS = 100
"""Parts with failed rows that are read: more of them fail for the same reasons."""
MOST_PARTS_A_POLL = 5
"""Such parts that a poll reads, so that the first poll of a run with many failures is short."""
MOST_REASONS = 10


@contextlib.contextmanager
def refusing_what_cannot_be_read(run_folder: Path) -> Iterator[None]:
    """Turn an error from reading the run's files into a UserError with the file's name."""
    try:
        yield
    except IntegrityError as error:
        raise UserError(str(error)) from None
    except OSError as error:
        raise UserError(
            f"{error.filename or run_folder}: {error.strerror or error}; while this cannot be "
            "read, the state of the run is unknown."
        ) from None


def is_run(root: Path) -> bool:
    """Return whether a run was started in the folder `root` or has left files there."""
    return run_lock.read(root) is not None or any((root / name).exists() for name in TRACES)


class RunReader:
    """Reads the state of one run repeatedly. Commands in it name `typed`, a config or a folder;
    `config` is the content of a typed config."""

    def __init__(
        self, run_folder: Path, typed: Path | None = None, config: Run | None = None
    ) -> None:
        self._run_folder, self._typed, self._config = run_folder, typed or run_folder, config
        self._results = Results(run_lock.whole_path(run_folder))
        self._plan_identity: Identity = None
        self._plan: Plan | None = None
        self._reread_at = 0.0

    def poll(self) -> RunState:
        """Return the progress of the run.

        Raises:
            IntegrityError: if its plan is damaged.
            UserError: if a newer featuremill wrote it.
        """
        state = RunState(folder=self._run_folder, time=time.time(), activity=self._activity())
        self.take_plan()
        if self._plan:
            if time.monotonic() >= self._reread_at:
                self._shards.read()
                if any(shard.state == "waiting" for shard in self._shards.by_name.values()):
                    self._read_delivery(self._plan, self._results.find_delivery())
                self._reread_at = time.monotonic() + REREAD_SECONDS
            for name in self._shards.poll():
                self._tail(name)  # reads how the job ended
            self._set_progress(state, self._plan)
            most = MOST_FAILING_PARTS - len(self._failed_rows)
            self._read_reasons(state, self._plan, min(MOST_PARTS_A_POLL, most))
        return state

    def inspect(self, verifies: bool = False, must_be: bool = True) -> RunState:
        """Return the progress, the problems and the next commands; hash the files if it `verifies`.

        Raises:
            UserError: if the files cannot be read, or the folder `must_be` a run's and is not.
        """
        state = RunState(
            folder=self._run_folder, time=time.time(), is_inspected=True, verified=verifies
        )
        with refusing_what_cannot_be_read(self._run_folder):
            state.activity = self._activity()
            self.take_plan()
            if self._plan:
                self.read_planned(state)
                state.problems[:0] = self._changes(state, self._plan)
            elif must_be or is_run(self._results.root):
                self._read_unplanned(state)
            else:
                state.is_begun = False
                return state
            commands = Commands(self._results.root, self._typed, self._plan)
            _set_commands(state, self._results, commands)
        return state

    def needing_rerun(self) -> list[Problem]:
        """Return the problems for which the start of a run reruns a command.

        No values are read; only files whose size, times or inode differ are hashed. Files that
        cannot be read are left to the commands, which report them.
        """
        assert self._config
        state, results = RunState(folder=self._run_folder), self._results
        with contextlib.suppress(UserError), refusing_what_cannot_be_read(self._run_folder):
            self.take_plan()
            if self._plan:
                self.read_planned(state, reads_reasons=False)
        problems = [problem for problem in state.problems if problem.fix.again]
        if self._plan:
            is_merged = results.delivery.exists()
            of_config = outdated.problem_of_config(self._config, self._plan, results, is_merged)
            problems += [of_config] if of_config else []
        return problems

    def _changes(self, state: RunState, plan: Plan) -> list[Problem]:
        """Return the problem that the files were made from another config than the typed one, or
        than that of the last start, and the error of the job that made its weights."""
        root, folder, owner = self._results.root, state.folder, state.activity.owner
        config, last, who = self._config, None, str(self._typed)
        working = run_lock.working_folder(root)
        overridden = command_line.overridden(owner.command) if owner else set()
        if owner and (not config or overridden):
            last, who = find_run(self._results), f"the last start ({owner.command})"
            if config and last and overridden <= {*Run.model_fields} - {"workload"}:
                config = config.model_copy(update={key: getattr(last, key) for key in overridden})
            else:
                config = last
        if not config:
            return []
        is_typed = config is not last  # else the labels of a report may have been typed
        of_report = products.changes_of_report(config, root, working) if is_typed else ()
        if of_report:
            state.delivery = state.delivery._replace(reported="older")
        problem = outdated.problem_of_config(
            config, plan, self._results, state.delivery.is_merged, of_report, working
        )
        if problem is None:
            return []
        shown_file = folder if problem.fix.again else folder / "report.html"
        what = f"{shown_file} is not of what {who} asks for ({in_words(problem.changes)})."
        problem = problem._replace(what=what)
        if problem.fix.again != "plan":
            return [problem]
        of_another = owner and owner.config and (working / owner.config).resolve()
        if self._config and of_another and of_another != self._typed.resolve():
            other = shown(of_another)
            fix = Fix(by_hand=f"The results are of {other}: give one of both another `run:`.")
            problem = problem._replace(fix=fix)
        return [problem, *problems_before_plan(self._results, config.weights_json)]

    def _activity(self) -> Activity:
        """Return which processes work on the run as a whole: its Snakemake, a plan or a merge."""
        root, store = self._results.root, self._results.store
        last = run_lock.read(root)
        is_running = lock_holder.is_held(run_lock.path_of(root))
        is_elsewhere = last is not None and last.host != platform.node()
        is_merging = bool(lock_holder.is_held(store / "merge.lock"))
        # A merge holds plan's lock too.
        is_planning = bool(lock_holder.is_held(store / "plan.lock")) and not is_merging
        return Activity(
            None if is_elsewhere and not is_running else is_running, last, is_planning, is_merging
        )

    def take_plan(self) -> None:
        """Read plan.json if it has changed, and forget all data of the old plan."""
        identity = identity_of(self._results.plan)
        if identity == self._plan_identity:
            return
        self._plan = self._results.read_plan() if identity else None
        self._plan_identity = identity
        if self._plan:
            know_reasons(self._plan.workload)
            self._shards = Shards(self._results, self._plan)
            self._reread_at = 0.0
            self._tails: dict[str, TelemetryTail] = {}
            self._failed_rows: dict[str, Mapping[int, Reason]] = {}
            """The failed rows of each part that was read."""

    def _set_progress(self, state: RunState, plan: Plan) -> None:
        state.plan, state.shards = plan, [*self._shards.by_name.values()]
        active = [shard for shard in state.shards if shard.state in ("running", "unclear")]
        state.jobs = [job_of(shard, self._tail(shard.name)) for shard in active]
        taken = {job.shard for job in state.jobs}
        idle = [s for s in state.shards if not s.has_ended and s.name not in taken]
        # A silent job may have died; another job then computes the rest.
        lively = [job for job in state.jobs if job.is_at_work and not job.is_silent]
        others = [job for job in state.jobs if not job.is_at_work or job.is_silent]
        state.time_left = time_left(
            [*(shard.cost_left for shard in idle), *(job.cost_left for job in others)],
            lively,
            [shard.receipt for shard in state.shards if shard.receipt],
        )
        for name in [name for name in self._tails if self._shards.by_name[name].has_ended]:
            del self._tails[name]
        state.ended = {
            name: plain(tail.state.end.get("message", ""))
            for name, tail in self._tails.items()
            if tail.state and tail.state.end and name not in taken
            if tail.state.end.get("status") == "failed"
        }

    def _tail(self, name: str) -> TelemetryTail:
        assert self._plan
        path = self._results.telemetry(self._plan.recipe, name)
        tail = self._tails.setdefault(name, TelemetryTail(path))
        tail.poll(is_held=self._shards.by_name[name].state == "running")
        return tail

    def _read_reasons(self, state: RunState, plan: Plan, most: int | None) -> None:
        """Set the commonest reasons of failed rows; read at `most` that many more parts."""
        failing = [
            (shard.name, shard.receipt.failed)
            for shard in state.shards
            if shard.state == "finished" and shard.receipt and shard.receipt.failed
        ]
        if not failing:
            return
        from featuremill.status.failures import failed_in_part  # brings pyarrow and NumPy

        for name in [name for name, _ in failing if name not in self._failed_rows][:most]:
            self._failed_rows[name] = failed_in_part(self._results, plan.recipe, name)
        state.unread_failures = sum(n for name, n in failing if name not in self._failed_rows)
        counts = Counter[Reason]()
        for rows in self._failed_rows.values():
            counts.update(rows.values())
        commonest = counts.most_common(MOST_REASONS)
        state.reasons = [Group(*reason, number) for reason, number in commonest]

    def _read_unplanned(self, state: RunState) -> None:
        root = self._results.root
        if not is_run(root):
            if not root.is_dir():
                raise UserError(
                    f"{state.folder}: there is no such folder; runs are in results/<run>."
                )
            raise UserError(
                f"{state.folder}: this is not the folder of a run: it has neither plan.json nor "
                "store/; runs are in results/<run>."
            )
        if not state.activity.is_planning:
            last = find_run(self._results)
            state.problems = problems_before_plan(self._results, last.weights_json if last else "")

    def read_planned(self, state: RunState, reads_reasons: bool = True) -> None:
        """Set the state and problems of shards and results; read failed rows on request."""
        results, plan, verifies = self._results, self._plan, state.verified
        assert plan
        delivery = results.find_delivery()
        # manifest.json contains each receipt that is older than it.
        known = {} if verifies else manifest_receipts(results, delivery)
        self._shards = Shards(results, plan, known)
        self._shards.read()
        state.delivery = self._read_delivery(plan, delivery, verifies)
        self._set_progress(state, plan)
        are_records_readable = not reads_reasons or self._read_failures(state, plan)
        _set_problems(state, results, plan, are_records_readable)

    def _read_delivery(
        self, plan: Plan, delivery: Delivery | None, verifies: bool = False
    ) -> DeliveryState:
        """Return the state of the results. Parts that complete results lack count as removed."""
        shards = [*self._shards.by_name.values()]
        delivered = read_delivery_state(self._results, plan, delivery, shards, verifies)
        if delivery and delivered.is_merged:
            self._shards.set_removed(delivery.receipts)
        return delivered

    def _read_failures(self, state: RunState, plan: Plan) -> bool:
        """Set the reasons of failed records; return whether records.parquet can be read."""
        if state.count("removed"):
            state.failures = read_list(self._results.root / "failed.tsv").groups
            return True
        self._failed_rows = {}
        self._read_reasons(state, plan, None if state.verified else MOST_FAILING_PARTS)
        if not (self._failed_rows or plan.refusals):
            return True
        from featuremill.status.failures import read_failures  # brings pyarrow

        state.failures, is_readable = read_failures(self._results, plan, self._failed_rows)
        return is_readable


def _set_problems(
    state: RunState, results: Results, plan: Plan, are_records_readable: bool
) -> None:
    delivered = state.delivery
    pending = [shard for shard in state.shards if not shard.has_ended]
    state.problems = [
        *outdated.problems_of_files(
            results,
            plan,
            state.shards,
            delivered,
            are_records_readable=are_records_readable,
            verifies=state.verified,
        )
    ]
    if pending and (too_few := plan.too_few(len(state.shards))):
        log = shown(results.logs / "plan.log")
        advice = Fix(by_hand=f"{log} has the reason and a remedy.")
        state.problems.append(Problem("slots_idle", too_few, advice, is_in_the_way=False))
    if delivered.is_merged and delivered.reported != "yes":
        log = results.logs / "report.log"
        state.problems += error_in_log("report_failed", "the last report", log, is_in_the_way=False)
    if state.num_failed and not delivered.is_merged:
        what = (
            f"{counted(state.num_failed, 'record')} failed: the results of the others come only "
            "when max_failed is at least that."
        )
        by_hand = "Try them again (see above), or raise max_failed in the config."
        state.problems.append(Problem("failed", what, Fix(by_hand=by_hand), not pending))


def _set_commands(state: RunState, results: Results, commands: Commands) -> None:
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
    fixes = [problem.fix for problem in in_the_way]
    state.needs = _needs(state, results, in_the_way)
    if state.needs == "report":
        state.next = commands.report()
    elif state.needs == "retry":
        state.next = [commands.retry(), *commands.fixing([])]
    elif state.needs == "run":
        pending = [shard.name for shard in state.shards if not shard.has_ended]
        state.next, state.forced = commands.fixing(fixes, pending), commands.forced(fixes)


def _needs(state: RunState, results: Results, in_the_way: list[Problem]) -> Need:
    if state.is_running:
        return ""
    if state.exit_status == DONE:
        return "" if state.delivery.reported == "yes" else "report"
    if state.exit_status == DONE_WITH_FAILURES:
        return "" if state.count("removed") else "retry"
    # Merge writes store/failed.tsv once it has every part.
    has_tried_to_merge = is_newer(results.store / "failed.tsv", results.plan)
    has_only_failed = has_tried_to_merge and [problem.code for problem in in_the_way] == ["failed"]
    return "retry" if has_only_failed else "run"
