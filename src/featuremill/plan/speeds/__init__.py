"""How fast a device is at a model: measured where anything was measured, else a stated assumption.

In this order: a number that somebody gives; receipts of earlier runs of the same model on the same
device, which are a measurement; a card's peak figures times an assumed share (`assumed.py`). The
answer always says which of them it is.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from featuremill.base.errors import UserError
from featuremill.base.words import counted
from featuremill.lease import devices
from featuremill.plan.speeds import assumed
from featuremill.plan.speeds.assumed import CARDS, Range, cards_called, is_called
from featuremill.store.plan import Plan, Settings
from featuremill.store.receipt import MOST_PARTS, Receipt, newest_whole
from featuremill.store.results import Results
from featuremill.store.weights_file import WeightsFile
from featuremill.workload import (
    EstimatesWork,
    UnitWork,
    Weights,
    find_workload,
    optional,
    plugin_errors,
)
from featuremill.workload.recipe import precision_told
from featuremill.workload.weights import weights_of

AROUND_JOB_SECONDS = 0.25
"""Between two jobs on a slot, besides what receipts count: the verb's own start and end, and
Snakemake's pause. Measured by `python -m bench.scale --records 50000 --shards 1000`: 0.11 + 0.14 s
(docs/performance.md)."""
CPU_STARTUP = Range(1.5, 2.3, 5.0)
"""Seconds, where no receipt says: `start_up_seconds` of `make bench` (35M, 2 cores of an AMD
EPYC)."""
GPU_STARTUP = Range(5.0, 6.5, 60.0)
"""Seconds: 6.4 of the demo's job on an H200, 5.5 to 6.9 of six such jobs three at a time (run.log);
with 650M 6.0 of a job, and 9.3 with kernels to compile (`start_up` of bench/results). Longer where
weights of gigabytes come over a network: how long is an assumption."""
SLOWEST = "Tesla T4"
"""Stands in for a GPU that nobody named: limits made with it are too long rather than too short."""


class Asked(NamedTuple):
    settings: Settings
    device: str
    """As NVML or a person calls a GPU; "" for any. On a CPU, its name."""
    is_gpu: bool
    num_devices: int = 1
    """That hold one model."""
    threads: int = 0
    """Of a job on a CPU; 0 for any number."""


@dataclass(frozen=True)
class Speed:
    """How fast one job computes on its device or devices, and what it takes besides."""

    device: str
    cost_per_second: Range
    """In the workload's unit: for planning take `middle`, for limits `low`."""
    startup_seconds: Range
    """Of a job, in which nothing is computed: `low` is the shortest, `high` the longest."""
    is_startup_measured: bool
    kind: Literal["given", "earlier run", "assumption"]
    source: str
    """Where the rate is from, in words."""

    @property
    def is_assumed(self) -> bool:
        """Whether nothing of it was measured: then say the range."""
        return self.kind == "assumption"

    def most_seconds(self, cost: float) -> float:
        """Return the seconds of a shard of so much `cost` on a slow day: at the lowest rate, with
        the longest start-up."""
        return self.startup_seconds.high + cost / self.cost_per_second.low


def of_plan(run_folder: Path, plan: Plan, device: str = "") -> Speed:
    """Return how fast a job of a planned run is on a `device`, for its time limit.

    Args:
        run_folder: results/<run>; runs beside it count as earlier ones.
        plan: of that run.
        device: as NVML or a cluster calls the GPU ("NVIDIA A100-SXM4-40GB", "a100"); without one,
            what earlier runs used, else the slowest card of the table.

    Raises:
        UserError: when nothing is known: a workload without a model, on a device that has computed
            nothing of it yet; or a GPU that is not in the table.
    """
    is_gpu = plan.device == "cuda" or bool(device)
    if plan.device == "auto" and not is_gpu:
        is_gpu = bool(devices.cuda_devices())
    mean = plan.cost / max(1, plan.counts.unique)
    name = device if is_gpu else devices.cpu().name
    asked = Asked(plan.settings, name, is_gpu, plan.gpus if is_gpu else 1)
    weights = Path(plan.weights) if plan.weights else None
    return find(asked, run_folder.parent, weights_at(weights), mean, SLOWEST)


def weights_at(path: Path | None) -> Weights | None:
    """Return the weights that a weights/<name>.json tells of; None for none."""
    weights = WeightsFile.find(path) if path else None
    return weights_of(weights) if weights else None


def find(
    asked: Asked,
    results: Path,
    weights: Weights | None,
    mean_cost: float,
    stand_in: str = "",
    given: float | None = None,
) -> Speed:
    """Return the best that is known of the speed `asked` for.

    Args:
        asked: settings and device.
        results: the folder of runs, whose receipts count.
        weights: of the model, of which the metadata count; None for workloads without.
        mean_cost: of a record, on which it may depend what a unit of cost takes.
        stand_in: card of the table whose speed is assumed of a GPU that nobody names.
        given: cost a second that somebody names, which goes before all else.

    Raises:
        UserError: as `of_plan` does, and of a GPU that nobody names where none stands in.
    """
    known = measured(asked, results)
    startup = GPU_STARTUP if asked.is_gpu else CPU_STARTUP
    if given:
        startup, is_known = (known.startup_seconds, True) if known else (startup, False)
        source = "as given with --tokens-per-second"
        return Speed(asked.device or "a GPU", Range.of(given), startup, is_known, "given", source)
    if known:
        return known
    name = asked.device or (stand_in if asked.is_gpu else "")
    if not name:
        raise UserError(
            "no GPU is here and none has computed this model yet; name it with "
            '--device (such as "NVIDIA H100 80GB HBM3"), or --tokens-per-second.'
        )
    precision, work = precision_told(asked.settings), _unit_work(asked, weights, mean_cost)
    if work is None or not precision:
        raise UserError(
            f"workload {asked.settings.workload}: its speed on {name} is unknown; "
            "compute a shard or two there first, or give --tokens-per-second."
        )
    unit = find_workload(asked.settings.workload).COST_UNIT
    if not asked.is_gpu:
        at = assumed.on_cpu(work, precision, asked.threads or 1)
        source = (
            f"{work.core_gflops[precision]:g} GFLOP/s a core in {precision} and "
            f"{1e6 * work.cpu_seconds:.0f} µs a {unit.removesuffix('s')}, as on other machines; a "
            "short run of a shard or two here has it measured"
        )
        return Speed(name, at, startup, False, "assumption", f"an assumption: {source}")
    cards = cards_called(name)
    if not cards:
        known_cards = ", ".join(card.name.removeprefix("NVIDIA ") for card in CARDS)
        raise UserError(
            f"the speed of a GPU called {name!r} is unknown: no earlier run used one, and "
            f"the table has only {known_cards}; give --tokens-per-second."
        )
    card = cards[0]
    at = assumed.on_card(work, precision, card)
    share = assumed.share_on(work, precision, card)
    of = share.of_peaks.map(lambda each: 100 * each)
    source = f"{of.middle:.0f} % ({of.low:.0f} to {of.high:.0f} %) of what the data sheet of "
    source += f"{card.name} would allow"
    if at.low >= work.host_per_second:
        source = (
            f"the host limits it, whatever the card, to the {at.low:,} {unit} a second that one "
            "thread of it prepares"
        )
        share = share._replace(kind="assumed")
    told = {
        "measured": f"from other runs: {source}, as such a GPU reached (docs/performance.md)",
        "derived": f"derived: {source}, as {share.card} reached (docs/performance.md); no GPU of "
        "this model has measured it yet",
        "assumed": f"an assumption: {source}; no GPU of this model has measured it yet",
    }
    source = told[share.kind]
    return Speed(card.name, at, startup, False, "assumption", source)


def _unit_work(asked: Asked, weights: Weights | None, mean_cost: float) -> UnitWork | None:
    workload = find_workload(asked.settings.workload)
    if weights is None or not isinstance(workload, EstimatesWork):
        return None
    with plugin_errors.attributed_to(asked.settings.workload, "unit_work"):
        return workload.unit_work(weights, mean_cost)


def measured(asked: Asked, results: Path) -> Speed | None:
    """Return the speed that earlier runs below `results` tell; None where none does.

    On a CPU where jobs had another number of threads it is in proportion, which is an assumption.
    """
    parts, runs = earlier_parts(asked, results)
    if not parts:
        return None
    newest = parts[-1]
    seconds = [part.startup_seconds + AROUND_JOB_SECONDS for part in parts]
    usual = sum(seconds) / len(seconds)
    startup = Range(usual, usual, max(seconds))
    each = [part.cost / part.seconds["compute"] for part in parts]
    rate = sum(part.cost for part in parts) / sum(part.seconds["compute"] for part in parts)
    source = f"{counted(len(parts), 'part')} of {', '.join(map(str, runs))}"
    if asked.threads in (0, newest.threads):
        at = Range(min(each), rate, max(each))
        return Speed(newest.device_name, at, startup, True, "earlier run", f"measured: {source}")
    threads = newest.threads or 1
    scaled = asked.threads / threads * rate
    at = Range(scaled * 0.5, scaled, max(scaled, rate))
    source = f"an assumption: in proportion to threads, of which {source} had {threads}"
    return Speed(newest.device_name, at, startup, True, "assumption", source)


def earlier_parts(asked: Asked, results: Path) -> tuple[Sequence[Receipt], list[Path]]:
    """Return the newest receipts below `results` that answer what is `asked`, the oldest first,
    and the folders of their runs.

    They are of runs that computed the same thing: workload, its version, and the options that its
    speed depends on. Where none had as many threads, others answer.
    """
    runs = [path.parent for path in sorted(results.glob("*/plan.json"))]
    answers_of = {run: _answers_of(Results(run), asked) for run in runs}
    answers = [one for of_run in answers_of.values() for one in of_run]
    exact = [one for one in answers if asked.threads in (0, one.threads)]
    newest = newest_whole(exact) or newest_whole(answers)
    return newest, [r for r in runs if any(a is b for a in answers_of[r] for b in newest)]


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
    same network do."""
    if (one.workload, one.version) != (other.workload, other.version):
        return False
    keys = optional(find_workload(one.workload), "SPEED_OPTIONS")
    if keys is None:  # then anything may tell on it
        told = {"options", "weights_sha256", "files"}
        return one.model_dump(include=told) == other.model_dump(include=told)
    return all(one.options.get(key) == other.options.get(key) for key in keys)


def _newest(run: Results, recipe: str) -> list[Receipt]:
    """Return the run's newest receipts, some of them."""
    folder = run.receipt(recipe, "").parent
    paths = folder.glob("*.json") if folder.is_dir() else ()
    newest = heapq.nlargest(2 * MOST_PARTS, paths, lambda path: path.stat().st_mtime)
    receipts = [receipt for path in newest if (receipt := run.find_receipt(recipe, path.stem))]
    if receipts:
        return receipts
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
