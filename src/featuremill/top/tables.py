"""The two tables of the picture: what each device is at now, and how the work spread."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import NamedTuple

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from featuremill.text import one_line
from featuremill.top import lines
from featuremill.top.jobs import DeviceNow, Job
from featuremill.top.scene import Scene

QUIET, BAD, WARN = "dim", "red", "yellow"
HOT_C = 85
"""From about here on GPUs slow down."""
HARMLESS = ("power_cap", "set_clocks", "sync_boost", "display_clocks")
"""Reasons for lower clocks that somebody chose, or that every busy card has."""
Cell = RenderableType


class Row(NamedTuple):
    """One device of a job."""

    job: Job
    device: DeviceNow
    is_first: bool
    """Of the job's devices: what is the job's stands only there."""
    label: str


class Column(NamedTuple):
    """A column of the jobs' table, left out on terminals that are narrower than `least`."""

    heading: str
    least: int
    cell: Callable[[Row], Cell]
    is_number: bool = True


def jobs_table(scene: Scene, width: int, most: int) -> list[RenderableType]:
    """Return a table with a row a device or slot, and what was left out."""
    jobs = sorted(scene.at_work, key=lambda job: (job.host, *(_key(d) for d in job.devices)))
    labels = labels_of([(job.host, device) for job in jobs for device in job.devices])
    rows = [
        Row(job, device, number == 0, labels[job.host, device.uuid or device.name])
        for job in jobs
        for number, device in enumerate(job.devices)
    ]
    has_gpu = any(row.device.kind == "cuda" for row in rows)
    columns = [one for one in _columns(scene, has_gpu) if width >= one.least]
    table = _table()
    for column in columns:
        table.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows[:most]:
        table.add_row(*(column.cell(row) for column in columns))
    return [table, *_left_out(len(rows) - most, "device")]


def _columns(scene: Scene, has_gpu: bool) -> list[Column]:
    found = [
        Column("DEVICE", 0, lambda row: Text(row.label), False),
        Column("SHARD", 50, lambda row: Text(row.job.shard[:8] if row.is_first else "″"), False),
        Column("", 90, lambda row: _bar(row, 20), False),
        Column("DONE", 0, _percent),
        Column("RECORDS", 104, _records),
        Column("USE", 0, _utilisation),
        Column("MEMORY", 58, _memory),
    ]
    if has_gpu:
        found += [Column("°C", 66, _temperature), Column("W", 74, _power)]
    unit = one_line(scene.cost_unit)[:12].upper()
    return [*found, Column(f"{unit}/S", 0, _speed), Column("LEFT", 82, _left)]


def labels_of(devices: list[tuple[str, DeviceNow]]) -> dict[tuple[str, str], str]:
    """Return what each device is called on the screen, by host and UUID."""
    hosts = {host for host, _ in devices}
    is_here = hosts <= {platform.node()}
    found = {}
    for host, device in devices:
        name = label(device.uuid, device.name)
        found[host, device.uuid or device.name] = name if is_here else f"{one_line(host)} {name}"
    return found


def label(uuid: str, name: str) -> str:
    """Return a device's model and the beginning of its UUID; of a CPU, that it is one."""
    if uuid == "cpu":
        return "CPU"
    model = one_line(name).removeprefix("NVIDIA ").removeprefix("GeForce ")
    head = one_line(uuid).removeprefix("GPU-").removeprefix("MIG-")[:4]
    model = model if len(model) <= 16 else f"{model[:15]}…"
    return f"{head} {model}" if head else model


def _key(device: DeviceNow) -> tuple[str, str, str]:
    return device.name, device.uuid, device.slot


def _bar(row: Row, width: int) -> Cell:
    if not row.is_first:
        return Text()
    job = row.job
    share = 1 - job.cost_left / job.cost if job.cost else 1.0
    return ProgressBar(total=1.0, completed=share, width=width, complete_style="cyan")


def _percent(row: Row) -> Cell:
    job = row.job
    share = 1 - job.cost_left / job.cost if job.cost else 1.0
    return Text(f"{int(100 * share)} %" if row.is_first else "")


def _records(row: Row) -> Cell:
    return Text(f"{row.job.rows_done:,}/{row.job.records:,}" if row.is_first else "")


def _utilisation(row: Row) -> Cell:
    value = row.device.utilisation
    if row.device.kind == "cpu" and value is None:
        value = row.job.cpu_percent
    return Text("–" if value is None else f"{value:.0f} %", "" if value is not None else QUIET)


def _memory(row: Row) -> Cell:
    used, total = row.device.memory_mb, row.device.total_mb
    if row.device.kind == "cpu" and used is None:
        used = row.job.memory_mb
    if used is None:
        return Text("–", QUIET)
    of = f"/{total / 1024:.0f}" if total else ""
    return Text(f"{used / 1024:.1f}{of} GB")


def _temperature(row: Row) -> Cell:
    value = row.device.temperature_c
    if value is None:
        return Text("–", QUIET)
    return Text(f"{value:.0f}", WARN if value >= HOT_C else "")


def _power(row: Row) -> Cell:
    value = row.device.power_w
    return Text("–", QUIET) if value is None else Text(f"{value:.0f}")


def _speed(row: Row) -> Cell:
    job = row.job
    if not row.is_first:
        return Text()
    if job.is_silent:
        return Text(f"silent {lines.duration(job.silent_seconds)}", WARN)
    if job.stage != "run":
        return Text({"load": "loading", "finish": "finishing"}.get(job.stage, ""), QUIET)
    return Text("–", QUIET) if job.speed is None else Text(lines.number(job.speed))


def _left(row: Row) -> Cell:
    job = row.job
    if not row.is_first or not job.pace or job.stage != "run":
        return Text()
    return Text(lines.duration(job.cost_left / job.pace))


def notes(scene: Scene) -> list[RenderableType]:
    """Return what is to be said of the devices at work, besides their numbers."""
    found: list[RenderableType] = []
    for job in scene.at_work:
        for device in job.devices:
            slowed = [why for why in device.throttle if why not in HARMLESS]
            if slowed:
                why = ", ".join(slowed).replace("_", " ")
                text = f"{label(device.uuid, device.name)} is slowed down: {why}"
                found.append(Text(one_line(text), WARN))
        if job.oom_splits:
            text = f"shard {job.shard[:8]}: memory ran out {job.oom_splits:,} times; its batches"
            found.append(Text(f"{text} are smaller now", QUIET))
    if any("utilisation" in one.of_whole_gpu for job in scene.at_work for one in job.devices):
        found.append(Text("USE and what follows are the whole GPU's, which others share.", QUIET))
    return found


def spread_table(scene: Scene, width: int, most: int) -> list[RenderableType]:
    """Return a table with a row a device that computed something, and what was left out."""
    total = sum(use.cost for use in scene.uses)
    hosts = {use.host for use in scene.uses}
    table = _table()
    table.add_column("SO FAR" if scene.facts is None else "BY DEVICE", no_wrap=True)
    for heading in ("SHARDS", "RECORDS", "OF THE WORK", "AT WORK"):
        table.add_column(heading, justify="right", no_wrap=True)
    if width >= 82:
        table.add_column("", no_wrap=True)
    for use in scene.uses[:most]:
        name = label(use.uuid, use.name)
        cells: list[Cell] = [
            Text(name if hosts <= {platform.node()} else f"{one_line(use.host)} {name}"),
            Text(f"{use.shards:,} + {use.running}" if use.running else f"{use.shards:,}"),
            Text(f"{use.records:,}"),
            Text(f"{100 * use.cost / total:.1f} %" if total else "–"),
            Text(f"{100 * use.share_of_time:.0f} % of the time"),
        ]
        if width >= 82:
            share = use.share_of_time
            cells.append(ProgressBar(total=1.0, completed=share, width=20, complete_style="cyan"))
        table.add_row(*cells)
    return [table, *_left_out(len(scene.uses) - most, "device")]


def _left_out(number: int, noun: str) -> list[RenderableType]:
    return [Text(f"and {number:,} more {noun}s", QUIET)] if number > 0 else []


def _table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
