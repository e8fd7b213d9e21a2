"""The two tables of the picture: what each device is at now, and how the work spread."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from featuremill.base.text import one_line
from featuremill.status.top import lines
from featuremill.status.top.columns import Column, fitted
from featuremill.status.top.jobs import DeviceNow, Job
from featuremill.status.top.scene import Scene

QUIET, WARN = "dim", "yellow"
HOT_C = 85
"""From about here on GPUs slow down."""
HARMLESS = ("power_cap", "set_clocks", "sync_boost", "display_clocks")
"""Reasons for lower clocks that somebody chose, or that every busy card has."""
MOST_NAME = 22


class Row(NamedTuple):
    """One device of a job."""

    job: Job
    device: DeviceNow
    is_first: bool
    """Of the job's devices: what is the job's stands only there."""


def jobs_table(scene: Scene, width: int, most: int) -> list[RenderableType]:
    """Return a table with a row a device or slot, and how many were left out."""
    jobs = sorted(scene.at_work, key=lambda job: (job.host, *(_key(d) for d in job.devices)))
    rows = [
        Row(job, device, number == 0) for job in jobs for number, device in enumerate(job.devices)
    ]
    shown = rows[:most]
    is_here = {job.host for job in jobs} <= {platform.node()}
    columns = [
        Column("DEVICE", [_name(row, is_here) for row in shown], is_number=False),
        Column("SHARD", [_of_job(row, row.job.shard[:8], "″") for row in shown], 5, False),
        Column("", [_share(row.job) if row.is_first else None for row in shown], 4, False),
        Column("DONE", [_of_job(row, f"{100 * _share(row.job):.0f} %") for row in shown]),
        Column("RECORDS", [_of_job(row, _records(row.job)) for row in shown], 1),
        Column("USE", [_utilisation(row) for row in shown]),
        Column("MEMORY", [_memory(row) for row in shown], 7),
        Column("°C", [_temperature(row.device) for row in shown], 6),
        Column("W", [_power(row.device) for row in shown], 2),
        Column(f"{one_line(scene.cost_unit)[:12].upper()}/S", [_speed(row) for row in shown]),
        Column("LEFT", [_left(row) for row in shown], 3),
    ]
    if all(row.device.kind == "cpu" for row in shown):
        columns = [column for column in columns if column.heading not in ("°C", "W")]
    return [fitted(columns, width), *_left_out(len(rows) - len(shown))]


def _key(device: DeviceNow) -> tuple[str, str, str]:
    return device.name, device.uuid, device.slot


def _name(row: Row, is_here: bool) -> Text:
    name = label(row.device.uuid, row.device.name, row.device.slot)
    return Text(name if is_here else f"{one_line(row.job.host)} {name}")


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


def _of_job(row: Row, text: str, otherwise: str = "") -> Text:
    return Text(text if row.is_first else otherwise)


def _share(job: Job) -> float:
    return 1 - job.cost_left / job.cost if job.cost else 1.0


def _records(job: Job) -> str:
    return f"{job.rows_done:,}/{job.records:,}"


def _utilisation(row: Row) -> Text:
    value = row.device.utilisation
    if row.device.kind == "cpu" and value is None:
        value = row.job.cpu_percent
    return _number(value, " %")


def _memory(row: Row) -> Text:
    used, total = row.device.memory_mb, row.device.total_mb
    if row.device.kind == "cpu" and used is None:
        used = row.job.memory_mb
    if used is None:
        return _number(None)
    return Text(f"{used / 1024:.1f}{f'/{total / 1024:.0f}' if total else ''} GB")


def _temperature(device: DeviceNow) -> Text:
    is_hot = device.temperature_c is not None and device.temperature_c >= HOT_C
    return _number(device.temperature_c, style=WARN if is_hot else "")


def _power(device: DeviceNow) -> Text:
    return _number(device.power_w)


def _number(value: float | None, unit: str = "", style: str = "") -> Text:
    return Text("–", QUIET) if value is None else Text(f"{value:.0f}{unit}", style)


def _speed(row: Row) -> Text:
    job = row.job
    if not row.is_first:
        return Text()
    if job.is_silent:
        return Text("silent", WARN)
    if job.stage != "run":
        return Text({"load": "loading", "finish": "finishing"}.get(job.stage, ""), QUIET)
    return Text("–", QUIET) if job.speed is None else Text(lines.number(job.speed))


def _left(row: Row) -> Text:
    job = row.job
    if not row.is_first or not job.pace or job.stage != "run" or job.is_silent:
        return Text()
    return Text(lines.duration(job.cost_left / job.pace))


def notes(scene: Scene) -> list[RenderableType]:
    """Return what is to be said of the devices at work, besides their numbers; a line each."""
    found: list[tuple[str, str]] = []
    for job in scene.at_work:
        shard = f"shard {job.shard[:8]}"
        if job.is_silent:
            silence = lines.duration(job.silent_seconds)
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


def spread_table(scene: Scene, width: int, most: int) -> list[RenderableType]:
    """Return a table with a row a device that computed something, and how many were left out."""
    total = sum(use.cost for use in scene.uses)
    shown = scene.uses[:most]
    is_here = {use.host for use in scene.uses} <= {platform.node()}
    names = [label(use.uuid, use.name) for use in shown]
    hosts = ["" if is_here else f"{one_line(use.host)} " for use in shown]
    now = [f" + {use.running}" if use.running else "" for use in shown]
    work = [f"{100 * use.cost / total:.1f} %" if total else "–" for use in shown]
    columns = [
        Column(
            "SO FAR" if scene.facts is None else "BY DEVICE",
            [Text(f"{host}{name}") for host, name in zip(hosts, names, strict=True)],
            is_number=False,
        ),
        Column("SHARDS", _texts(f"{u.shards:,}{n}" for u, n in zip(shown, now, strict=True))),
        Column("RECORDS", _texts(f"{use.records:,}" for use in shown), 3),
        Column("OF THE WORK", _texts(work), 2),
        Column("OF THE TIME", _texts(f"{100 * use.share_of_time:.0f} %" for use in shown)),
        Column("", [use.share_of_time for use in shown], 1, False),
    ]
    return [fitted(columns, width), *_left_out(len(scene.uses) - len(shown))]


def _texts(words: Iterable[str]) -> Sequence[Text]:
    return [Text(word) for word in words]


def _left_out(number: int) -> list[RenderableType]:
    noun = "device" if number == 1 else "devices"
    return [Text(f"and {number:,} more {noun}", QUIET)] if number > 0 else []
