"""The model of a run's state behind `status`, `top` and the screen of `run`, and its JSON."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from featuremill.status.commands import Problem
from featuremill.status.jobs import Job, TimeLeft
from featuremill.status.results import DeliveryState
from featuremill.status.shards import Shard, State
from featuremill.store import run_lock
from featuremill.store.delivery import Written
from featuremill.store.failed import Group
from featuremill.store.plan import Plan
from featuremill.workload.weights import model_name_of

VERSION, VERSION_NOW = 2, 2
"""The versions of the JSON that `status` and `top` print."""
DONE, NOT_DONE, DONE_WITH_FAILURES = 0, 1, 2
STATES = ("done", "unfinished", "done_with_failures")
COUNTED: tuple[State, ...] = (
    *("finished", "removed", "running", "unclear", "begun", "waiting", "lost"),
)
Need = Literal["", "report", "retry", "run"]
"""What the user has to do: nothing, make the report, try failed records again, or continue."""
Phase = Literal["computing", "planning", "merging", "starting", "between", "unknown", "idle"]
"""between: Snakemake runs, but none of the run's jobs; unknown: whether Snakemake runs cannot be
seen from this machine; idle: no process is active."""


class Activity(NamedTuple):
    """The processes that work on the run as a whole."""

    is_running: bool | None = None
    """Whether its Snakemake runs; None if this machine cannot see it."""
    owner: run_lock.Owner | None = None
    """The Snakemake process that runs, or the last one."""
    is_planning: bool = False
    is_merging: bool = False


class Sums(NamedTuple):
    """Shards, the distinct records in them, and their cost."""

    shards: int
    records: int
    cost: float

    def share_of(self, total: Sums) -> float:
        """Return the cost as a share of the `total` cost, from 0 to 1."""
        return min(1.0, self.cost / total.cost) if total.cost else 1.0


@dataclass(kw_only=True)
class RunState:
    """A run at one moment. Polling sets its progress, an inspection also its problems."""

    folder: Path
    """The run's folder, as the user typed it."""
    time: float = 0.0
    """The moment, in seconds since 1970."""
    activity: Activity = field(default_factory=Activity)
    plan: Plan | None = None
    shards: list[Shard] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    """The jobs that compute or wait for a device."""
    reasons: list[Group] = field(default_factory=list)
    """Why distinct records failed, in the finished parts that were read."""
    ended: dict[str, str] = field(default_factory=dict)
    """The message of each job that failed and was not restarted, by shard."""
    time_left: TimeLeft | None = None
    trouble: str = ""
    """Why the files could not be read now; the other values are those of the poll before."""

    is_inspected: bool = False
    """Whether this is an inspection, which sets all fields below."""
    is_begun: bool = True
    verified: bool = False
    delivery: DeliveryState = field(default_factory=DeliveryState)
    failures: list[Group] = field(default_factory=list)
    """Input records without values, by reason."""
    unread_failures: int = 0
    """Number of failed rows in parts that were not read."""
    problems: list[Problem] = field(default_factory=list)
    needs: Need = ""
    next: list[str] = field(default_factory=list)
    forced: list[str] = field(default_factory=list)
    """Rules that these commands force."""

    def count(self, *states: State) -> int:
        """Return how many shards are in one of `states`."""
        return sum(shard.state in states for shard in self.shards)

    @cached_property
    def total(self) -> Sums:
        return _sums(self.shards)

    @cached_property
    def ended_sums(self) -> Sums:
        """The sums of the shards with nothing left to compute."""
        return _sums([shard for shard in self.shards if shard.has_ended])

    @cached_property
    def done(self) -> Sums:
        """The ended shards, with all records and cost computed so far, also of other shards."""
        jobs = {job.shard: job for job in self.jobs}
        shards, records, cost = self.ended_sums
        for shard in self.shards:
            if job := jobs.get(shard.name):
                records, cost = records + job.rows_done, cost + job.cost - job.cost_left
            elif not shard.has_ended:
                records, cost = records + shard.num_rows, cost + shard.cost - shard.cost_left
        return Sums(shards, records, cost)

    @property
    def share(self) -> float:
        """The share of the work that is done, from 0 to 1."""
        return self.done.share_of(self.total)

    @property
    def cost_unit(self) -> str:
        """The unit of cost, such as residues."""
        return self.plan.cost_unit if self.plan else "cost"

    @property
    def speed(self) -> float | None:
        """The recent cost per second of all jobs; None before the first finished batch."""
        speeds = [job.speed for job in self.jobs if job.speed is not None and not job.is_silent]
        return sum(speeds) if speeds else None

    @property
    def at_work(self) -> list[Job]:
        return [job for job in self.jobs if job.is_at_work]

    @property
    def waiting(self) -> list[Job]:
        return [job for job in self.jobs if not job.is_at_work]

    @property
    def num_failed_rows(self) -> int:
        """The number of failed distinct records, in parts and in jobs."""
        ended = (shard.receipt for shard in self.shards if shard.has_ended)
        return sum(receipt.failed for receipt in ended if receipt) + sum(
            job.rows_failed for job in self.jobs
        )

    @property
    def num_failed(self) -> int:
        """The number of failed input records, as far as it is known."""
        if self.delivery.delivery and self.delivery.is_merged:
            return self.delivery.delivery.counts.failed
        failed = sum(group.number for group in self.failures if group.status == "failed")
        return failed + self.unread_failures

    @property
    def is_running(self) -> bool:
        """Whether the run's Snakemake runs; False also if that is unknown."""
        return bool(self.activity.is_running)

    @property
    def is_at_work(self) -> bool:
        """Whether a process works on the run."""
        is_busy = self.activity.is_planning or self.activity.is_merging
        return self.is_running or is_busy or self.count("running") > 0

    @property
    def phase(self) -> Phase:
        if self.activity.is_planning or self.activity.is_merging:
            return "planning" if self.activity.is_planning else "merging"
        if any(job.state == "running" for job in self.jobs):
            return "computing"
        if self.is_running:
            return "between" if self.plan else "starting"
        is_seen = self.activity.is_running is not None and not self.jobs
        return "idle" if is_seen or self.exit_status != NOT_DONE else "unknown"

    @property
    def exit_status(self) -> int:
        """0 done, 1 not done, 2 done with failures."""
        if not self.delivery.is_merged or self.ended_sums.shards < len(self.shards):
            return NOT_DONE
        if any(problem.is_in_the_way for problem in self.problems):
            return NOT_DONE
        return DONE_WITH_FAILURES if self.num_failed else DONE

    def as_json(self) -> dict[str, Any]:
        """Return an inspection as the object that docs/json.md describes; None is unknown."""
        plan, activity, delivered = self.plan, self.activity, self.delivery
        total, ended = self.total, self.ended_sums
        return {
            "version": VERSION,
            "folder": str(self.folder),
            "run": plan.run if plan else None,
            "recipe": plan.recipe if plan else None,
            "workload": plan.workload if plan else None,
            "model": (model_name_of(plan.settings) or None) if plan else None,
            "state": STATES[self.exit_status],
            "exit_status": self.exit_status,
            "is_at_work": self.is_at_work,
            "verified": self.verified,
            "input": plan.counts.as_json() if plan else None,
            "shards": {"total": total.shards} | {name: self.count(name) for name in COUNTED},
            "records": {"total": total.records, "finished": ended.records},
            "cost": {"total": total.cost, "finished": ended.cost},
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

    def now_as_json(self, is_alone: bool = True) -> dict[str, Any]:
        """Return the progress as the object that docs/json.md describes. An inspection of a run
        that `is_alone` adds its status."""
        total, done = self.total, self.done
        moment = datetime.datetime.fromtimestamp(self.time, datetime.UTC)
        return {
            "version": VERSION_NOW,
            "folder": str(self.folder),
            "time": moment.isoformat(timespec="seconds"),
            "run": self.plan.run if self.plan else None,
            "phase": self.phase,
            "cost_unit": self.cost_unit,
            "share": round(self.share, 6) if self.plan else None,
            "shards": {"total": total.shards, "done": done.shards},
            "records": {
                "total": total.records,
                "done": done.records,
                "failed": self.num_failed_rows,
            },
            "cost": {"total": total.cost, "done": round(done.cost)},
            "cost_per_second": None if self.speed is None else round(self.speed, 1),
            "time_left": self.time_left and self.time_left.as_json(),
            "jobs": [job.as_json() for job in self.jobs],
            "reasons": [
                {key: getattr(group, key) for key in ("kind", "reason", "number", "remedy")}
                for group in self.reasons
            ],
            "ended": [{"shard": shard, "message": text} for shard, text in self.ended.items()],
            "status": self.as_json() if self.is_inspected and is_alone else None,
        }


def _sums(shards: list[Shard]) -> Sums:
    records, cost = sum(shard.records for shard in shards), sum(shard.cost for shard in shards)
    return Sums(len(shards), records, cost)


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
