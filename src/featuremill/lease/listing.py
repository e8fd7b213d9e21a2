"""`featuremill lease --list`: who holds which slot, as text."""

from __future__ import annotations

import time
from pathlib import Path

from featuremill.lease import folder
from featuremill.lease.condition import Failures
from featuremill.lease.devices import survey
from featuremill.lease.slots import SUFFIX, Holder, holders, processes_with

HEADINGS = ("DEVICE", "SLOT", "PID", "USER", "SINCE", "COMMAND")
MAX_COMMAND = 80


def text() -> str:
    """Return the table of held slots, and the devices that rest after failures."""
    where = folder.find()
    numbers = {device.uuid: f"GPU {device.number}" for device in survey()}
    rows = [_row(where, holder, numbers) for holder in holders(where)]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    lines = ["No GPU slot is leased on this machine."]
    if rows:
        lines = [
            "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
            for row in (HEADINGS, *rows)
        ]
    lines += [
        f"{numbers.get(path.stem, '')} {path.stem}: {why}".strip()
        for path in sorted(where.glob("*.failures"))
        if (why := Failures(where, path.stem).cooling())
    ]
    return "\n".join(lines)


def _row(where: Path, holder: Holder, numbers: dict[str, str]) -> tuple[str, ...]:
    uuid = holder.device.partition("@")[0]
    slot, _, count = holder.name.rpartition("@")[2].partition("of")
    device = f"{numbers.get(uuid, '')} {holder.device}".strip()
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.since))
    command = holder.command
    pid = str(holder.pid)
    if not Path(f"/proc/{holder.pid}").exists():
        left = sorted(processes_with(where / f"{holder.name}{SUFFIX}"))
        if left:
            pid, command = str(left[0]), f"left by {holder.pid}: {command}"
    return device, f"{int(slot) + 1} of {count}", pid, holder.user, since, command[:MAX_COMMAND]
