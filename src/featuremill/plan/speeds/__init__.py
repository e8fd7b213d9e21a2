"""How fast a device is at a model: measured where anything was measured, else a stated assumption.

In this order: a number that somebody gives; receipts of earlier runs of the same model on the same
device (`earlier.py`); a card's peak figures times an assumed share (`table.py`, `assumed.py`). The
answer always says which of them it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from featuremill.base.errors import UserError
from featuremill.base.words import counted
from featuremill.lease import devices
from featuremill.plan.speeds import assumed, earlier
from featuremill.plan.speeds.assumed import Rates, Shape
from featuremill.plan.speeds.earlier import Asked, Found
from featuremill.plan.speeds.table import Card, card_of, cards_called
from featuremill.store.plan import Plan
from featuremill.store.weights_file import WeightsFile

Kind = Literal["given", "earlier run", "assumption"]
AROUND_JOB_SECONDS = 0.25
"""Between two jobs on a slot, besides what receipts count: the verb's own start and end, and
Snakemake's pause. Measured by `python -m bench.scale --records 50000 --shards 1000`: 0.11 + 0.14 s
(docs/scale.md)."""
CPU_STARTUP_SECONDS = (1.5, 2.3, 5.0)
"""Where no receipt says: `start_up_seconds` of `make bench` (35M, 2 cores of an AMD EPYC)."""
GPU_STARTUP_SECONDS = (5.0, 8.0, 60.0)
"""An assumption: Python 0.5, torch 1.5 to 3, the CUDA context 0.4, weights 1 to 3, kernels 1; more
where they come over a network, or Triton compiles for the first time. No GPU has told yet."""
HOST_BOUND = f"{assumed.HOST_TOKENS_PER_SECOND:,} tokens a second that one thread of it prepares"
SLOWEST = "Tesla T4"
"""Stands in for a GPU that nobody named: limits made with it are too long rather than too short."""
USUAL_TOKENS = 350.0
"""Of a protein, where nobody knows the input yet."""


class Speed(NamedTuple):
    """How fast one job computes on its device or devices, and what it takes besides."""

    device: str
    rates: Rates
    """In the workload's unit of cost a second: for planning take `middle`, for limits `low`."""
    startup_seconds: Rates
    """Of a job, in which nothing is computed: `low` is the shortest, `high` the longest."""
    is_startup_measured: bool
    kind: Kind
    source: str
    """Where the rate is from, in words."""

    @property
    def is_assumed(self) -> bool:
        """Whether nothing of it was measured: then say the range."""
        return self.kind == "assumption"


def seconds_of_shard(cost: float, speed: Speed, is_limit: bool = False) -> float:
    """Return the seconds a job takes for a shard of so much `cost`, start-up included.

    With `is_limit` those of a slow day: the lowest rate and the longest start-up, without any
    safety factor on top.
    """
    if is_limit:
        return speed.startup_seconds.high + cost / speed.rates.low
    return speed.startup_seconds.middle + cost / speed.rates.middle


def of_plan(run_folder: Path, plan: Plan, device: str = "", threads: int = 0) -> Speed:
    """Return how fast a job of a planned run is on a `device`, for its time limit.

    Args:
        run_folder: results/<run>; runs beside it count as earlier ones.
        plan: of that run.
        device: as NVML or a cluster calls the GPU ("NVIDIA A100-SXM4-40GB", "a100"); without one,
            what earlier runs used, else the slowest card of the table.
        threads: of a job on a CPU; 0 for any.

    Raises:
        UserError: when nothing is known: a workload without a model, on a device that has computed
            nothing of it yet; or a GPU that is not in the table.
    """
    is_gpu = plan.device == "cuda" or bool(device)
    if plan.device == "auto" and not is_gpu:
        is_gpu = bool(devices.cuda_devices())
    mean = sum(shard.cost for shard in plan.shards) / max(1, plan.counts.unique)
    name = device if is_gpu else devices.cpu().name
    asked = Asked(plan.settings, name, is_gpu, plan.gpus if is_gpu else 1, threads)
    weights = Path(plan.weights) if plan.weights else None
    return find(asked, run_folder.parent, shape_of(weights), mean)


def shape_of(weights: Path | None) -> Shape | None:
    """Return the architecture of the model whose weights/<name>.json this is; None for none."""
    found = WeightsFile.find(weights) if weights else None
    return assumed.shape_told(found.metadata) if found else None


class Startup(NamedTuple):
    """What a job takes besides computing."""

    seconds: Rates
    is_measured: bool


def given(cost_per_second: float, device: str, startup: Startup) -> Speed:
    """Return the speed that somebody names."""
    rates = Rates(cost_per_second, cost_per_second, cost_per_second)
    return Speed(device, rates, *startup, "given", "as given with --tokens-per-second")


def measured(asked: Asked, results: Path) -> Speed | None:
    """Return the speed that earlier runs below `results` tell; None where none does."""
    found = earlier.look(results, asked)
    if found is None:
        return None
    rates = Rates(min(found.rates), found.usual_rate, max(found.rates))
    runs = ", ".join(str(results / run) for run in found.runs[:3])
    more = f" and {len(found.runs) - 3} more" if len(found.runs) > 3 else ""
    source = f"measured: {counted(len(found.parts), 'part')} of {runs}{more}"
    device = found.parts[-1].device_name
    return Speed(device, rates, *_measured_startup(found), "earlier run", source)


def find(
    asked: Asked,
    results: Path,
    shape: Shape | None,
    mean_cost: float = USUAL_TOKENS,
    stand_in: str = SLOWEST,
) -> Speed:
    """Return the best that is known of the speed `asked` for.

    Args:
        asked: settings and device.
        results: the folder of runs, whose receipts count.
        shape: of the model; None for workloads that are no ESM-2.
        mean_cost: of a record, as attention's cost grows with it.
        stand_in: card of the table whose speed is assumed of a GPU that nobody names.

    Raises:
        UserError: as `of_plan` does.
    """
    if known := measured(asked, results):
        return known
    if not asked.is_gpu and (scaled := _scaled(asked, results)):
        return scaled
    if shape is None:
        raise UserError(
            f"workload {asked.settings.workload}: nothing is known of its speed on "
            f"{asked.device or 'a GPU'}; compute a shard or two there first, or give "
            "--tokens-per-second."
        )
    return _assumed(asked, shape, mean_cost, startup_of(asked, results), stand_in)


def startup_of(asked: Asked, results: Path) -> Startup:
    """Return what a job takes besides computing: by earlier runs, else by what is usual."""
    anywhere = asked._replace(threads=0)
    if found := earlier.look(results, asked) or earlier.look(results, anywhere):
        return _measured_startup(found)
    return Startup(Rates(*(GPU_STARTUP_SECONDS if asked.is_gpu else CPU_STARTUP_SECONDS)), False)


def _measured_startup(found: Found) -> Startup:
    seconds = found.startup_seconds
    usual = sum(seconds) / len(seconds) + AROUND_JOB_SECONDS
    return Startup(Rates(usual, usual, max(seconds) + AROUND_JOB_SECONDS), True)


def _scaled(asked: Asked, results: Path) -> Speed | None:
    """Return what other numbers of threads of the same CPU make one expect."""
    found = earlier.look(results, asked._replace(threads=0))
    if found is None or not asked.threads:
        return None
    threads = found.parts[-1].threads or 1
    usual = asked.threads / threads * found.usual_rate
    rates = Rates(usual * 0.5, usual, max(usual, found.usual_rate))
    source = (
        f"an assumption: in proportion to threads, from parts with {threads} of them "
        f"({', '.join(found.runs[:3])})"
    )
    device = found.parts[-1].device_name
    return Speed(device, rates, *_measured_startup(found), "assumption", source)


def _assumed(
    asked: Asked, shape: Shape, mean_cost: float, startup: Startup, stand_in: str
) -> Speed:
    dtype = str(asked.settings.options["dtype"])
    if not asked.is_gpu:
        threads = asked.threads or 1
        rates = assumed.on_cpu(shape, mean_cost, dtype, threads)
        source = (
            f"an assumption: {assumed.CPU_GFLOPS_A_CORE[dtype]:g} GFLOP/s a core in {dtype} and "
            f"{1e6 * assumed.CPU_SECONDS_A_TOKEN:.0f} µs a token, as on other machines; a "
            "short run of a shard or two here has it measured"
        )
        return Speed(asked.device, rates, *startup, "assumption", source)
    card = card_of(asked.device or stand_in)
    rates = assumed.on_card(shape, mean_cost, dtype, card)
    return Speed(card.name, rates, *startup, "assumption", _why_on_card(asked, card, rates))


def _why_on_card(asked: Asked, card: Card, rates: Rates) -> str:
    """Return what the assumed rates rest on: the card, or the host that is slower than any card."""
    bound = assumed.HOST_TOKENS_PER_SECOND
    if rates.low >= bound:
        return (
            f"an assumption: the host limits it, whatever the card, to the {HOST_BOUND}; no GPU "
            "has measured it yet"
        )
    others = len(cards_called(asked.device)) - 1
    which = f", the slowest of {others + 1} that are called so," if others > 0 else ""
    if not asked.device:
        which = ", which stands in for a GPU that is not known,"
    low, middle, high = (f"{100 * share:.0f}" for share in assumed.SHARES)
    limit = f", with the host's limit of the {HOST_BOUND}" if rates.high >= bound else ""
    return (
        f"an assumption: {middle} % ({low} to {high} %) of what the data sheet of "
        f"{card.name}{which} would allow{limit}; no GPU has measured it yet"
    )
