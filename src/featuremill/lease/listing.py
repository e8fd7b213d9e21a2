"""The table of all GPUs and their holders, as text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import folder
from .condition import Failures, look, strangers_on, used_by_others
from .devices import Device, survey
from .gpu_name import gpu
from .nvml import nvml
from .program import DOCTOR
from .slots import SUFFIX, Holder, holders, processes_with

HEADINGS = ("GPU", "STATE", "SLOT", "PID", "USER", "SINCE", "COMMAND OR REASON")
MAX_COMMAND = 80
Row = tuple[str, ...]


def text() -> str:
    """Return a table of all GPUs: free, leased, busy (used without a lease), sick (cooling down
    after failures), lost, or not usable for another reason."""
    where = folder.find()
    held = holders(where)
    with nvml():
        devices = survey()
        rows = [row for device in devices for row in _rows(where, device, held)]
    known = {device.uuid for device in devices}
    rows += [_leased(where, each, gpu(uuid)) for each in held if (uuid := _uuid(each)) not in known]
    if not rows:
        return f"No NVIDIA GPU is visible on this machine; {DOCTOR} shows why."
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in (HEADINGS, *rows)
    )


def _rows(where: Path, device: Device, held: Sequence[Holder]) -> Iterator[Row]:
    mine = [holder for holder in held if _uuid(holder) == device.uuid]
    yield from (_leased(where, holder, device.label) for holder in mine)
    now = None if device.problem else look(device)
    if problem := device.problem or (now and now.problem):
        yield _row(device, "lost" if "lost" in problem else "not usable", problem)
    if not device.uuid or not now or problem:
        return
    pids = [holder.pid for holder in mine]
    strangers = strangers_on(now, pids)
    for process in strangers:
        yield device.label, "busy", "", str(process.pid), process.user, "", process.command
    if not strangers and (why := used_by_others(now, pids)):
        yield _row(device, "busy", why)
    elif why := Failures(where, device.uuid).cooling():
        yield _row(device, "sick", why)
    elif not mine and not strangers:
        yield _row(device, "free")


def _row(device: Device, state: str, why: str = "") -> Row:
    return device.label, state, "", "", "", "", why


def _uuid(holder: Holder) -> str:
    return holder.device.partition("@")[0]


def _leased(where: Path, holder: Holder, label: str) -> Row:
    slots = [part.partition("of") for part in holder.name.split("@")[1:]]
    slot = " in ".join(f"{int(number) + 1} of {count}" for number, _, count in reversed(slots))
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.since))
    command = holder.command
    pid = str(holder.pid)
    if not Path(f"/proc/{holder.pid}").exists():
        left = sorted(processes_with(where / f"{holder.name}{SUFFIX}"))
        if left:
            pid, command = str(left[0]), f"left by {holder.pid}: {command}"
    return label, "leased", slot, pid, holder.user, since, command[:MAX_COMMAND]
