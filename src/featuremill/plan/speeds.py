"""How fast a device is at a model: measured where anything was measured, else a stated assumption.

In this order: a number from the command line; receipts of earlier runs of the same model; a share
of what the device's peaks allow for the operations and bytes of a unit of cost (`EstimatesWork`),
which is right within a factor, `ASSUMED`. `Speed.source` names which it is.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from featuremill.base.errors import UserError
from featuremill.base.words import counted
from featuremill.store.plan import Settings
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
CPU_STARTUP = 2.3
"""Seconds, where no receipt has it: `start_up_seconds` of `make bench` (35M, 2 cores of an AMD
EPYC)."""
GPU_STARTUP = 6.5
"""Seconds: 6.4 of the demo's job on an H200, 5.5 to 6.9 of six such jobs three at a time (run.log);
with 650M 6.0 of a job, and 9.3 with kernels to compile (`start_up` of bench/results). Weights of
gigabytes that come over a network take longer."""
SHARE = 0.5
"""Of what the peaks of a card allow, for a workload of which nothing was measured."""
ASSUMED = 2.0
"""The factor by which an assumed speed may be too high or too low: cards differ in what they reach
of their data sheets, and cores that other work shares are slower."""
DERIVED = 1.2
"""The same on a card with the peak of the one on which the share was measured."""


class Card(NamedTuple):
    """The peak figures of a GPU, by its maker's data sheet."""

    name: str
    """As NVML says it."""
    half_tflops: float
    """Dense products in bf16 and fp16 that add up in fp32, in 10¹² operations a second; half of a
    figure "with sparsity"."""
    single_tflops: float
    """fp32 without the matrix units, which featuremill's fp32 does not use."""
    gigabytes_per_second: float
    has_bf16: bool = True
    memory_mb: int = 0
    num_multiprocessors: int = 0


CARDS = (
    Card("Tesla T4", 65, 8.1, 320, False, 15360, 40),
    Card("NVIDIA GeForce RTX 2080 Ti", 53.8, 13.4, 616, False, 11264, 68),
    Card("NVIDIA A100-SXM4-40GB", 312, 19.5, 1555, True, 40960, 108),
    Card("NVIDIA A100-PCIE-40GB", 312, 19.5, 1555, True, 40960, 108),
    Card("NVIDIA A100-SXM4-80GB", 312, 19.5, 2039, True, 81920, 108),
    Card("NVIDIA A100 80GB PCIe", 312, 19.5, 1935, True, 81920, 108),
    Card("NVIDIA A30", 165, 10.3, 933, True, 24576, 56),
    Card("NVIDIA A40", 149.7, 37.4, 696, True, 46068, 84),
    Card("NVIDIA A10", 125, 31.2, 600, True, 23028, 72),
    Card("NVIDIA RTX A5000", 111.1, 27.8, 768, True, 24564, 64),
    Card("NVIDIA RTX A6000", 154.8, 38.7, 768, True, 49140, 84),
    Card("NVIDIA GeForce RTX 3090", 71, 35.6, 936, True, 24576, 82),
    Card("NVIDIA L4", 121, 30.3, 300, True, 23034, 58),
    Card("NVIDIA L40", 181, 90.5, 864, True, 46068, 142),
    Card("NVIDIA L40S", 362, 91.6, 864, True, 46068, 142),
    Card("NVIDIA GeForce RTX 4090", 165.2, 82.6, 1008, True, 24564, 128),
    Card("NVIDIA GeForce RTX 5090", 209.5, 104.8, 1792, True, 32607, 170),
    Card("NVIDIA H100 PCIe", 756, 51, 2000, True, 81559, 114),
    Card("NVIDIA H100 NVL", 835, 60, 3900, True, 95830, 132),
    Card("NVIDIA H100 80GB HBM3", 989, 67, 3350, True, 81559, 132),
    Card("NVIDIA H200", 989, 67, 4800, True, 143771, 132),
    Card("NVIDIA GH200 480GB", 989, 67, 4000, True, 97871, 132),
    Card("NVIDIA B200", 2250, 80, 8000, True, 183359, 148),
)
"""NVIDIA's data sheets and architecture whitepapers of each, from T4 (2019) to B200 (2024)."""


def is_called(name: str, wanted: str) -> bool:
    """Tell whether the GPU `name` is one of those that are `wanted`: "h100" is several."""
    known, words = _words_of(name), _words_of(wanted)
    return bool(words) and all(word in known for word in words)


def cards_called(wanted: str) -> list[Card]:
    """Return the cards that `wanted` may mean, the slowest first; a whole name means that card
    alone."""
    exact = [card for card in CARDS if _words_of(card.name) == _words_of(wanted)]
    cards = exact or [card for card in CARDS if is_called(card.name, wanted)]
    return sorted(cards, key=lambda card: (card.half_tflops, card.gigabytes_per_second))


def _words_of(name: str) -> list[str]:
    """Return the words of a GPU's name, however NVML, Slurm or a person spells it: "rtx4090" is
    RTX 4090."""
    return re.findall(r"[a-z]+(?=\d{4})|[a-z0-9]+", name.lower())


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
    """How fast one job computes on its device or devices, and its time besides computing."""

    device: str
    cost_per_second: float
    """In the workload's unit."""
    startup_seconds: float
    """Of a job, in which nothing is computed."""
    is_startup_measured: bool
    kind: Literal["given", "earlier run", "assumption"]
    source: str
    """Where the rate is from, in words."""
    uncertainty: float = 1.0
    """The factor by which the rate may be higher or lower, at least 1."""

    @property
    def is_assumed(self) -> bool:
        """Whether nothing of it was measured."""
        return self.kind == "assumption"

    def most_seconds(self, cost: float) -> float:
        """Return the seconds of a shard of so much `cost` at the lowest rate."""
        return self.uncertainty * (self.startup_seconds + cost / self.cost_per_second)


def find(
    asked: Asked,
    results: Path,
    weights: Weights | None,
    mean_cost: float,
    stand_in: str = "",
    given_rate: float | None = None,
    cores: int = 1,
) -> Speed:
    """Return the best that is known of the speed `asked` for.

    Args:
        asked: settings and device.
        results: the folder of runs, whose receipts count.
        weights: of the model, of which the metadata count; None for workloads without.
        mean_cost: of a record, on which it may depend what a unit of cost takes.
        stand_in: card of the table whose speed is assumed of a GPU that nobody names.
        given_rate: cost a second that somebody names, which goes before all else.
        cores: of a job on a CPU, where any number is asked for and nothing was measured.

    Raises:
        UserError: where nothing is known: a workload without a model, on a device that has computed
            nothing of it yet; a GPU that is not in the table; one that nobody names, without a
            stand-in.
    """
    known = measured(asked, results)
    startup = known.startup_seconds if known else GPU_STARTUP if asked.is_gpu else CPU_STARTUP
    if given_rate:
        source = "as given with --tokens-per-second"
        device = asked.device or "a GPU"
        return Speed(device, given_rate, startup, bool(known), "given", source)
    if known:
        return known
    name = asked.device or (stand_in if asked.is_gpu else "")
    if not name:
        raise UserError(
            "no GPU is here and none has computed this model yet; name it with "
            '--device (such as "NVIDIA H100 80GB HBM3"), or --tokens-per-second.'
        )
    work, precision = _unit_work(asked, weights, mean_cost), precision_told(asked.settings)
    if work is None or not precision:
        raise UserError(
            f"workload {asked.settings.workload}: its speed on {name} is unknown; "
            "compute a shard or two there first, or give --tokens-per-second."
        )
    unit = find_workload(asked.settings.workload).COST_UNIT
    if asked.is_gpu:
        return _of_card(work, precision, name, unit)
    cores = asked.threads or cores
    source = (
        f"an assumption: {work.core_gflops[precision]:g} GFLOP/s a core in {precision} and "
        f"{1e6 * work.cpu_seconds:.0f} µs a {unit.removesuffix('s')}, as on other machines; a "
        "short run of a shard or two here has it measured"
    )
    rate = on_cpu(work, precision, cores)
    return Speed(name, rate, startup, False, "assumption", source, ASSUMED)


def _of_card(work: UnitWork, precision: str, name: str, unit: str) -> Speed:
    """Return the assumed speed of the card that `name` means."""
    if not (cards := cards_called(name)):
        known_cards = ", ".join(card.name.removeprefix("NVIDIA ") for card in CARDS)
        raise UserError(
            f"the speed of a GPU called {name!r} is unknown: no earlier run used one, and "
            f"the table has only {known_cards}; give --tokens-per-second."
        )
    card = cards[0]
    rate, uncertainty, share = on_card(work, precision, card), ASSUMED, work.shares.get(precision)
    source = f"{100 * (share or SHARE):.0f} % of what the data sheet of {card.name} allows"
    if share:
        source += f", as {work.card} reached (docs/performance.md)"
        if any(each.half_tflops == card.half_tflops for each in cards_called(work.card)):
            uncertainty = DERIVED
    if rate >= work.host_per_second:
        source = f"what one thread of the host prepares, {rate:,.0f} {unit} a second, on any card"
    source = f"an assumption: {source}"
    return Speed(card.name, rate, GPU_STARTUP, False, "assumption", source, uncertainty)


def find_first(
    askeds: Iterable[Asked],
    results: Path,
    weights: Path | None,
    mean_cost: float,
    stand_in: str,
    cores: int,
) -> Speed | None:
    """Return the speed of the first of these of which anything is known; None where nothing is.

    `weights` is weights/<name>.json, if the workload has any; of a CPU that has computed nothing,
    so many `cores` are assumed.
    """
    file = WeightsFile.find(weights) if weights else None
    for asked in askeds:
        try:
            known = weights_of(file) if file else None
            return find(asked, results, known, mean_cost, stand_in, cores=cores)
        except (UserError, OSError):  # runs beside this one may be another user's, or be removed
            continue
    return None


def _unit_work(asked: Asked, weights: Weights | None, mean_cost: float) -> UnitWork | None:
    workload = find_workload(asked.settings.workload)
    if weights is None or not isinstance(workload, EstimatesWork):
        return None
    with plugin_errors.attributed_to(asked.settings.workload, "unit_work"):
        return workload.unit_work(weights, mean_cost)


def on_card(work: UnitWork, precision: str, card: Card) -> float:
    """Return how much cost one card might compute in a second."""
    is_wide = precision == "fp32"
    tflops, times_the_bytes = (card.single_tflops, 2) if is_wide else (card.half_tflops, 1)
    least = work.operations / (tflops * 1e12)
    least += work.bytes_moved * times_the_bytes / (card.gigabytes_per_second * 1e9)
    return min(work.shares.get(precision, SHARE) / least, work.host_per_second)


def on_cpu(work: UnitWork, precision: str, num_threads: int) -> float:
    """Return how much cost so many cores of a CPU might compute in a second."""
    of_operations = work.operations / (work.core_gflops[precision] * 1e9)
    return 1 / (of_operations / num_threads + work.cpu_seconds)


def measured(asked: Asked, results: Path) -> Speed | None:
    """Return the speed that earlier runs below `results` tell; None where none does.

    On a CPU where jobs had another number of threads it is in proportion, which is an assumption.
    """
    parts, runs = earlier_parts(asked, results)
    if not parts:
        return None
    newest = parts[-1]
    startup = sum(part.startup_seconds for part in parts) / len(parts) + AROUND_JOB_SECONDS
    rates = [part.cost / part.seconds["compute"] for part in parts]
    rate = sum(part.cost for part in parts) / sum(part.seconds["compute"] for part in parts)
    source = f"{counted(len(parts), 'part')} of {', '.join(map(str, runs))}"
    if asked.threads in (0, newest.threads):
        source, spread = f"measured: {source}", max(1.0, rate / min(rates))
        return Speed(newest.device_name, rate, startup, True, "earlier run", source, spread)
    threads = newest.threads or 1
    source = f"an assumption: in proportion to threads, of which {source} had {threads}"
    rate *= asked.threads / threads
    return Speed(newest.device_name, rate, startup, True, "assumption", source, ASSUMED)


def earlier_parts(asked: Asked, results: Path) -> tuple[Sequence[Receipt], list[Path]]:
    """Return the newest receipts below `results` that answer what is `asked`, the oldest first,
    and the folders of their runs.

    They are of runs that computed the same thing: workload, its version, and the options that its
    speed depends on. Where none had as many threads, others answer.
    """
    runs = [path.parent for path in sorted(results.glob("*/plan.json"))]
    run_of = {id(part): (part, run) for run in runs for part in _answers_of(Results(run), asked)}
    answers = [part for part, _ in run_of.values()]
    exact = [part for part in answers if asked.threads in (0, part.threads)]
    newest = newest_whole(exact) or newest_whole(answers)
    return newest, sorted({run_of[id(part)][1] for part in newest})


def _answers_of(run: Results, asked: Asked) -> list[Receipt]:
    """Return the run's newest receipts that answer, some of them; none of a run that cannot be
    read."""
    try:
        plan = run.find_plan()
        if plan is None or not is_alike(plan.settings, asked.settings):
            return []
        folder = run.receipt(plan.recipe, "").parent
        paths = folder.glob("*.json") if folder.is_dir() else ()
        newest = heapq.nlargest(2 * MOST_PARTS, paths, lambda path: path.stat().st_mtime)
        found = (run.find_receipt(plan.recipe, path.stem) for path in newest)
        receipts = [receipt for receipt in found if receipt]
        # `clean` may have removed them, but what merge gathered stays.
        if not receipts and (delivery := run.find_delivery()):
            receipts = delivery.receipts
        return [receipt for receipt in receipts if _answers(receipt, asked)]
    except (OSError, UserError):  # somebody else's, on its way out, or of a newer version
        return []


def is_alike(settings: Settings, other: Settings) -> bool:
    """Tell whether two settings cost a device the same time, nearly: other layers and pools of the
    same network do."""
    if (settings.workload, settings.version) != (other.workload, other.version):
        return False
    keys = optional(find_workload(settings.workload), "SPEED_OPTIONS")
    if keys is None:  # then anything may tell on it
        values = {"options", "weights_sha256", "files"}
        return settings.model_dump(include=values) == other.model_dump(include=values)
    return all(settings.options.get(key) == other.options.get(key) for key in keys)


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
