"""A run in progress, for people: in one line, for logs and pipes, or as a whole screen."""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from featuremill.base import words
from featuremill.base.text import one_line, plain
from featuremill.base.words import counted, plain_duration
from featuremill.status.jobs import DeviceNow, Job
from featuremill.status.project import ProjectState
from featuremill.status.state import Phase, RunState
from featuremill.status.view import SEPARATOR, pace, short, verdict
from featuremill.workload.weights import model_told

HINT = "Ctrl-C ends this view, not the run."
QUIET, WARN, GOOD, BAD = "dim", "yellow", "green", "red"
MOST_REASONS = 4
MOST_NAME = 22
HOT_C = 85
"""From about here on GPUs slow down."""
HARMLESS = ("power_cap", "set_clocks", "sync_boost", "display_clocks")
"""Reasons for lower clocks that an administrator chose, or that every busy card has."""
NOT_KNOWN = Text("–", QUIET)


def totals_lines(now: ProjectState, phases: Sequence[Phase] = get_args(Phase)) -> list[str]:
    """Return how far each run is that is in one of these `phases`, and steps that say it; each
    with its name where there are several."""
    runs = {name: run for name, run in now.states.items() if run.phase in phases}
    if now.alone:
        return [*map(totals_line, runs.values())]
    lines = [f"{one_line(name)}: {totals_line(run)}" for name, run in runs.items()]
    return [*lines, *_steps(now)]


def _steps(now: ProjectState) -> list[str]:
    """Return how far steps are, of those that say it and are not done."""
    open = [made for made in now.runs.steps if not Path(made.files[-1]).exists()]
    progress = [(made.label, made.progress()) for made in open]
    return [one_line(plain(f"{label}: {far}")) for label, far in progress if far]


def totals_line(now: RunState) -> str:
    """Return how far the run is, how fast, and how long yet."""
    if now.plan is None:
        return verdict(now)
    if now.phase == "computing":
        jobs = counted(len(now.at_work), "job")
        jobs += f" + {len(now.waiting):,} waiting" if now.waiting else ""
        parts = [jobs, *pace(now)]
    else:
        parts = [verdict(now)]
    return SEPARATOR.join([*_done(now), *parts, *_failed(now)])


def troubles(now: RunState) -> list[str]:
    """Return what went wrong, each with what helps: records that failed, and jobs."""
    return [f"{what} → {remedy}" if remedy else what for what, remedy in _troubles(now)]


def whole_screen(now: ProjectState, width: int) -> RenderableType:
    """Return what a terminal shows of one run, or of several below each other."""
    if now.alone:
        return screen(now.alone, width)
    runs = now.states.values()
    done, total = (sum(getattr(run, of).records for run in runs) for of in ("done", "total"))
    title = Text.assemble((one_line(plain(str(now.runs.given))), "bold"), "  ")
    title.append(f"{done:,} of {words.records(total)} of its runs")
    parts = [part for run in runs for part in (Text(), screen(run, width))]
    steps = [part for line in _steps(now) for part in (Text(), _cropped(Text(line)))]
    return Group(_cropped(title), *parts, *steps)


def screen(now: RunState, width: int) -> RenderableType:
    """Return what a terminal shows, what counts most above: one that is too low shows the
    beginning; one that is too narrow, of each cell."""
    title = Text.assemble((one_line(plain(str(now.given))), "bold"), "  ")
    title.append(verdict(now), WARN if now.phase in ("unknown", "idle") else GOOD)
    if now.plan and (model := model_told(now.plan.settings)):
        title.append(f"  {one_line(plain(model))}", QUIET)
    parts: list[RenderableType] = [_cropped(title)]
    if now.trouble:
        parts.append(_cropped(Text(one_line(now.trouble), BAD)))
    if now.plan:
        bar = Table.grid()  # a bar alone does not end its line
        bar.add_row(ProgressBar(1.0, now.share, width, complete_style="cyan"))
        shards = f"{now.done.shards:,} of {counted(now.total.shards, 'shard')}"
        parts += [bar, Text(SEPARATOR.join([*_done(now), shards, *_failed(now)]))]
        if now.phase == "computing":
            parts.append(Text(SEPARATOR.join(pace(now))))
    if now.at_work:
        parts += [Text(), _jobs_table(now)]
    parts += [_cropped(Text(text, style)) for text, style in _notes(now)]
    for what, remedy in (troubles := _troubles(now))[:MOST_REASONS]:
        parts += [Text(line, BAD) for line in _wrapped(what, "✗ ", width)]
        parts += [Text(line, QUIET) for line in _wrapped(remedy, "  → ", width)]
    if len(troubles) > MOST_REASONS:
        parts.append(Text(f"  and {len(troubles) - MOST_REASONS:,} more reasons", QUIET))
    return Group(*parts)


def _done(now: RunState) -> list[str]:
    """Return how much of the work is done, 100 % only for all of it, and how many records."""
    most = 100 if now.done.shards == now.total.shards else 99.9
    records = f"{now.done.records:,} of {words.records(now.total.records)}"
    return [f"{min(100 * now.share, most):.1f} % of the work", records]


def _failed(now: RunState) -> list[str]:
    return [f"{now.num_failed_rows:,} failed"] if now.num_failed_rows else []


def _troubles(now: RunState) -> list[tuple[str, str]]:
    """Return what became of how many records and why, with what helps, and the jobs that failed."""
    said = [
        (f"{words.records(one.number)} {one.status}: {one_line(plain(one.reason))}", one.remedy)
        for one in now.reasons
    ]
    if running := sum(job.rows_failed for job in now.jobs):
        what = f"{words.records(running)} failed in shards that are at work"
        said.append((what, "The reasons come with the parts."))
    return said + [(f"shard {n[:8]} ended: {one_line(text)}", "") for n, text in now.ended.items()]


def _jobs_table(now: RunState) -> Table:
    """Return a table with a row a device or slot; where it is too narrow, names are cut first."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    table.add_column("DEVICE", overflow="ellipsis")
    table.add_column("SHARD", no_wrap=True)
    unit = one_line(now.cost_unit)[:12].upper()
    for heading in ("DONE", "USE", "MEMORY", "°C", "W", f"{unit}/S", "LEFT"):
        table.add_column(heading, justify="right", no_wrap=True, overflow="ellipsis")
    is_here = {job.host for job in now.at_work} <= {platform.node()}
    for job in sorted(now.at_work, key=lambda job: (job.host, *(_order(d) for d in job.devices))):
        for number, device in enumerate(job.devices):
            name = f"{'' if is_here else f'{one_line(job.host)} '}{_label(device)}"
            own = (job.shard[:8], f"{100 * job.share:.0f} %") if number == 0 else ("″", "")
            last = (_speed(job), _left(job)) if number == 0 else ()
            table.add_row(_cropped(Text(name)), *own, *_gauges(job, device), *last)
    return table


def _order(device: DeviceNow) -> tuple[str, str, str]:
    return device.name, device.uuid, device.slot


def _gauges(job: Job, device: DeviceNow) -> list[Text]:
    """Return use, memory, temperature and power; of a CPU, those of the worker's process."""
    use, memory_mb, celsius = device.utilisation, device.memory_mb, device.temperature_c
    if is_cpu := device.kind == "cpu":
        use = job.cpu_percent if use is None else use
        memory_mb = job.memory_mb if memory_mb is None else memory_mb
    of = f"/{device.total_mb / 1024:.0f}" if device.total_mb else ""
    memory = NOT_KNOWN if memory_mb is None else Text(f"{memory_mb / 1024:.1f}{of} GB")
    heat = _number(celsius, style=WARN if celsius is not None and celsius >= HOT_C else "")
    others = [Text(), Text()] if is_cpu else [heat, _number(device.power_w)]
    return [_number(use, " %"), memory, *others]


def _number(value: float | None, unit: str = "", style: str = "") -> Text:
    return NOT_KNOWN if value is None else Text(f"{value:.0f}{unit}", style)


def _speed(job: Job) -> Text:
    if job.is_silent:
        return Text("silent", WARN)
    if job.stage != "run":
        return Text({"load": "loading", "finish": "finishing"}.get(job.stage, ""), QUIET)
    return NOT_KNOWN if job.speed is None else Text(short(job.speed))


def _left(job: Job) -> str:
    if not job.pace or job.stage != "run" or job.is_silent:
        return ""
    return plain_duration(job.cost_left / job.pace)


def _label(device: DeviceNow) -> str:
    """Return the beginning of a device's UUID, its model, and which slot of several it is."""
    if device.uuid == "cpu":
        return "CPU"
    model = one_line(device.name).removeprefix("NVIDIA ").removeprefix("GeForce ")
    head = one_line(device.uuid).removeprefix("GPU-").removeprefix("MIG-")[:4]
    text = f"{head} {model}".strip()
    text = text if len(text) <= MOST_NAME else f"{text[: MOST_NAME - 1]}…"
    number, _, count = one_line(device.slot).partition("of")
    return f"{text} {int(number) + 1}/{count}" if number.isdecimal() and count != "1" else text


def _notes(now: RunState) -> list[tuple[str, str]]:
    """Return the notes about jobs and devices besides their numbers, a line each."""
    notes = []
    for job in now.jobs:
        if job.is_silent or job.state != "running":
            silence, host = plain_duration(job.silent_seconds), one_line(job.host)
            notes.append((f"shard {job.shard[:8]}: nothing heard for {silence} from {host}", WARN))
        for device in job.devices:
            if slowed := [why for why in device.throttle if why not in HARMLESS]:
                why = one_line(", ".join(slowed).replace("_", " "))
                notes.append((f"{_label(device)}: slowed down by {why}", WARN))
    if waiting := [job.shard[:8] for job in now.waiting if job.state == "running"]:
        jobs = counted(len(waiting), "job")
        notes.append((f"{jobs} waiting for a device: shard {', '.join(waiting)}", QUIET))
    if any("utilisation" in one.of_whole_gpu for job in now.at_work for one in job.devices):
        notes.append(("USE to W are of whole GPUs, which several jobs share.", QUIET))
    return notes


def _cropped(text: Text) -> Text:
    """Return the text as one that takes one line, and ends in … where it is too long."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _wrapped(text: str, mark: str, width: int) -> list[str]:
    """Return a text as lines, those after the first indented as that is behind its mark."""
    return textwrap.wrap(text, width, initial_indent=mark, subsequent_indent=" " * len(mark))
