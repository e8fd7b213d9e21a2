"""The two tables of the picture: what each device is at now, and how the work spread.

They fit: where a terminal is too narrow for all columns, the least important ones go.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from featuremill.base.text import one_line
from featuremill.status.top import lines
from featuremill.status.top.jobs import DeviceNow, Job
from featuremill.status.top.scene import Scene
from featuremill.status.view import duration

QUIET, WARN = "dim", "yellow"
HOT_C = 85
"""From about here on GPUs slow down."""
HARMLESS = ("power_cap", "set_clocks", "sync_boost", "display_clocks")
"""Reasons for lower clocks that somebody chose, or that every busy card has."""
MOST_NAME = 22
GAP = 2
LEAST_BAR, MOST_BAR = 8, 28
LEAST_NAME = 9
"""What is left of the first column, whose texts may be cut, before another column goes."""
ALWAYS = 99
NOBODY_KNOWS = Text("–", QUIET)
Cell = Text | float | None
"""A share (from 0 to 1) is drawn as a bar."""


class Column(NamedTuple):
    """What stands above a column; a bar's has no heading."""

    heading: str
    rank: int = ALWAYS
    """The least goes first."""
    is_number: bool = True


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> Table:
    """Return a table of at most `width` columns of a terminal; the first column is a name's.

    A column without a cell in any row is left out.
    """
    by_column = zip(columns, zip(*rows, strict=True), strict=True)
    cells = {column: its for column, its in by_column if any(cell is not None for cell in its)}
    name, *others = cells
    needed = {column: _needed(column, cells[column]) for column in cells}

    def room() -> int:
        return width - sum(GAP + needed[column] for column in others)

    while room() < min(needed[name], LEAST_NAME):
        lowest = min(others, key=lambda column: column.rank)
        if lowest.rank == ALWAYS:
            break
        others.remove(lowest)
    bar_width = min(MOST_BAR, LEAST_BAR + max(0, room() - needed[name]))
    needed[name] = max(1, min(needed[name], room()))
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    kept = [name, *others]
    for column in kept:
        table.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=needed[column] if column.heading else bar_width,
        )
    for row in zip(*(cells[column] for column in kept), strict=True):
        table.add_row(*(_drawn(cell, bar_width) for cell in row))
    return table


def _needed(column: Column, cells: Sequence[Cell]) -> int:
    texts = [cell.cell_len for cell in cells if isinstance(cell, Text)]
    return max(len(column.heading), *texts, 0) if column.heading else LEAST_BAR


def _drawn(cell: Cell, width: int) -> RenderableType:
    if isinstance(cell, float):
        return ProgressBar(total=1.0, completed=round(cell, 2), width=width, complete_style="cyan")
    return cell or Text()


def jobs_table(scene: Scene, width: int) -> Table:
    """Return a table with a row a device or slot."""
    jobs = sorted(scene.at_work, key=lambda job: (job.host, *(_order(d) for d in job.devices)))
    is_here = {job.host for job in jobs} <= {platform.node()}
    rows = [
        _row(job, device, is_first=number == 0, is_here=is_here)
        for job in jobs
        for number, device in enumerate(job.devices)
    ]
    columns = [
        Column("DEVICE", is_number=False),
        Column("SHARD", 5, False),
        Column("", 4, False),
        Column("DONE"),
        Column("RECORDS", 1),
        Column("USE"),
        Column("MEMORY", 7),
        Column("°C", 6),
        Column("W", 2),
        Column(f"{one_line(scene.cost_unit)[:12].upper()}/S"),
        Column("LEFT", 3),
    ]
    return fitted(columns, rows, width)


def _order(device: DeviceNow) -> tuple[str, str, str]:
    return device.name, device.uuid, device.slot


def _row(job: Job, device: DeviceNow, *, is_first: bool, is_here: bool) -> list[Cell]:
    """Return the cells of one device; what is the job's stands with its first one only."""
    name = label(device.uuid, device.name, device.slot)
    use, memory_mb = device.utilisation, device.memory_mb
    if is_cpu := device.kind == "cpu":
        use = job.cpu_percent if use is None else use
        memory_mb = job.memory_mb if memory_mb is None else memory_mb
    is_hot = device.temperature_c is not None and device.temperature_c >= HOT_C
    return [
        Text(name if is_here else f"{one_line(job.host)} {name}"),
        Text(job.shard[:8] if is_first else "″"),
        job.share if is_first else None,
        Text(f"{100 * job.share:.0f} %" if is_first else ""),
        Text(f"{job.rows_done:,}/{job.records:,}" if is_first else ""),
        _number(use, " %"),
        _memory(memory_mb, device.total_mb),
        None if is_cpu else _number(device.temperature_c, style=WARN if is_hot else ""),
        None if is_cpu else _number(device.power_w),
        _speed(job) if is_first else Text(),
        _left(job) if is_first else Text(),
    ]


def _number(value: float | None, unit: str = "", style: str = "") -> Text:
    return NOBODY_KNOWS if value is None else Text(f"{value:.0f}{unit}", style)


def _memory(used_mb: float | None, total_mb: float | None) -> Text:
    if used_mb is None:
        return NOBODY_KNOWS
    return Text(f"{used_mb / 1024:.1f}{f'/{total_mb / 1024:.0f}' if total_mb else ''} GB")


def _speed(job: Job) -> Text:
    if job.is_silent:
        return Text("silent", WARN)
    if job.stage != "run":
        return Text({"load": "loading", "finish": "finishing"}.get(job.stage, ""), QUIET)
    return NOBODY_KNOWS if job.speed is None else Text(lines.number(job.speed))


def _left(job: Job) -> Text:
    if not job.pace or job.stage != "run" or job.is_silent:
        return Text()
    return Text(duration(job.cost_left / job.pace))


def label(uuid: str, name: str, slot: str = "") -> str:
    """Return the beginning of a device's UUID, its model, and which slot of several it is."""
    if uuid == "cpu":
        return "CPU"
    model = one_line(name).removeprefix("NVIDIA ").removeprefix("GeForce ")
    head = one_line(uuid).removeprefix("GPU-").removeprefix("MIG-")[:4]
    text = f"{head} {model}".strip()
    text = text if len(text) <= MOST_NAME else f"{text[: MOST_NAME - 1]}…"
    number, _, count = one_line(slot).partition("of")
    return f"{text} {int(number) + 1}/{count}" if number.isdecimal() and count != "1" else text


def notes(scene: Scene) -> list[RenderableType]:
    """Return what is to be said of the devices at work, besides their numbers; a line each."""
    found: list[tuple[str, str]] = []
    for job in scene.at_work:
        shard = f"shard {job.shard[:8]}"
        if job.is_silent:
            silence = duration(job.silent_seconds)
            found.append((f"{shard}: nothing heard for {silence} from {one_line(job.host)}", WARN))
        for device in job.devices:
            if slowed := [why for why in device.throttle if why not in HARMLESS]:
                why = one_line(", ".join(slowed).replace("_", " "))
                found.append((f"{label(device.uuid, device.name)}: slowed down by {why}", WARN))
        if job.oom_splits:
            times = "once" if job.oom_splits == 1 else f"{job.oom_splits:,} times"
            found.append((f"{shard}: memory ran out {times}; its batches are smaller now", QUIET))
    if any("utilisation" in one.of_whole_gpu for job in scene.at_work for one in job.devices):
        found.append(("USE to W are of whole GPUs, which several jobs share.", QUIET))
    return [Text(text, style, no_wrap=True, overflow="ellipsis") for text, style in found]


def spread_table(scene: Scene, width: int) -> Table:
    """Return a table with a row a device that computed something."""
    total = sum(use.cost for use in scene.uses)
    is_here = {use.host for use in scene.uses} <= {platform.node()}
    columns = [
        Column("SO FAR" if scene.state is None else "BY DEVICE", is_number=False),
        Column("SHARDS"),
        Column("RECORDS", 3),
        Column("OF THE WORK", 2),
        Column("OF THE TIME"),
        Column("", 1, False),
    ]
    rows: list[list[Cell]] = [
        [
            Text(f"{'' if is_here else f'{one_line(use.host)} '}{label(use.uuid, use.name)}"),
            Text(f"{use.shards:,}{f' + {use.running}' if use.running else ''}"),
            Text(f"{use.records:,}"),
            Text(f"{100 * use.cost / total:.1f} %" if total else "–"),
            Text(f"{100 * use.share_of_time:.0f} %"),
            use.share_of_time,
        ]
        for use in scene.uses
    ]
    return fitted(columns, rows, width)
