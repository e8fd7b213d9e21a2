"""The screen of `top` and `run`, drawn with rich: progress, a table of jobs, and failures."""

from __future__ import annotations

import platform
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from featuremill.base import words
from featuremill.base.text import one_line, plain, wrapped
from featuremill.base.words import counted, plain_duration
from featuremill.lease import gpu_name
from featuremill.status.jobs import DeviceNow, Job
from featuremill.status.project import ProjectState
from featuremill.status.run_state import RunState
from featuremill.status.view import (
    SEPARATOR,
    done,
    failed,
    failures,
    pace,
    short,
    step_lines,
    summary,
)
from featuremill.workload.weights import model_name_of

HINT = "Ctrl-C ends this view, not the run."
QUIET, WARN, GOOD, BAD = "dim", "yellow", "green", "red"
MOST_REASONS = 4
MOST_NAME = 32
GAP = 2
LEAST_NAME = 12
"""Characters of a device's name that are always shown, such as GPU 0 (3a9f)."""
LEFT_OUT = ("W", "USE", "LEFT", "SHARD", "MEMORY", "°C")
"""Columns that a narrow terminal lacks, in the order in which they are dropped."""
HOT_C = 85
"""The temperature at which most GPUs begin to slow down."""
HARMLESS = ("power_cap", "set_clocks", "sync_boost", "display_clocks")
"""Reasons for lower clocks that an administrator set or that every busy GPU has."""
NOT_KNOWN = Text("–", QUIET)


def whole_screen(now: ProjectState, width: int) -> RenderableType:
    """Return the screen of one run, or of several below each other with their steps."""
    if now.alone:
        return screen(now.alone, width)
    runs = now.states.values()
    num_done, num_records = (
        sum(getattr(run, sums).records for run in runs) for sums in ("done", "total")
    )
    title = Text.assemble((one_line(plain(str(now.runs.path))), "bold"), "  ")
    title.append(f"{num_done:,} of {words.records(num_records)} of its runs")
    parts = [part for run in runs for part in (Text(), screen(run, width))]
    steps = [part for line in step_lines(now) for part in (Text(), _cropped(Text(line)))]
    return Group(_cropped(title), *parts, *steps)


def screen(now: RunState, width: int) -> RenderableType:
    """Return the screen of one run, the most important lines first: a low terminal shows only the
    first lines, a narrow one the beginning of each cell."""
    title = Text.assemble((one_line(plain(str(now.folder))), "bold"), "  ")
    title.append(summary(now), WARN if now.phase in ("unknown", "idle") else GOOD)
    if now.plan and (model := model_name_of(now.plan.settings)):
        title.append(f"  {one_line(plain(model))}", QUIET)
    parts: list[RenderableType] = [_cropped(title)]
    if now.trouble:
        parts.append(_cropped(Text(one_line(now.trouble), BAD)))
    if now.plan:
        bar = Table.grid()  # a bar alone does not end its line
        bar.add_row(ProgressBar(1.0, now.share, width, complete_style="cyan"))
        shards = f"{now.done.shards:,} of {counted(now.total.shards, 'shard')}"
        parts += [bar, Text(SEPARATOR.join([*done(now), shards, *failed(now)]))]
        if now.phase == "computing":
            parts.append(Text(SEPARATOR.join(pace(now))))
    if now.at_work:
        parts += [Text(), _jobs_table(now, width)]
    parts += [_cropped(Text(text, style)) for text, style in _notes(now)]
    reasons = failures(now)
    for what, remedy in reasons[:MOST_REASONS]:
        parts += [Text(line, BAD) for line in wrapped(what, "✗ ", "  ", width=width)]
        parts += [Text(line, QUIET) for line in wrapped(remedy, "  → ", "    ", width=width)]
    if len(reasons) > MOST_REASONS:
        parts.append(Text(f"  and {len(reasons) - MOST_REASONS:,} more reasons", QUIET))
    return Group(*parts)


def _jobs_table(now: RunState, width: int) -> Table:
    """Return a table with a row per device or slot; names and columns are cut to fit."""
    unit = one_line(now.cost_unit)[:12].upper()
    headings = ("DEVICE", "SHARD", "RECORDS", "USE", "MEMORY", "°C", "W", f"{unit}/S", "LEFT")
    is_here = {job.host for job in now.at_work} <= {platform.node()}
    rows = []

    def order(job: Job) -> tuple[Any, ...]:
        return job.host, *((each.name, each.uuid, each.slot) for each in job.devices)

    for job in sorted(now.at_work, key=order):
        for number, device in enumerate(job.devices):
            name = f"{'' if is_here else f'{one_line(job.host)} '}{label(device)}"
            shard, records = job.shard[:8], f"{job.rows_done:,}/{job.records:,}"
            last = _speed_and_time_left(job)
            if number:
                shard, records, last = "″", "", [Text(), Text()]
            own = [_cropped(Text(name)), Text(shard), Text(records)]
            rows.append([*own, *_gauges(job, device), *last])
    widest = [max(cell.cell_len for cell in cells) for cells in zip(*rows, strict=True)]
    needed = {name: max(len(name), most) for name, most in zip(headings, widest, strict=True)}
    needed["DEVICE"] = min(needed["DEVICE"], LEAST_NAME)
    for heading in LEFT_OUT:
        if sum(needed.values()) + GAP * (len(needed) - 1) > width:
            del needed[heading]
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style=QUIET)
    table.add_column("DEVICE", overflow="ellipsis")
    for name in headings[1:]:
        if name in needed:
            side: Literal["left", "right"] = "left" if name == "SHARD" else "right"
            table.add_column(name, justify=side, no_wrap=True, overflow="ellipsis")
    for row in rows:
        cells = zip(headings, row, strict=True)
        table.add_row(*(cell for name, cell in cells if name in needed))
    return table


def _gauges(job: Job, device: DeviceNow) -> list[Text]:
    """Return use, memory, temperature and power; for a CPU, those of the worker process."""
    use, memory_mb, celsius = device.utilisation, device.memory_mb, device.temperature_c
    if is_cpu := device.kind == "cpu":
        use = job.cpu_percent if use is None else use
        memory_mb = job.memory_mb if memory_mb is None else memory_mb
    total = f"/{device.total_mb / 1024:.0f}" if device.total_mb else ""
    memory = NOT_KNOWN if memory_mb is None else Text(f"{memory_mb / 1024:.1f}{total} GB")
    heat = _number(celsius, style=WARN if celsius is not None and celsius >= HOT_C else "")
    others = [Text(), Text()] if is_cpu else [heat, _number(device.power_w)]
    return [_number(use, " %"), memory, *others]


def _number(value: float | None, unit: str = "", style: str = "") -> Text:
    return NOT_KNOWN if value is None else Text(f"{value:.0f}{unit}", style)


def _speed_and_time_left(job: Job) -> list[Text]:
    if job.is_silent:
        return [Text("silent", WARN), Text()]
    if job.stage != "run":
        stage = {"load": "loading", "finish": "finishing"}.get(job.stage, "")
        return [Text(stage, QUIET), Text()]
    speed = NOT_KNOWN if job.speed is None else Text(short(job.speed))
    return [speed, Text(plain_duration(job.cost_left / job.pace) if job.pace else "")]


def label(device: DeviceNow) -> str:
    """Return the name and model of a device, and the number of its slot if it has several."""
    if device.uuid == "cpu":
        return "CPU"
    model = one_line(device.name).removeprefix("NVIDIA ").removeprefix("GeForce ")
    text = f"{gpu_name.gpu(device.uuid, device.number)} {model}" if device.uuid else model
    text = text if len(text) <= MOST_NAME else f"{text[: MOST_NAME - 1]}…"
    number, _, count = one_line(device.slot).partition("of")
    return f"{text} {int(number) + 1}/{count}" if number.isdecimal() and count != "1" else text


def _notes(now: RunState) -> list[tuple[str, str]]:
    notes = []
    for job in now.jobs:
        if job.is_silent or job.state != "running":
            silence, host = plain_duration(job.silent_seconds), one_line(job.host)
            notes.append((f"shard {job.shard[:8]}: nothing heard for {silence} from {host}", WARN))
        for device in job.devices:
            if slowed := [why for why in device.throttle if why not in HARMLESS]:
                why = one_line(", ".join(slowed).replace("_", " "))
                notes.append((f"{label(device)}: slowed down by {why}", WARN))
    if waiting := [job.shard[:8] for job in now.waiting if job.state == "running"]:
        jobs = counted(len(waiting), "job")
        notes.append((f"{jobs} waiting for a device: shard {', '.join(waiting)}", QUIET))
    if any("utilisation" in device.of_whole_gpu for job in now.at_work for device in job.devices):
        notes.append(("USE to W are of whole GPUs, which several jobs share.", QUIET))
    return notes


def _cropped(text: Text) -> Text:
    """Return the text set to take one line, with … at the end if it is too long."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
