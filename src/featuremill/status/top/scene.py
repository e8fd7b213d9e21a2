"""Everything that one look found, for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from featuremill.status.facts import Facts, Snakemake
from featuremill.status.top.failures import Reason
from featuremill.status.top.jobs import Job
from featuremill.status.top.rest import Rest
from featuremill.status.top.spread import Use
from featuremill.status.top.totals import Totals

Phase = Literal["planning", "starting", "computing", "merging", "between", "unknown", "rest"]
"""between: the run's Snakemake is there, and no job of ours; unknown: whether it is there cannot be
told from here; rest: nothing goes on."""


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
    snakemake: Snakemake
    plan: dict[str, Any] | None = None
    totals: Totals = field(default_factory=Totals)
    jobs: list[Job] = field(default_factory=list)
    """Those that somebody is at."""
    uses: list[Use] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    rest: Rest | None = None
    trouble: str = ""
    """Why this look failed; all else is what the one before found."""
    facts: Facts | None = None
    """What status says, once nothing goes on any more."""

    @property
    def cost_unit(self) -> str:
        """Return what cost is counted in, such as residues."""
        return str(self.plan["cost_unit"]) if self.plan else "cost"

    @property
    def speed(self) -> float | None:
        """Return the cost a second of late, of all jobs; None while none of them has finished a
        batch."""
        told = [job.speed for job in self.jobs if job.speed is not None and not job.is_silent]
        return sum(told) if told else None

    @property
    def at_work(self) -> list[Job]:
        """Return the jobs that hold a device."""
        return [job for job in self.jobs if job.is_at_work]

    @property
    def waiting(self) -> list[Job]:
        """Return the jobs that wait for one."""
        return [job for job in self.jobs if not job.is_at_work]
