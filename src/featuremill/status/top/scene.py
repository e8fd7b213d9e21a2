"""Everything that one look at a run found, for whoever shows it, and as programs get it."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from featuremill.status.state import Activity, RunState
from featuremill.status.time_left import DeviceTime
from featuremill.status.top.jobs import Job
from featuremill.status.top.spread import Use
from featuremill.store.plan import Plan

if TYPE_CHECKING:  # brings pyarrow
    from featuremill.status.failures import Group

VERSION = 1
"""Of the JSON."""
Phase = Literal["planning", "starting", "computing", "merging", "between", "unknown", "rest"]
"""between: the run's Snakemake is there, and no job of ours; unknown: whether it is there cannot be
told from here; rest: nothing goes on."""


class Sums(NamedTuple):
    """What all shards of a plan hold."""

    shards: int = 0
    records: int = 0
    """Distinct ones."""
    cost: int = 0


class Totals(NamedTuple):
    """How far a run is."""

    of: Sums = Sums()
    shards: int = 0
    """Finished."""
    records: int = 0
    """With a row, be it a failed one."""
    failed: int = 0
    cost: float = 0.0

    @property
    def share(self) -> float:
        """How much of the work is done, from 0 to 1."""
        return min(1.0, self.cost / self.of.cost) if self.of.cost else 1.0


@dataclass(frozen=True)
class Ended:
    """A job that ended badly and that nobody has taken up since."""

    shard: str
    message: str


@dataclass(frozen=True)
class Scene:
    """A run at one moment."""

    given: Path
    """What the user calls its folder."""
    time: float
    """In seconds since 1970."""
    phase: Phase
    activity: Activity
    plan: Plan | None = None
    totals: Totals = field(default_factory=Totals)
    jobs: list[Job] = field(default_factory=list)
    """Those that somebody is at."""
    uses: list[Use] = field(default_factory=list)
    reasons: list[Group] = field(default_factory=list)
    """Why distinct records failed, in parts that are finished."""
    ended: list[Ended] = field(default_factory=list)
    rest: DeviceTime | None = None
    trouble: str = ""
    """Why this look failed; all else is what the one before found."""
    state: RunState | None = None
    """What status says, once nothing goes on any more."""

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
        """Return it as one object, as docs/top.md explains it; what is not known is None."""
        totals, rest = self.totals, self.rest
        moment = datetime.datetime.fromtimestamp(self.time, datetime.UTC)
        return {
            "version": VERSION,
            "folder": str(self.given),
            "time": moment.isoformat(timespec="seconds"),
            "run": self.plan.run if self.plan else None,
            "phase": self.phase,
            "cost_unit": self.cost_unit,
            "share": round(totals.share, 6) if self.plan else None,
            "shards": {"total": totals.of.shards, "done": totals.shards},
            "records": {
                "total": totals.of.records,
                "done": totals.records,
                "failed": totals.failed,
            },
            "cost": {"total": float(totals.of.cost), "done": round(totals.cost, 3)},
            "cost_per_second": _rounded(self.speed),
            "rest": rest and {**rest._asdict(), "seconds": _rounded(rest.seconds)},
            "jobs": [job.as_json() for job in self.jobs],
            "devices": [use.as_json() for use in self.uses],
            "reasons": [
                {key: getattr(one, key) for key in ("kind", "reason", "number", "remedy")}
                for one in self.reasons
            ],
            "ended": [asdict(one) for one in self.ended],
            "status": self.state.as_json() if self.state else None,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
