"""How fast a device was in earlier runs: what their receipts say, which is a measurement.

Looks at every run beside the one in question (`results/*`), and takes those that computed the same
thing: workload, its version, and the model and dtype where it has any, else all options.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.plan.speeds.table import is_called
from featuremill.status.rest import MOST_PARTS, newest_whole, working_seconds
from featuremill.store import files, receipts


class Found(NamedTuple):
    """What receipts of finished parts say of one kind of device."""

    device: str
    threads: int
    num_parts: int
    cost: int
    seconds: float
    """From the first batch to the last commit, of all of them."""
    slowest: float
    """Of any of the parts, in units of cost a second."""
    fastest: float
    startup_seconds: float
    """Of a job, without the time it waited for a device: on average, and for the slowest."""
    longest_startup_seconds: float
    runs: tuple[str, ...]
    process_memory_mb: int
    """The most that a worker had of the host's memory; 0 where no sample says."""
    peak_memory_mb: int
    """The most that was taken of the device's memory, or on a CPU by the process."""


class Asked(NamedTuple):
    """What is to be computed on what."""

    settings: Mapping[str, Any]
    """As in plan.json: workload, version, options."""
    device: str
    """As NVML or a person calls a GPU; "" for any. On a CPU, its name."""
    is_gpu: bool
    num_devices: int = 1
    """That hold one model."""
    threads: int = 0
    """Of a job on a CPU; 0 for any number."""


def look(results: Path, asked: Asked) -> Found | None:
    """Return what the newest parts below `results` say that answer what is `asked`; None without
    any."""
    told: list[tuple[str, dict[str, Any]]] = []
    for plan_path in sorted(results.glob("*/plan.json")):
        run = plan_path.parent
        told += [(run.name, receipt) for receipt in _answers_of(run, plan_path, asked)]
    name_of_run = {id(one): name for name, one in told}
    newest = newest_whole(one for _, one in told)
    runs = tuple(dict.fromkeys(name_of_run[id(one)] for one in newest))
    return _summed(newest, runs) if newest else None


def _answers_of(run: Path, plan_path: Path, asked: Asked) -> list[dict[str, Any]]:
    """Return the run's receipts that answer; none of a run that cannot be read or is damaged."""
    try:
        plan = files.read_json(plan_path)
        if not plan or not is_alike(plan.get("settings", {}), asked.settings):
            return []
        return [one for one in _newest(run, str(plan["recipe"])) if _answers(one, asked)]
    except (OSError, KeyError, TypeError):  # somebody else's, on its way out, or damaged
        return []


def is_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two settings cost a device the same time, nearly: other layers and pools of the
    same model do."""
    try:
        if (one["workload"], one["version"]) != (other["workload"], other["version"]):
            return False
        mine, theirs = one["options"], other["options"]
        if "model" not in mine or "model" not in theirs:
            return bool(mine == theirs)
        keys = ("model", "dtype", "per_residue")
        return [mine.get(key) for key in keys] == [theirs.get(key) for key in keys]
    except (KeyError, TypeError, AttributeError):  # what stands there is no plan of ours
        return False


def _newest(run: Path, recipe: str) -> Iterable[dict[str, Any]]:
    """Return the run's newest receipts, some of them."""
    folder = run / "receipts" / recipe
    paths = folder.glob("*.json") if folder.is_dir() else ()
    newest = heapq.nlargest(2 * MOST_PARTS, paths, lambda path: path.stat().st_mtime)
    found = [receipt for path in newest if (receipt := files.read_json(path))]
    # `clean` may have removed them, but what merge gathered stays.
    return found or (files.read_json(run / "manifest.json") or {}).get("receipts", [])


def _answers(receipt: dict[str, Any], asked: Asked) -> bool:
    try:
        devices = receipts.devices_of(receipt)
        seconds = receipt["seconds"]
        if not (receipt["cost"] > 0 and seconds["compute"] > 0 and seconds["total"] > 0):
            return False
        if receipts.is_on_gpu(receipt) != asked.is_gpu or len(devices) != asked.num_devices:
            return False
        if not asked.is_gpu and asked.threads not in (0, receipt["threads"]):
            return False
        _summed([receipt], ())  # plan must not end on what only one of all runs says
        return all(_is_device(device["name"], asked) for device in devices)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):  # odd, or damaged
        return False


def _is_device(name: str, asked: Asked) -> bool:
    if not asked.device:
        return True
    return is_called(name, asked.device) if asked.is_gpu else name == asked.device


def _summed(parts: list[dict[str, Any]], runs: tuple[str, ...]) -> Found:
    rates = [part["cost"] / part["seconds"]["compute"] for part in parts]
    startups = [max(0.0, _startup_seconds(part["seconds"])) for part in parts]
    memories = [part.get("telemetry", {}).get("process_memory_mb") or 0 for part in parts]
    return Found(
        device=receipts.device_name(parts[-1]),
        threads=parts[-1].get("threads") or 1,
        num_parts=len(parts),
        cost=sum(part["cost"] for part in parts),
        seconds=sum(part["seconds"]["compute"] for part in parts),
        slowest=min(rates),
        fastest=max(rates),
        startup_seconds=sum(startups) / len(startups),
        longest_startup_seconds=max(startups),
        runs=runs,
        process_memory_mb=max(memories),
        peak_memory_mb=max(part.get("peak_memory_mb") or 0 for part in parts),
    )


def _startup_seconds(seconds: Mapping[str, float]) -> float:
    return working_seconds(dict(seconds)) - seconds["compute"]
