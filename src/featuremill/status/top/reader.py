"""Looks at a run again and again, and reads each time only what is new.

Of shards and receipts what `Shards` does not know yet; of telemetry, what was appended since the
last look. All shards are looked at anew when the plan changes and once a minute.
"""

from __future__ import annotations

import datetime
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from featuremill.base.text import plain
from featuremill.config.runs import Runs
from featuremill.status import view
from featuremill.status.project import ProjectState
from featuremill.status.shards import Mark, Shards, mark_of
from featuremill.status.state import Activity, RunState, activity_of, read_state
from featuremill.status.time_left import JobLeft, TimeLeft, time_left
from featuremill.status.top.jobs import Job, TelemetryTail, job_of
from featuremill.store import run_lock
from featuremill.store.failed import Group, Reason
from featuremill.store.plan import Plan
from featuremill.store.receipt import Receipt, newest_whole
from featuremill.store.results import Results
from featuremill.workload import know_reasons

VERSION = 2
"""Of the JSON."""
WHOLE_VERSION = 1
"""The same of several runs."""
ANEW_SECONDS = 60.0
"""Between two looks at all shards."""
MOST_FAILING_PARTS = 100
"""Parts with failed rows that are read: more of them fail for the same reasons."""
MOST_PARTS_A_LOOK = 5
"""So many at once: a look must not take long when a run with many failures is opened."""
MOST_REASONS = 10
Phase = Literal["computing", "planning", "merging", "starting", "between", "unknown", "idle"]
"""between: the run's Snakemake is there, and no job of ours; unknown: whether it is there cannot be
told from here; idle: no process is active."""


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Shards, the distinct records in them, and their cost: of a plan, or as far as it is done."""

    shards: int = 0
    records: int = 0
    cost: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RunNow:
    """A run at one moment."""

    folder: Path
    """As the user calls it."""
    time: float
    """In seconds since 1970."""
    phase: Phase
    activity: Activity
    plan: Plan | None = None
    total: Sums = field(default_factory=Sums)
    done: Sums = field(default_factory=Sums)
    """Shards that are finished; records with a row, be it a failed one."""
    num_failed: int = 0
    jobs: list[Job] = field(default_factory=list)
    """Those that somebody is at."""
    reasons: list[Group] = field(default_factory=list)
    """Why distinct records failed, in parts that are finished."""
    ended: dict[str, str] = field(default_factory=dict)
    """By shard, what a job said that failed and that nobody has taken up since."""
    time_left: TimeLeft | None = None
    trouble: str = ""
    """Why this look failed; all else is what the one before found."""
    status: RunState | None = None
    """What status says, once nothing goes on any more."""

    @property
    def share(self) -> float:
        """How much of the work is done, from 0 to 1."""
        return min(1.0, self.done.cost / self.total.cost) if self.total.cost else 1.0

    @property
    def cost_unit(self) -> str:
        """What cost is counted in, such as residues."""
        return self.plan.cost_unit if self.plan else "cost"

    @property
    def speed(self) -> float | None:
        """The cost a second of late, of all jobs; None while none of them has finished a batch."""
        told = [job.speed for job in self.jobs if job.speed is not None and not job.is_silent]
        return sum(told) if told else None

    @property
    def at_work(self) -> list[Job]:
        """The jobs that hold a device."""
        return [job for job in self.jobs if job.is_at_work]

    @property
    def waiting(self) -> list[Job]:
        """The jobs that wait for one."""
        return [job for job in self.jobs if not job.is_at_work]

    def as_json(self) -> dict[str, Any]:
        """Return it as one object, as docs/json.md explains it; what is not known is None."""
        total, done = self.total, self.done
        moment = datetime.datetime.fromtimestamp(self.time, datetime.UTC)
        return {
            "version": VERSION,
            "folder": str(self.folder),
            "time": moment.isoformat(timespec="seconds"),
            "run": self.plan.run if self.plan else None,
            "phase": self.phase,
            "cost_unit": self.cost_unit,
            "share": round(self.share, 6) if self.plan else None,
            "shards": {"total": total.shards, "done": done.shards},
            "records": {"total": total.records, "done": done.records, "failed": self.num_failed},
            "cost": {"total": float(total.cost), "done": round(done.cost, 3)},
            "cost_per_second": None if self.speed is None else round(self.speed, 1),
            "time_left": self.time_left and self.time_left.as_json(),
            "jobs": [job.as_json() for job in self.jobs],
            "reasons": [
                {key: getattr(one, key) for key in ("kind", "reason", "number", "remedy")}
                for one in self.reasons
            ],
            "ended": [{"shard": shard, "message": text} for shard, text in self.ended.items()],
            "status": self.status.as_json() if self.status else None,
        }


class Reader:
    """One run, looked at again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._results = Results(run_lock.whole_path(folder))
        self._run: _PlannedRun | None = None
        self._plan_mark: Mark | None = None

    def look(self) -> RunNow:
        """Return how the run stands now.

        Raises:
            IntegrityError: when its plan is not what was written.
            UserError: when a newer featuremill wrote it.
        """
        activity = activity_of(self._results)
        self._take_plan()
        jobs = self._run.jobs() if self._run else []
        phase: Phase
        if activity.is_planning or activity.is_merging:
            phase = "planning" if activity.is_planning else "merging"
        elif any(job.state == "running" for job in jobs):
            phase = "computing"
        elif activity.is_running:
            phase = "between" if self._run else "starting"
        else:
            phase = "unknown" if jobs or activity.is_running is None else "idle"
        return self._now(phase, activity, jobs)

    def look_closely(self) -> RunNow:
        """Return the same of a run that nobody is at, with all that status says of it.

        Raises:
            UserError: when that is no run's folder, or its files cannot be read.
        """
        status = read_state(self._folder)
        self._take_plan()
        if self._run:
            self._run.take(status)
        return replace(self._now("idle", status.activity, []), status=status)

    def _take_plan(self) -> None:
        """Read plan.json when it is another one, and then everything anew."""
        mark = mark_of(self._results.plan)
        if mark != self._plan_mark:
            plan = self._results.read_plan() if mark else None
            know_reasons(plan.workload if plan else "")
            self._run = _PlannedRun(self._results, plan) if plan else None
            self._plan_mark = mark

    def _now(self, phase: Phase, activity: Activity, jobs: list[Job]) -> RunNow:
        now = RunNow(folder=self._folder, time=time.time(), phase=phase, activity=activity)
        return self._run.added_to(now, jobs) if self._run else now


class WholeNow(NamedTuple):
    """Runs that somebody looks at together at one moment: one, or those of a config."""

    named: Runs
    runs: list[RunNow]
    status: RunState | ProjectState | None = None
    """What status says of all of it, once nothing goes on any more."""

    @property
    def phase(self) -> Phase:
        """What goes on: of several runs, what does most."""
        return min((run.phase for run in self.runs), key=get_args(Phase).index)

    def as_json(self) -> dict[str, Any]:
        """Return it as one object, as docs/json.md explains it."""
        if self.named.is_one:
            return self.runs[0].as_json()
        return {
            "version": WHOLE_VERSION,
            "config": str(self.named.given),
            "phase": self.phase,
            "runs": [run.as_json() for run in self.runs],
            "status": self.status and self.status.as_json(),
        }


class WholeReader:
    """Runs that are looked at together."""

    def __init__(self, runs: Runs) -> None:
        self._named = runs
        self._readers = [Reader(folder) for folder in runs.folders]

    def look(self) -> WholeNow:
        """Return how they stand now.

        Raises:
            IntegrityError: when a plan is not what was written.
            UserError: when a newer featuremill wrote it.
        """
        return WholeNow(self._named, [reader.look() for reader in self._readers])

    def look_closely(self) -> WholeNow:
        """Return the same of runs that nobody is at, with all that status says of them.

        Raises:
            UserError: when there is no such run, or its files cannot be read.
        """
        if self._named.is_one:
            now = self._readers[0].look_closely()
            return WholeNow(self._named, [now], now.status)
        return self.look()._replace(status=view.read(self._named))


class _PlannedRun:
    """What is known of the run of one plan, from look to look."""

    def __init__(self, results: Results, plan: Plan) -> None:
        self._results = results
        self._plan = plan
        self._total = Sums(
            shards=len(plan.shards),
            records=sum(shard.records for shard in plan.shards),
            cost=sum(shard.cost for shard in plan.shards),
        )
        self._shards = Shards(results, plan)
        self._tails: dict[str, TelemetryTail] = {}
        self._newest: list[Receipt] = []
        self._num_taken = 0
        """Receipts that were added up."""
        self._num_failed = 0
        self._failing: list[str] = []
        """Shards with failed rows."""
        self._num_read = 0
        """Of them, how many parts were read."""
        self._reasons: Counter[Reason] = Counter()
        self._anew_at = 0.0

    def jobs(self) -> list[Job]:
        """Bring the shards up to date; return the jobs that are at one."""
        if time.monotonic() >= self._anew_at:
            self._shards.read()
            self._anew_at = time.monotonic() + ANEW_SECONDS
        held, left = self._shards.look()
        for name in left:
            self._tail(name)
        jobs = [job_of(one, self._tail(one.shard.name)) for one in held]
        self._take_receipts()
        return jobs

    def take(self, state: RunState) -> None:
        """Take over what status found."""
        self._shards.take(state.shards)
        delivery = state.delivery.delivery
        if delivery and state.count("removed"):
            for receipt in delivery.receipts:
                self._shards.receipts.setdefault(receipt.shard, receipt)
        self._take_receipts()

    def _tail(self, name: str) -> TelemetryTail:
        path = self._results.telemetry(self._plan.recipe, name)
        tail = self._tails.setdefault(name, TelemetryTail(path))
        tail.look()
        return tail

    def _take_receipts(self) -> None:
        """Add up the receipts that have come since the last look."""
        receipts = self._shards.receipts
        new = list(itertools.islice(receipts.values(), self._num_taken, None))
        self._num_taken = len(receipts)
        if new:
            self._newest = newest_whole([*self._newest, *new])
        for receipt in new:
            self._tails.pop(receipt.shard, None)
            self._num_failed += receipt.failed
            if receipt.failed:
                self._failing.append(receipt.shard)

    def added_to(self, now: RunNow, jobs: list[Job]) -> RunNow:
        """Return `now` with all that is known of the plan's shards."""
        taken = {job.shard for job in jobs}
        idle = [shard for shard in self._shards.open if shard.name not in taken]
        # Nobody knows whether a silent job goes on: what it has left may be another one's to do.
        lively = [job for job in jobs if job.is_at_work and not job.is_silent]
        others = [job for job in jobs if not job.is_at_work or job.is_silent]
        waiting = [shard.cost_left for shard in idle] + [job.cost_left for job in others]
        total = self._total
        records_left = sum(shard.records - shard.num_rows for shard in idle)
        records_left += sum(job.records - job.rows_done for job in jobs)
        done = Sums(
            shards=total.shards - len(idle) - len(jobs),
            records=total.records - records_left,
            cost=total.cost - sum(waiting) - sum(job.cost_left for job in lively),
        )
        return replace(
            now,
            plan=self._plan,
            total=total,
            done=done,
            num_failed=self._num_failed + sum(job.rows_failed for job in jobs),
            jobs=jobs,
            reasons=self._failures(),
            ended=self._ended(taken),
            time_left=time_left(
                waiting, [JobLeft(job.cost_left, job.pace) for job in lively], self._newest
            ),
        )

    def _failures(self) -> list[Group]:
        """Return the commonest reasons of failed rows, in the parts that were read by now."""
        if not self._failing:
            return []
        from featuremill.status.failures import failed_in_part  # brings pyarrow and NumPy

        until = min(self._num_read + MOST_PARTS_A_LOOK, MOST_FAILING_PARTS)
        for name in self._failing[self._num_read : until]:
            found = failed_in_part(self._results, self._plan.recipe, name)
            self._reasons.update(found.values())
            self._num_read += 1
        return [
            Group(*reason, number) for reason, number in self._reasons.most_common(MOST_REASONS)
        ]

    def _ended(self, taken: set[str]) -> dict[str, str]:
        """Return what jobs said that failed, by shard, if nobody goes on with it."""
        ends = {
            name: tail.state.end
            for name, tail in self._tails.items()
            if tail.state and tail.state.end and name not in taken
        }
        return {
            name: plain(end.get("message", ""))
            for name, end in ends.items()
            if end.get("status") == "failed"
        }
