"""The state of each shard of a plan, from its receipt, part, journal and the holder of its lock."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from featuremill.store import lock_holder
from featuremill.store.files import Identity, identity_of
from featuremill.store.journal_log import read_log
from featuremill.store.plan import Plan
from featuremill.store.receipt import Receipt
from featuremill.store.results import Results

State = Literal["finished", "running", "unclear", "begun", "waiting", "lost", "removed"]
"""`finished`: the part exists; `running`: a job holds its lock; `unclear`: its lock names a job on
another machine and cannot be tested here; `begun`: batches are committed, but no job computes it;
`waiting`: nothing exists; `lost`: a receipt exists, but its part is gone; `removed`: part and
receipt are gone, but the results made of them are complete."""
Trouble = Literal["", "receipt", "records"]


class Holder(NamedTuple):
    """The holder of a journal's lock, as named in the lock file; None is unknown."""

    host: str | None = None
    pid: int | None = None
    started: str | None = None
    """The start of the job: ISO 8601, UTC."""
    devices: list[str] | None = None
    """Names of its devices; none while it waits for one."""


class Work(NamedTuple):
    """The progress of an unfinished part."""

    batches: int = 0
    rows: int = 0
    last_commit: str | None = None
    """The time of the last write to the journal: ISO 8601, UTC."""
    holder: Holder = Holder()


class Shard(NamedTuple):
    name: str
    records: int
    cost: int
    state: State = "waiting"
    receipt: Receipt | None = None
    work: Work | None = None
    trouble: Trouble = ""
    """What is damaged or missing: the receipt, or the shard's file of records while needed."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing is left to compute."""
        return self.state in ("finished", "removed")

    @property
    def num_rows(self) -> int:
        return (self.work.rows or 0) if self.work else 0

    @property
    def cost_left(self) -> float:
        """The cost left of an unfinished shard, in proportion to its uncommitted rows."""
        return self.cost * (1 - self.num_rows / max(1, self.records))


class Shards:
    """The shards of one plan. `read` reads all of them, `poll` reads what is new.

    A receipt is read once. The lock of an idle shard is read again when its file has changed.
    """

    def __init__(
        self, results: Results, plan: Plan, receipts: Mapping[str, Receipt] | None = None
    ) -> None:
        """`receipts` are those that need not be read."""
        self.by_name: dict[str, Shard] = {}
        """The shards at the last poll, in the order of the plan."""
        self._receipts: dict[str, Receipt] = dict(receipts or {})
        self._results = results
        self._recipe = plan.recipe
        self._planned = {entry.shard: entry for entry in plan.shards}
        self._declared = results.root / "receipts" / plan.recipe
        self._parts = results.store / "parts" / plan.recipe
        self._journals = results.store / "journals" / plan.recipe
        self._idle: dict[str, Identity] = {}
        """The identities of the lock files of shards without a job."""

    def read(self) -> None:
        """Read the state of all shards.

        Receipts are listed before parts, and parts before locks, so that a shard that finishes
        meanwhile is never taken for lost.
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

    def poll(self) -> list[str]:
        """Update the unfinished shards; return the names of those whose job has ended."""
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
            identity = identity_of(lock) if lock.name in journals else None
            if not was_active and identity in (None, self._idle.get(name)):
                continue
            state, holder = held_by(lock)
            if state:
                work = (shard.work or Work())._replace(holder=holder)
                self._take(shard._replace(state=state, work=work))
                self._idle.pop(name, None)
            else:
                self._take(self._unfinished(shard._replace(state="waiting", work=None), journals))
                self._idle[name] = identity
                left.append(name)
        return left

    def set_removed(self, receipts: Iterable[Receipt]) -> None:
        """Set shards without part and receipt to `removed`, as the results are complete; `receipts`
        are those of the results."""
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
        """Set the shard to `finished` if its receipt and its part exist; return whether it is."""
        if shard.state == "lost":
            return False
        receipt = self._results.find_receipt(self._recipe, shard.name)
        if receipt is None or not self._results.part(self._recipe, shard.name).exists():
            return False
        self._take(shard._replace(state="finished", receipt=receipt))
        return True

    def _unfinished(self, shard: Shard, journals: set[str]) -> Shard:
        """Return the shard, whose part was not listed, with its state."""
        data = self._results.journal(self._recipe, shard.name)
        lock, log = data.with_suffix(".lock"), data.with_suffix(".log")
        state, holder = held_by(lock) if lock.name in journals else ("", Holder())
        work = None
        if log.name in journals or state == "running":
            work = _work(data, holder)
        if state == "running":
            return shard._replace(state="running", work=work)
        if self._results.part(self._recipe, shard.name).exists():  # since the parts were listed
            find, find_kept = self._results.find_receipt, self._results.find_kept_receipt
            receipt = find(self._recipe, shard.name) or find_kept(self._recipe, shard.name)
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
    """Return whether a process holds the lock of a journal ("" if not), and its holder."""
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
    last_commit = None
    if identity := identity_of(log):  # else finished meanwhile
        last_commit = datetime.datetime.fromtimestamp(
            identity[1] // 10**9, datetime.UTC
        ).isoformat()
    return Work(len(state.commits), state.num_rows(data), last_commit, holder)


def listed(path: Path) -> set[str]:
    """Return the names in the folder `path`; none if it does not exist."""
    try:
        with os.scandir(path) as entries:
            return {entry.name for entry in entries}
    except FileNotFoundError:
        return set()


def has_size(path: Path, num_bytes: int) -> bool:
    """Return whether the file exists and has that many bytes."""
    return (identity := identity_of(path)) is not None and identity[0] == num_bytes
