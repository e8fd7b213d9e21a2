"""How fast a device was in earlier runs: what their receipts say, which is a measurement.

Looks at every run beside the one in question (`results/*`), and takes those that computed the same
thing: workload, its version, and the model and dtype where it has any, else all options.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.base.errors import UserError
from featuremill.plan.speeds.table import is_called
from featuremill.store.plan import Settings
from featuremill.store.receipt import MOST_PARTS, Receipt, newest_whole
from featuremill.store.results import Results


class Asked(NamedTuple):
    """What is to be computed on what."""

    settings: Settings
    device: str
    """As NVML or a person calls a GPU; "" for any. On a CPU, its name."""
    is_gpu: bool
    num_devices: int = 1
    """That hold one model."""
    threads: int = 0
    """Of a job on a CPU; 0 for any number."""


class Found(NamedTuple):
    """What receipts of finished parts say of one kind of device."""

    parts: Sequence[Receipt]
    """Some, the oldest first."""
    runs: Sequence[str]
    """The names of theirs."""


def look(results: Path, asked: Asked) -> Found | None:
    """Return what the newest parts below `results` say that answer what is `asked`; None without
    any. Where none had as many threads, those with other numbers of them answer."""
    run_of, answers = dict[int, str](), list[Receipt]()
    for path in sorted(results.glob("*/plan.json")):
        for receipt in _answers_of(Results(path.parent), asked):
            run_of[id(receipt)] = path.parent.name
            answers.append(receipt)
    exact = [one for one in answers if asked.threads in (0, one.threads)]
    newest = newest_whole(exact) or newest_whole(answers)
    runs = dict.fromkeys(run_of[id(receipt)] for receipt in newest)
    return Found(newest, list(runs)) if newest else None


def _answers_of(run: Results, asked: Asked) -> list[Receipt]:
    """Return the run's receipts that answer; none of a run that cannot be read."""
    try:
        plan = run.find_plan()
        if plan is None or not is_alike(plan.settings, asked.settings):
            return []
        return [one for one in _newest(run, plan.recipe) if _answers(one, asked)]
    except (OSError, UserError):  # somebody else's, on its way out, or of a newer version
        return []


def is_alike(one: Settings, other: Settings) -> bool:
    """Tell whether two settings cost a device the same time, nearly: other layers and pools of the
    same model do."""
    if (one.workload, one.version) != (other.workload, other.version):
        return False
    if "model" not in one.options or "model" not in other.options:
        return one.options == other.options
    keys = ("model", "dtype", "per_residue")
    return all(one.options.get(key) == other.options.get(key) for key in keys)


def _newest(run: Results, recipe: str) -> list[Receipt]:
    """Return the run's newest receipts, some of them."""
    folder = run.receipt(recipe, "").parent
    paths = folder.glob("*.json") if folder.is_dir() else ()
    newest = heapq.nlargest(2 * MOST_PARTS, paths, lambda path: path.stat().st_mtime)
    found = [receipt for path in newest if (receipt := run.find_receipt(recipe, path.stem))]
    if found:
        return found
    # `clean` may have removed them, but what merge gathered stays.
    delivery = run.find_delivery()
    return delivery.receipts if delivery else []


def _answers(receipt: Receipt, asked: Asked) -> bool:
    seconds, names = receipt.seconds, [device.name for device in receipt.devices]
    if not (receipt.cost > 0 and seconds.get("compute", 0) > 0 and seconds.get("total", 0) > 0):
        return False
    if receipt.is_on_gpu != asked.is_gpu or len(names) != asked.num_devices:
        return False
    if not asked.device:
        return True
    return all(
        is_called(name, asked.device) if asked.is_gpu else name == asked.device for name in names
    )
