"""Looks at a run again and again, and reads each time only what is new.

Of shards and receipts what `Shards` does not know yet; of telemetry, what was appended since the
last look. All shards are looked at anew when the plan changes and once a minute.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from featuremill.base.text import plain
from featuremill.status.shards import Held, Mark, Shards, mark_of
from featuremill.status.state import Activity, RunState, activity_of, read_state
from featuremill.status.time_left import by_devices, newest_of
from featuremill.status.top.jobs import Job, job_of
from featuremill.status.top.scene import Ended, Phase, Scene, Sums, Totals
from featuremill.status.top.spread import Spread
from featuremill.status.top.tails import Tail
from featuremill.store import run_lock
from featuremill.store.plan import Plan
from featuremill.store.receipt import Receipt
from featuremill.store.results import Results

if TYPE_CHECKING:  # brings pyarrow
    from featuremill.status.failures import Group, Reason

ANEW_SECONDS = 60.0
"""Between two looks at all shards."""
MOST_FAILING_PARTS = 100
"""Parts with failed rows that are read: more of them fail for the same reasons."""
MOST_PARTS_A_LOOK = 5
"""So many at once: a look must not take long when a run with many failures is opened."""
MOST_REASONS = 10


class Reader:
    """One run, looked at again and again."""

    def __init__(self, given: Path) -> None:
        self._given = given
        self._results = Results(run_lock.whole_path(given))
        self._run: _PlannedRun | None = None
        self._plan_mark: Mark | None = None

    def look(self) -> Scene:
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
            phase = "unknown" if jobs or activity.is_running is None else "rest"
        return self._scene(phase, activity, jobs)

    def look_closely(self) -> Scene:
        """Return the same of a run that nobody is at, with all that status says of it.

        Raises:
            UserError: when that is no run's folder, or its files cannot be read.
        """
        state = read_state(self._given)
        self._take_plan()
        if self._run:
            self._run.take(state)
        return replace(self._scene("rest", state.activity, []), state=state)

    def _take_plan(self) -> None:
        """Read plan.json when it is another one, and then everything anew."""
        mark = mark_of(self._results.plan)
        if mark != self._plan_mark:
            plan = self._results.read_plan() if mark else None
            self._run = _PlannedRun(self._results, plan) if plan else None
            self._plan_mark = mark

    def _scene(self, phase: Phase, activity: Activity, jobs: list[Job]) -> Scene:
        scene = Scene(self._given, time.time(), phase, activity)
        return self._run.shown_in(scene, jobs) if self._run else scene


class _PlannedRun:
    """What is known of the run of one plan, from look to look."""

    def __init__(self, results: Results, plan: Plan) -> None:
        self._results = results
        self._plan = plan
        cost = sum(shard.cost for shard in plan.shards)
        self._sums = Sums(len(plan.shards), sum(shard.records for shard in plan.shards), cost)
        self._shards = Shards(results, plan)
        self._tails: dict[str, Tail] = {}
        self._spread = Spread()
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
        jobs = [self._job(one) for one in held]
        self._take_receipts()
        return jobs

    def _job(self, held: Held) -> Job:
        return job_of(held, self._tail(held.shard.name))

    def take(self, state: RunState) -> None:
        """Take over what status found."""
        self._shards.take(state.shards)
        delivery = state.delivery.delivery
        if delivery and state.count("removed"):
            for receipt in delivery.receipts:
                self._shards.receipts.setdefault(receipt.shard, receipt)
        self._take_receipts()

    def _tail(self, name: str) -> Tail:
        path = self._results.telemetry(self._plan.recipe, name)
        tail = self._tails.setdefault(name, Tail(path))
        tail.look()
        return tail

    def _take_receipts(self) -> None:
        """Add up the receipts that have come since the last look."""
        receipts = self._shards.receipts
        new = list(itertools.islice(receipts.values(), self._num_taken, None))
        self._num_taken = len(receipts)
        if new:
            self._newest = newest_of([*self._newest, *new])
        for receipt in new:
            self._spread.add(receipt)
            self._tails.pop(receipt.shard, None)
            self._num_failed += receipt.failed
            if receipt.failed:
                self._failing.append(receipt.shard)

    def shown_in(self, scene: Scene, jobs: list[Job]) -> Scene:
        """Return the scene with all that is known of the plan's shards."""
        taken = {job.shard for job in jobs}
        idle = [shard for shard in self._shards.open if shard.name not in taken]
        costs_left = [shard.cost_left for shard in idle]
        waiting = costs_left + [job.cost_left for job in jobs if not job.is_at_work]
        is_left = bool(idle or jobs)
        records_left = sum(shard.records - shard.num_rows for shard in idle)
        totals = Totals(
            of=self._sums,
            shards=self._sums.shards - len(idle) - len(jobs),
            records=self._sums.records
            - records_left
            - sum(job.records - job.rows_done for job in jobs),
            failed=self._num_failed + sum(job.rows_failed for job in jobs),
            cost=self._sums.cost - sum(costs_left) - sum(job.cost_left for job in jobs),
        )
        return replace(
            scene,
            plan=self._plan,
            totals=totals,
            jobs=jobs,
            uses=self._spread.uses(jobs, scene.time),
            reasons=self._failures(),
            ended=self._ended(taken),
            rest=by_devices(jobs, waiting, self._newest, scene.time) if is_left else None,
        )

    def _failures(self) -> list[Group]:
        """Return the commonest reasons of failed rows, in the parts that were read by now."""
        if not self._failing:
            return []
        from featuremill.status.failures import Group, failed_in_part  # bring pyarrow and NumPy

        until = min(self._num_read + MOST_PARTS_A_LOOK, MOST_FAILING_PARTS)
        for name in self._failing[self._num_read : until]:
            found = failed_in_part(self._results, self._plan.recipe, name)
            self._reasons.update(found.values())
            self._num_read += 1
        return [
            Group(*reason, number) for reason, number in self._reasons.most_common(MOST_REASONS)
        ]

    def _ended(self, taken: set[str]) -> list[Ended]:
        """Return the jobs that said that they failed, and that nobody goes on with."""
        found = []
        for name, tail in self._tails.items():
            end = tail.state.end if tail.state else None
            if end and end.get("status") == "failed" and name not in taken:
                found.append(Ended(name, plain(end.get("message", ""))))
        return found
