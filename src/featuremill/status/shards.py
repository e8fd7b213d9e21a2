"""How far each shard of a plan is: its receipt, its part, its journal, and who holds its lock."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from featuremill.store import lock_holder
from featuremill.store.journal_log import read_log
from featuremill.store.plan import Plan
from featuremill.store.receipt import Receipt
from featuremill.store.results import Results

State = Literal["finished", "running", "unclear", "begun", "waiting", "lost", "removed"]
"""`finished`: the part is there; `running`: a job holds its lock; `unclear`: a job on another
machine signed its lock, which cannot be tested from here; `begun`: batches are committed and no job
computes it; `waiting`: nothing is there; `lost`: the part was finished and is gone; `removed`: part
and receipt are gone, and the results made of them are whole."""
Trouble = Literal["", "receipt", "records"]
Mark = tuple[int, int, int]
"""Of a file: what changes when it does."""


class Holder(NamedTuple):
    """Who has a journal's lock, by the lock file; None where that has nothing."""

    host: str | None = None
    pid: int | None = None
    started: str | None = None
    """ISO 8601, UTC."""
    devices: list[str] | None = None
    """Names; none of them while it waits for one."""


class Work(NamedTuple):
    """What there is of a part that is not finished."""

    batches: int = 0
    """Committed."""
    rows: int = 0
    """In them."""
    last_commit: str | None = None
    """When the journal was last written to, ISO 8601, UTC."""
    holder: Holder = Holder()


class Shard(NamedTuple):
    name: str
    records: int
    cost: int
    state: State = "waiting"
    receipt: Receipt | None = None
    work: Work | None = None
    trouble: Trouble = ""
    """What is damaged or gone: the receipt, or the shard's own file while it is still needed."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to compute."""
        return self.state in ("finished", "removed")

    @property
    def num_rows(self) -> int:
        """Rows of an unfinished shard that are committed."""
        return (self.work.rows or 0) if self.work else 0

    @property
    def cost_left(self) -> float:
        """The cost that is left of an unfinished shard, by its committed rows."""
        return self.cost * (1 - self.num_rows / max(1, self.records))


class Shards:
    """The shards of one plan. The first look reads all of them, later ones read what is new.

    A receipt is read once. The lock of an idle shard is read again when its file has changed.
    """

    def __init__(
        self, results: Results, plan: Plan, receipts: Mapping[str, Receipt] | None = None
    ) -> None:
        """`receipts` are known and need not be read."""
        self.by_name: dict[str, Shard] = {}
        """As they were at the last look, in the order of the plan."""
        self._receipts: dict[str, Receipt] = dict(receipts or {})
        self._results = results
        self._recipe = plan.recipe
        self._planned = {entry.shard: entry for entry in plan.shards}
        self._declared = results.root / "receipts" / plan.recipe
        self._parts = results.store / "parts" / plan.recipe
        self._journals = results.store / "journals" / plan.recipe
        self._idle: dict[str, Mark | None] = {}
        """Shards without a job, and how their lock files were then."""

    def read(self) -> None:
        """Look at all shards anew.

        Receipts are looked at before parts, and parts before locks: so what finishes meanwhile is
        never taken for lost.
        """
        names = listed(self._declared)
        declared = {
            name: self._receipts.get(name) or self._results.find_receipt(self._recipe, name)
            for name in self._planned
            if f"{name}.json" in names
        }
        parts, journals = listed(self._parts), listed(self._journals)
        for name, entry in self._planned.items():
            receipt, is_there = declared.get(name), f"{name}.arrows" in parts
            trouble: Trouble = "receipt" if name in declared and receipt is None else ""
            if is_there and receipt is None:
                receipt = self._results.find_kept_receipt(self._recipe, name)
            state: State = "finished" if is_there and receipt else "waiting"
            shard = Shard(name, entry.records, entry.cost, state, receipt, trouble=trouble)
            self._take(shard if shard.has_ended else self._unfinished(shard, journals))
        self._idle = {}

    def look(self) -> list[str]:
        """Bring the unfinished shards up to date; return those whose job has ended."""
        left = []
        declared, journals = listed(self._declared), listed(self._journals)
        touched = {file.partition(".")[0] for file in declared | journals}
        for shard in [*self.by_name.values()]:
            if shard.has_ended:
                continue
            name, was_active = shard.name, shard.state in ("running", "unclear")
            if not (was_active or name in touched):
                continue
            if f"{name}.json" in declared and self._has_finished(shard):
                continue
            lock = self._journals / f"{name}.lock"
            mark = mark_of(lock) if lock.name in journals else None
            if not was_active and mark in (None, self._idle.get(name)):
                continue
            state, holder = held_by(lock)
            if state:
                work = (shard.work or Work())._replace(holder=holder)
                self._take(shard._replace(state=state, work=work))
                self._idle.pop(name, None)
            else:
                self._take(self._unfinished(shard._replace(state="waiting", work=None), journals))
                self._idle[name] = mark
                left.append(name)
        return left

    def take_for_removed(self, receipts: Iterable[Receipt]) -> None:
        """Take it that the results, of parts with these `receipts`, are whole: what has neither
        part nor receipt was removed."""
        by_name = {receipt.shard: receipt for receipt in receipts}
        for shard in [*self.by_name.values()]:
            if shard.state == "waiting" and not shard.receipt:
                receipt = by_name.get(shard.name)
                self._take(shard._replace(state="removed", receipt=receipt, trouble=""))

    def _take(self, shard: Shard) -> None:
        self.by_name[shard.name] = shard
        if shard.has_ended and shard.receipt:
            self._receipts[shard.name] = shard.receipt

    def _has_finished(self, shard: Shard) -> bool:
        """Take a new receipt; return whether the part is there too."""
        if shard.state == "lost":
            return False
        receipt = self._results.find_receipt(self._recipe, shard.name)
        if receipt is None or not self._results.part(self._recipe, shard.name).exists():
            return False
        self._take(shard._replace(state="finished", receipt=receipt))
        return True

    def _unfinished(self, shard: Shard, journals: set[str]) -> Shard:
        """Return the state of a shard whose part was not found."""
        data = self._results.journal(self._recipe, shard.name)
        lock, log = data.with_suffix(".lock"), data.with_suffix(".log")
        state, holder = held_by(lock) if lock.name in journals else ("", Holder())
        work = None
        if log.name in journals or state == "running":
            work = _work(data, holder)
        if state == "running":
            return shard._replace(state="running", work=work)
        if self._results.part(self._recipe, shard.name).exists():  # since the parts were listed
            receipt = self._results.find_receipt(
                self._recipe, shard.name
            ) or self._results.find_kept_receipt(self._recipe, shard.name)
            return shard._replace(state="finished" if receipt else "waiting", receipt=receipt)
        if state == "unclear":
            return shard._replace(state="unclear", work=work or Work(holder=holder))
        if shard.receipt:
            return shard._replace(state="lost")
        if not has_size(self._results.shard(shard.name), self._planned[shard.name].bytes):
            shard = shard._replace(trouble="records")
        if work and work.batches:
            return shard._replace(state="begun", work=work._replace(holder=Holder()))
        return shard


def held_by(lock: Path) -> tuple[Literal["running", "unclear", ""], Holder]:
    """Return whether a process holds the lock file of a journal (empty: none), and which."""
    facts, is_held = lock_holder.read(lock), lock_holder.is_held(lock)
    holder = Holder(*(facts.get(key) for key in Holder._fields))
    if is_held:
        return "running", holder
    is_unclear = bool(facts) and (is_held is None or holder.host != platform.node())
    return "unclear" if is_unclear else "", holder


def _work(data: Path, holder: Holder) -> Work:
    log = data.with_suffix(".log")
    state = read_log(log)
    if state is None:
        return Work(holder=holder)
    return Work(len(state.commits), state.num_rows(data), _last_change(log), holder)


def _last_change(path: Path) -> str | None:
    try:
        moment = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC)
    except FileNotFoundError:  # finished meanwhile
        return None
    return moment.isoformat(timespec="seconds")


def listed(path: Path) -> set[str]:
    """Return the names in the folder `path`; none when there is no such folder yet."""
    try:
        with os.scandir(path) as entries:
            return {entry.name for entry in entries}
    except FileNotFoundError:
        return set()


def mark_of(path: Path) -> Mark | None:
    """Return what changes when the file does; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def has_size(path: Path, num_bytes: int) -> bool:
    """Return whether the file is there and has that many bytes."""
    try:
        return path.stat().st_size == num_bytes
    except FileNotFoundError:
        return False
