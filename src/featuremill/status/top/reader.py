"""Looks at a run again and again, and reads each time only what is new.

A receipt is read once; of telemetry, what was appended since the last look; of the locks of shards
that nobody was at, those whose file has changed. Everything is looked at anew, as status does it,
when the plan changes and once a minute.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from featuremill.base.text import plain
from featuremill.status.facts import ENDED, Snakemake
from featuremill.status.shards import Shard, held_by, is_of, listed, read_shards, unfinished
from featuremill.status.top.failures import Reason, Reasons
from featuremill.status.top.jobs import Job, job_of
from featuremill.status.top.rest import estimate
from featuremill.status.top.scene import Ended, Phase, Scene
from featuremill.status.top.spread import Spread
from featuremill.status.top.tails import Tail
from featuremill.status.top.totals import cost_left, totals_of
from featuremill.status.visit import at_work, look, read_plan
from featuremill.store import run_lock
from featuremill.store.files import read_sealed
from featuremill.store.results import Results

ANEW_SECONDS = 60.0
"""Between two looks at everything."""
Mark = tuple[int, int, int]


class Reader:
    """One run, looked at again and again."""

    def __init__(self, given: Path) -> None:
        self._given = given
        self._folder = Results(Path(os.path.normpath(given.absolute())))
        self._plan: dict[str, Any] | None = None
        self._plan_mark: Mark | None = None
        self._forget()

    def _forget(self) -> None:
        self._shards: dict[str, Shard] = {}
        self._bytes: dict[str, int] = {}
        self._receipts: dict[str, dict[str, Any]] = {}
        self._tails: dict[str, Tail] = {}
        self._idle: dict[str, Mark | None] = {}
        """Shards that nobody was at, and how their lock files were then."""
        self._spread = Spread()
        self._reasons: Reasons | None = None
        self._anew_at = 0.0

    def look(self) -> Scene:
        """Return how the run stands now.

        Raises:
            UserError: when its plan cannot be read.
        """
        last = run_lock.read(self._folder.root)
        snakemake, is_planning, is_merging = at_work(self._folder, last)
        self._take_plan()
        jobs = self._jobs(self._plan) if self._plan else []
        is_computing = any(job.state == "running" for job in jobs)
        phase: Phase
        if is_planning or is_merging:
            phase = "planning" if is_planning else "merging"
        elif is_computing:
            phase = "computing"
        elif snakemake.is_running:
            phase = "between" if self._plan else "starting"
        else:
            phase = "unknown" if jobs or snakemake.is_running is None else "rest"
        return self._scene(phase, snakemake, jobs)

    def look_closely(self) -> Scene:
        """Return the same of a run that nobody is at, with all that status says of it.

        Raises:
            UserError: when that is no run's folder, or its plan cannot be read.
        """
        facts = look(self._given)
        self._take_plan()
        self._shards = {shard.name: shard for shard in facts.shards}
        for shard in facts.shards:
            self._take_receipt(shard)
        if facts.results and facts.results.manifest and facts.count("removed"):
            for receipt in facts.results.manifest.get("receipts", []):
                self._take_receipt(self._shards[receipt["shard"]]._replace(receipt=receipt))
        return replace(self._scene("rest", facts.snakemake, []), facts=facts)

    def _take_plan(self) -> None:
        """Read plan.json when it is another one, and then everything anew."""
        mark = _mark(self._folder.plan)
        if mark != self._plan_mark:
            self._forget()
            self._plan = read_plan(self._folder, self._given) if mark else None
            self._plan_mark = mark
        if self._plan and time.monotonic() >= self._anew_at:
            self._read_anew(self._plan)

    def _read_anew(self, plan: dict[str, Any]) -> None:
        self._bytes = {entry["shard"]: entry["bytes"] for entry in plan["shards"]}
        shards = read_shards(self._folder, plan, self._receipts)
        self._shards = {shard.name: shard for shard in shards}
        for shard in shards:
            if shard.state == "finished":
                self._take_receipt(shard)
        self._reasons = self._reasons or Reasons(self._folder, plan["recipe"])
        self._idle = {}
        self._anew_at = time.monotonic() + ANEW_SECONDS

    def _take_receipt(self, shard: Shard) -> None:
        if shard.receipt and shard.name not in self._receipts:
            self._receipts[shard.name] = shard.receipt
            self._spread.add(shard.receipt)
            self._tails.pop(shard.name, None)

    def _jobs(self, plan: dict[str, Any]) -> list[Job]:
        """Bring the shards up to date; return the jobs that are at one."""
        recipe, jobs = plan["recipe"], []
        where = self._folder.store / "journals" / recipe
        locks = listed(where)
        receipts = listed(self._folder.root / "receipts" / recipe)
        for name, shard in self._shards.items():
            if shard.state in ENDED:
                continue
            if f"{name}.json" in receipts and shard.state != "lost" and self._has_finished(shard):
                continue
            if f"{name}.lock" not in locks:
                continue
            lock = where / f"{name}.lock"
            if (mark := _mark(lock)) == self._idle.get(name):
                continue
            holder = held_by(lock)
            if holder.state:
                jobs.append(job_of(shard, holder, self._tail(recipe, name)))
                self._idle.pop(name, None)
            else:
                self._take_ended(recipe, shard, locks)
                self._idle[name] = mark
        return jobs

    def _tail(self, recipe: str, name: str) -> Tail:
        tail = self._tails.setdefault(name, Tail(self._folder.telemetry(recipe, name)))
        tail.look()
        return tail

    def _has_finished(self, shard: Shard) -> bool:
        """Take a receipt that has come; tell whether it is one."""
        assert self._plan is not None
        recipe = self._plan["recipe"]
        receipt = read_sealed(self._folder.receipt(recipe, shard.name))
        if not is_of(receipt, recipe, shard.name):
            return False
        if not self._folder.part(recipe, shard.name).exists():
            return False
        self._shards[shard.name] = now = shard._replace(state="finished", receipt=receipt)
        self._take_receipt(now)
        return True

    def _take_ended(self, recipe: str, shard: Shard, journals: set[str]) -> None:
        """Read what there is of a shard that nobody is at."""
        begun = shard._replace(state="waiting", work=None)
        now = unfinished(self._folder, recipe, begun, journals, self._bytes[shard.name])
        self._shards[shard.name] = now
        if now.state == "finished":
            self._take_receipt(now)
        else:
            self._tail(recipe, shard.name)

    def _scene(self, phase: Phase, snakemake: Snakemake, jobs: list[Job]) -> Scene:
        now = time.time()
        if not self._plan:
            return Scene(self._given, now, phase, snakemake)
        shards = list(self._shards.values())
        taken = {job.shard for job in jobs if job.is_at_work}
        left = [cost_left(s) for s in shards if s.state not in ENDED and s.name not in taken]
        return Scene(
            self._given,
            now,
            phase,
            snakemake,
            self._plan,
            totals_of(shards, jobs),
            jobs,
            self._spread.uses(jobs, now),
            self._failures(shards),
            self._ended(jobs),
            estimate(jobs, left, list(self._receipts.values()), now) if jobs or left else None,
        )

    def _failures(self, shards: list[Shard]) -> list[Reason]:
        failing = [s for s in shards if s.receipt and s.receipt["failed"]]
        return self._reasons.look(failing) if failing and self._reasons else []

    def _ended(self, jobs: list[Job]) -> list[Ended]:
        """Return the jobs that said that they failed, and that nobody goes on with."""
        taken = {job.shard for job in jobs}
        found = []
        for name, tail in self._tails.items():
            end = tail.state.end if tail.state else None
            if end and end.get("status") == "failed" and name not in taken:
                found.append(Ended(name, plain(end.get("message", ""))))
        return found


def _mark(path: Path) -> Mark | None:
    """Return what changes when the file does; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
