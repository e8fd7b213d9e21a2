"""How far each shard of a plan is: its receipt, its part, its journal, and who holds its lock."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import Any, Literal, NamedTuple

from featuremill.store import lock_holder
from featuremill.store.files import read_sealed
from featuremill.store.results import Results

State = Literal["finished", "running", "unclear", "begun", "waiting", "lost", "removed"]
"""finished: the part is there; running: somebody has its lock; unclear: a job on another machine
said that it is at it, and its lock cannot be tested from here; begun: batches are committed and
nobody is at it; waiting: nothing is there; lost: the part was finished and is gone; removed: part
and receipt are gone, and the results made of them are whole."""


class Work(NamedTuple):
    """What there is of a part that is not finished."""

    batches: int
    """Committed."""
    rows: int | None
    """In them; None where an early journal does not tell."""
    last_commit: str | None
    """When the journal was last written to, ISO 8601, UTC."""
    who: dict[str, Any]
    """host, pid, started and devices of who is at it, as far as the lock file says."""


class Shard(NamedTuple):
    """One shard of the plan."""

    name: str
    records: int
    cost: int
    state: State
    receipt: dict[str, Any] | None
    work: Work | None = None
    trouble: Literal["", "receipt", "records"] = ""
    """What is damaged or gone: the receipt, or the shard's own file while it is still needed."""


class Holder(NamedTuple):
    """Who has a journal's lock."""

    state: Literal["running", "unclear", ""]
    """Empty: nobody."""
    who: dict[str, Any]


def held_by(lock: Path) -> Holder:
    """Return who has the lock file of a journal."""
    who, is_held = lock_holder.read(lock), lock_holder.is_held(lock)
    if is_held:
        return Holder("running", who)
    is_unclear = bool(who) and (is_held is None or who.get("host") != platform.node())
    return Holder("unclear" if is_unclear else "", who)


def read_shards(
    folder: Results, plan: dict[str, Any], known: dict[str, dict[str, Any]]
) -> list[Shard]:
    """Return the plan's shards in its order; `known` receipts need not be read.

    Receipts are looked at before parts, and parts before locks: so what finishes meanwhile is
    never taken for lost.
    """
    recipe = plan["recipe"]
    where = folder.root / "receipts" / recipe
    declared = {
        name: known.get(name) or read_sealed(where / f"{name}.json")
        for name in _names(plan, listed(where))
    }
    parts = listed(folder.store / "parts" / recipe)
    journals = listed(folder.store / "journals" / recipe)
    found = []
    for entry in plan["shards"]:
        name = entry["shard"]
        receipt, is_there = declared.get(name), f"{name}.arrows" in parts
        trouble: Literal["", "receipt"] = ""
        if name in declared and not is_of(receipt, recipe, name):
            receipt, trouble = None, "receipt"
        if is_there and receipt is None:
            receipt = _kept(folder, recipe, name)
        begun = Shard(name, entry["records"], entry["cost"], "waiting", receipt, None, trouble)
        if is_there and receipt:
            found.append(begun._replace(state="finished"))
        else:
            found.append(unfinished(folder, recipe, begun, journals, entry["bytes"]))
    return found


def unfinished(
    folder: Results, recipe: str, shard: Shard, journals: set[str], num_bytes: int
) -> Shard:
    """Return what there is of a shard whose part was not found."""
    data = folder.journal(recipe, shard.name)
    lock = data.with_suffix(".lock")
    holder = held_by(lock) if lock.name in journals else Holder("", {})
    who = holder.who
    has_log = data.with_suffix(".log").name in journals
    work = _work(data, who) if has_log or holder.state == "running" else None
    if holder.state == "running":
        return shard._replace(state="running", work=work)
    part = folder.part(recipe, shard.name)
    if part.exists():  # since the parts were listed
        receipt = read_sealed(folder.receipt(recipe, shard.name)) or _kept(
            folder, recipe, shard.name
        )
        return shard._replace(state="finished" if receipt else "waiting", receipt=receipt)
    if holder.state == "unclear":
        return shard._replace(state="unclear", work=work or Work(0, 0, None, who))
    if shard.receipt:
        return shard._replace(state="lost")
    if not has_size(folder.shard(shard.name), num_bytes):
        shard = shard._replace(trouble="records")
    if work and work.batches:
        return shard._replace(state="begun", work=work._replace(who={}))
    return shard


def _work(data: Path, who: dict[str, Any]) -> Work:
    from featuremill.store.journal import read_log  # brings pyarrow, which few calls need

    log = data.with_suffix(".log")
    state = read_log(log) if log.exists() else None
    if state is None:
        return Work(0, 0, None, who)
    return Work(len(state.commits), state.num_rows(data), _last_change(log), who)


def _last_change(path: Path) -> str | None:
    try:
        moment = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC)
    except FileNotFoundError:  # finished meanwhile
        return None
    return moment.isoformat(timespec="seconds")


def _names(plan: dict[str, Any], listed: set[str]) -> list[str]:
    """Return the plan's shards that have a receipt among the files `listed`."""
    return [entry["shard"] for entry in plan["shards"] if f"{entry['shard']}.json" in listed]


def listed(path: Path) -> set[str]:
    """Return the names in the folder `path`; none when there is no such folder yet."""
    try:
        with os.scandir(path) as entries:
            return {entry.name for entry in entries}
    except FileNotFoundError:
        return set()


def _kept(folder: Results, recipe: str, name: str) -> dict[str, Any] | None:
    """Return the receipt that extract keeps beside the part and adopts."""
    kept = read_sealed(folder.part(recipe, name).with_suffix(".json"))
    return kept if is_of(kept, recipe, name) else None


def is_of(receipt: dict[str, Any] | None, recipe: str, name: str) -> bool:
    """Tell whether the receipt is that of the part, with all that is read of it here."""
    return (
        receipt is not None
        and (receipt.get("recipe"), receipt.get("shard")) == (recipe, name)
        and isinstance(receipt.get("part"), str)
        and all(isinstance(receipt.get(key), int) for key in ("rows", "failed", "cost"))
        and isinstance(receipt.get("seconds"), dict)
    )


def has_size(path: Path, num_bytes: int) -> bool:
    """Tell whether the file is there and has that many bytes."""
    try:
        return path.stat().st_size == num_bytes
    except FileNotFoundError:
        return False
