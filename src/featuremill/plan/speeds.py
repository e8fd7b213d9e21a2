"""The speed of a device at a model, from the first of these that is known: a number from the
command line; receipts of earlier runs of the same model; a share of what the peaks of the device
allow for the operations and bytes of a unit of cost (`unit_work`). And the time, disk and memory of
a run besides computing, each with the command that measured it, on 2 cores of a shared machine with
a local disk; a cluster's file system may be several times slower at plan and merge.
"""

from __future__ import annotations

import contextlib
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
    UnitWork,
    Weights,
    find_workload,
    optional,
    plugin_errors,
)
from featuremill.workload.recipe import precision_name_of
from featuremill.workload.weights import weights_of

AROUND_JOB_SECONDS = 0.25
"""Seconds between two jobs on a slot besides those in receipts: 0.11 + 0.14 by `python -m
bench.scale --records 50000 --shards 1000`."""
CPU_STARTUP = 2.3
"""Seconds to start a job on a CPU: `start_up_seconds` of `make bench` (35M, 2 cores of an EPYC)."""
GPU_STARTUP = 6.5
"""Seconds to start a job on a GPU: 5.5 to 6.9 of the demo's on an H200 (run.log), 6.0 with 650M,
9.3 with kernels to compile (`start_up` of bench/results)."""
SHARE = 0.5
"""Share of the peaks of a card, for a workload of which nothing was measured."""
ASSUMED = 2.0
"""Factor by which an assumed speed may be too high or too low."""
SNAKEMAKE_SECONDS = 3.5
"""Seconds of Snakemake before the first job and after the last: the demo."""
PLAN_SECONDS = (0.5, 19.4e-6)
"""Seconds of a plan, and of each record of 348 residues: `python -m bench.scale --records
5000000`."""
PLAN_BYTES_A_RECORD = 41
"""Bytes of store/shards for a record, beside its residues: the same, 389 - 348."""
ROW_BYTES_A_RECORD = 48
"""Bytes of records.parquet for a record: the same."""
SPOOL_BYTES_A_RECORD = 615
"""Bytes of store/spool for a record while plan runs: the same."""
MERGE_SECONDS = (0.5, 3e-6, 20e-9)
"""Seconds of a merge, of each record, and of each byte of values: `python -m bench.merge_scale`;
12 ns with 0.67 GB, 24 to 40 ns with 5.1 GB on a busy disk."""
MERGE_BY_SHARD_SECONDS = 1e-6
"""Seconds of a merge of results by shard for a record: `python -m bench.merge_scale --records
10000000 --width 128 --order shard`."""
DELIVER_SECONDS = 36e-9
"""Seconds of a job that delivers, for a byte of values: the same of 1,000,000 × 1,280 numbers."""
REPORT_SECONDS = 2.7
"""Seconds of a report: `time featuremill report results/demo`."""
FILES_A_SHARD = 7
"""Number of files: shard, part, its receipt kept and declared, telemetry, lock, log."""
PROCESS_MB = 2000
"""MB of a job: two processes of Snakemake, Python, PyArrow and torch."""
CUDA_HOST_MB = 2000
"""MB of the host for a CUDA context and its libraries: a usual value, not measured here."""
WEIGHTS_ON_GPU = 1.5
"""Host memory by the size of the weights' file, which is mapped and copied in pieces."""
WEIGHTS_ON_CPU = 4.0
"""Host memory on a CPU by that size: mapped file, a copy (3.3 for fp16 in fp32), batches."""


class Card(NamedTuple):
    """A GPU by its maker's data sheet."""

    name: str
    """Name in NVML."""
    half_tflops: float
    """Dense bf16 and fp16 products with sums in fp32, 10¹² operations a second."""
    single_tflops: float
    """fp32 without matrix units, 10¹² operations a second."""
    gigabytes_per_second: float
    """Memory bandwidth."""
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
    """Whether the GPU `name` may be meant by `wanted`: "h100" names several."""
    known, words = _words_of(name), _words_of(wanted)
    return bool(words) and all(word in known for word in words)


def cards_called(wanted: str) -> list[Card]:
    """Return the cards that `wanted` may mean, slowest first; a complete name means one card."""
    exact = [card for card in CARDS if _words_of(card.name) == _words_of(wanted)]
    cards = exact or [card for card in CARDS if is_called(card.name, wanted)]
    return sorted(cards, key=lambda card: (card.half_tflops, card.gigabytes_per_second))


def _words_of(name: str) -> list[str]:
    """Return the words of a GPU's name as NVML, Slurm or people spell it: "rtx4090" has two."""
    return re.findall(r"[a-z]+(?=\d{4})|[a-z0-9]+", name.lower())


class JobSpec(NamedTuple):
    """A job whose speed is wanted."""

    settings: Settings
    device: str
    """Name of the GPU, "" for any; name of the CPU."""
    is_gpu: bool
    num_devices: int = 1
    """Devices that hold one model."""
    threads: int = 0
    """Threads of a job on a CPU; 0 for any number."""


@dataclass(frozen=True)
class Speed:
    """The speed of one job, and its time besides computing."""

    device: str
    cost_per_second: float
    """Rate in the workload's unit of cost."""
    startup_seconds: float
    """Seconds of a job in which nothing is computed."""
    is_startup_measured: bool
    kind: Literal["given", "earlier run", "assumption"]
    source: str
    uncertainty: float = 1.0
    """Factor by which the rate may be higher or lower, at least 1."""

    @property
    def is_assumed(self) -> bool:
        return self.kind == "assumption"

    def most_seconds(self, cost: float) -> float:
        """Return the seconds of a shard of so much `cost` at the lowest rate."""
        return self.uncertainty * (self.startup_seconds + cost / self.cost_per_second)


def find(
    job: JobSpec,
    results: Path,
    weights: Weights | None,
    mean_cost: float,
    stand_in: str = "",
    given_rate: float | None = None,
    cores: int = 1,
) -> Speed:
    """Return the speed of the job.

    Args:
        job: settings and device.
        results: folder of runs, whose receipts count.
        weights: weights with the shape of the model; None for workloads without.
        mean_cost: mean cost of a record.
        stand_in: card that is assumed for a GPU without a name.
        given_rate: cost a second, in place of all that is known.
        cores: cores of a job on a CPU with any number of threads, where nothing was measured.

    Raises:
        UserError: nothing is known of the workload, or of the GPU.
    """
    known = measured(job, results)
    startup = known.startup_seconds if known else GPU_STARTUP if job.is_gpu else CPU_STARTUP
    if given_rate:
        source = "as given with --tokens-per-second"
        device = job.device or "a GPU"
        return Speed(device, given_rate, startup, bool(known), "given", source)
    if known:
        return known
    name = job.device or (stand_in if job.is_gpu else "")
    if not name:
        raise UserError(
            "no GPU is here and none has computed this model yet; name it with "
            '--device (such as "NVIDIA H100 80GB HBM3"), or --tokens-per-second.'
        )
    settings, work = job.settings, None
    workload, precision = find_workload(settings.workload), precision_name_of(settings)
    if weights and precision:
        with plugin_errors.attributed_to(settings.workload, "unit_work"):
            work = optional(workload, "unit_work")(weights, mean_cost)
    if work is None:
        raise UserError(
            f"workload {settings.workload}: its speed on {name} is unknown; compute a shard or two "
            "there first, or give --tokens-per-second."
        )
    unit = workload.COST_UNIT
    if not job.is_gpu:
        rate = on_cpu(work, precision, job.threads or cores)
        source = (
            f"{work.core_gflops[precision]:g} GFLOP/s a core in {precision} and "
            f"{1e6 * work.cpu_seconds:.0f} µs a {unit.removesuffix('s')}, as on other machines; a "
            "short run of a shard or two here has it measured"
        )
    elif cards := cards_called(name):
        card, share = cards[0], work.shares.get(precision)
        name, rate = card.name, on_card(work, precision, card)
        source = f"{100 * (share or SHARE):.0f} % of what the data sheet of {name} allows"
        source += f", as {work.card} reached (docs/performance.md)" if share else ""
        if rate >= work.host_per_second:
            source = (
                f"what one thread of the host prepares, {rate:,.0f} {unit} a second, on any card"
            )
    else:
        known_cards = ", ".join(card.name.removeprefix("NVIDIA ") for card in CARDS)
        raise UserError(
            f"the speed of a GPU called {name!r} is unknown: no earlier run used one, and "
            f"the table has only {known_cards}; give --tokens-per-second."
        )
    return Speed(name, rate, startup, False, "assumption", f"an assumption: {source}", ASSUMED)


def find_first(
    jobs: Iterable[JobSpec],
    results: Path,
    weights: Path | None,
    mean_cost: float,
    stand_in: str,
    cores: int,
) -> Speed | None:
    """Return the speed of the first job of which anything is known; None for none.

    `weights` is weights/<name>.json; `cores` are those of a CPU that has computed nothing.
    """
    file = WeightsFile.find(weights) if weights else None
    for job in jobs:
        with contextlib.suppress(UserError, OSError):  # other runs may be removed meanwhile
            known = weights_of(file) if file else None
            return find(job, results, known, mean_cost, stand_in, cores=cores)
    return None


def on_card(work: UnitWork, precision: str, card: Card) -> float:
    """Return the cost that a card may compute in a second."""
    is_wide = precision == "fp32"
    tflops, times_the_bytes = (card.single_tflops, 2) if is_wide else (card.half_tflops, 1)
    least = work.operations / (tflops * 1e12)
    least += work.bytes_moved * times_the_bytes / (card.gigabytes_per_second * 1e9)
    return min(work.shares.get(precision, SHARE) / least, work.host_per_second)


def on_cpu(work: UnitWork, precision: str, num_threads: int) -> float:
    """Return the cost that so many cores of a CPU may compute in a second."""
    of_operations = work.operations / (work.core_gflops[precision] * 1e9)
    return 1 / (of_operations / num_threads + work.cpu_seconds)


def measured(job: JobSpec, results: Path) -> Speed | None:
    """Return the speed of earlier runs below `results`; None without any. For another number of
    threads on a CPU, assume proportion."""
    parts, runs = earlier_parts(job, results)
    if not parts:
        return None
    newest = parts[-1]
    startup = sum(part.startup_seconds for part in parts) / len(parts) + AROUND_JOB_SECONDS
    rates = [part.cost / part.seconds["compute"] for part in parts]
    rate = sum(part.cost for part in parts) / sum(part.seconds["compute"] for part in parts)
    source = f"{counted(len(parts), 'part')} of {', '.join(map(str, runs))}"
    if job.threads in (0, newest.threads):
        source, spread = f"measured: {source}", max(1.0, rate / min(rates))
        return Speed(newest.device_name, rate, startup, True, "earlier run", source, spread)
    threads = newest.threads or 1
    source = f"an assumption: in proportion to threads, of which {source} had {threads}"
    rate *= job.threads / threads
    return Speed(newest.device_name, rate, startup, True, "assumption", source, ASSUMED)


def earlier_parts(job: JobSpec, results: Path) -> tuple[Sequence[Receipt], list[Path]]:
    """Return the newest receipts of such jobs, oldest first, and the folders of their runs. If none
    had as many threads, those with others count."""
    runs = [path.parent for path in sorted(results.glob("*/plan.json"))]
    run_of = {id(part): (part, run) for run in runs for part in _answers_of(Results(run), job)}
    answers = [part for part, _ in run_of.values()]
    exact = [part for part in answers if job.threads in (0, part.threads)]
    newest = newest_whole(exact) or newest_whole(answers)
    return newest, sorted({run_of[id(part)][1] for part in newest})


def _answers_of(run: Results, job: JobSpec) -> list[Receipt]:
    """Return some of the newest such receipts of a run; none if it cannot be read."""
    try:
        plan = run.find_plan()
        if plan is None or not is_alike(plan.settings, job.settings):
            return []
        folder = run.receipt(plan.recipe, "").parent
        paths = folder.glob("*.json") if folder.is_dir() else ()
        newest = heapq.nlargest(2 * MOST_PARTS, paths, lambda path: path.stat().st_mtime)
        receipts = [run.find_receipt(plan.recipe, path.stem) for path in newest]
        # After `clean` the results still have them.
        if not any(receipts) and (delivery := run.find_delivery()):
            receipts = [*delivery.receipts]
        return [receipt for receipt in receipts if receipt and _answers(receipt, job)]
    except (OSError, UserError):  # unreadable, being removed, or of a newer version
        return []


def is_alike(settings: Settings, other: Settings) -> bool:
    """Whether two settings take nearly the same time, as other layers of a network do."""
    if (settings.workload, settings.version) != (other.workload, other.version):
        return False
    keys = optional(find_workload(settings.workload), "SPEED_OPTIONS")
    if keys is None:
        values = {"options", "weights_sha256", "files"}
        return settings.model_dump(include=values) == other.model_dump(include=values)
    return all(settings.options.get(key) == other.options.get(key) for key in keys)


def _answers(receipt: Receipt, job: JobSpec) -> bool:
    seconds, names = receipt.seconds, [device.name for device in receipt.devices]
    if not (receipt.cost > 0 and seconds.get("compute", 0) > 0 and seconds.get("total", 0) > 0):
        return False
    if receipt.is_on_gpu != job.is_gpu or len(names) != job.num_devices:
        return False
    if not job.device:
        return True
    return all(is_called(name, job.device) if job.is_gpu else name == job.device for name in names)


def host_mb(shard_mb: float, weights_mb: float, *, on_cpu: bool) -> float:
    """Return the MB of host memory for computing a shard; calculated, not measured."""
    of_weights = WEIGHTS_ON_CPU if on_cpu else WEIGHTS_ON_GPU
    return PROCESS_MB + 2 * shard_mb + (0 if on_cpu else CUDA_HOST_MB) + of_weights * weights_mb
