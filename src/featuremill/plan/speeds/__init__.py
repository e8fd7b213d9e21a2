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
from featuremill.plan.speeds.earlier import Asked
from featuremill.plan.speeds.table import Card, card_of, cards_called
from featuremill.store.plan import Plan
from featuremill.store.weights_file import WeightsFile

AROUND_JOB_SECONDS = 0.25
"""Between two jobs on a slot, besides what receipts count: the verb's own start and end, and
Snakemake's pause. Measured by `python -m bench.scale --records 50000 --shards 1000`: 0.11 + 0.14 s
(docs/scale.md)."""
CPU_STARTUP = Rates(1.5, 2.3, 5.0)
"""Seconds, where no receipt says: `start_up_seconds` of `make bench` (35M, 2 cores of an AMD
EPYC)."""
GPU_STARTUP = Rates(5.0, 8.0, 60.0)
"""An assumption: Python 0.5, torch 1.5 to 3, the CUDA context 0.4, weights 1 to 3, kernels 1; more
where they come over a network, or Triton compiles for the first time. No GPU has told yet."""
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
    kind: Literal["given", "earlier run", "assumption"]
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
    mean = sum(shard.cost for shard in plan.shards) / max(1, plan.counts.unique)
    name = device if is_gpu else devices.cpu().name
    asked = Asked(plan.settings, name, is_gpu, plan.gpus if is_gpu else 1)
    weights = Path(plan.weights) if plan.weights else None
    return find(asked, run_folder.parent, shape_of(weights), mean, SLOWEST)


def shape_of(weights: Path | None) -> Shape | None:
    """Return the architecture of the model whose weights/<name>.json this is; None for none."""
    found = WeightsFile.find(weights) if weights else None
    return assumed.shape_told(found.metadata) if found else None


def find(
    asked: Asked,
    results: Path,
    shape: Shape | None,
    mean_cost: float = USUAL_TOKENS,
    stand_in: str = "",
    given: float | None = None,
) -> Speed:
    """Return the best that is known of the speed `asked` for.

    Args:
        asked: settings and device.
        results: the folder of runs, whose receipts count.
        shape: of the model; None for workloads that are no ESM-2.
        mean_cost: of a record, as attention's cost grows with it.
        stand_in: card of the table whose speed is assumed of a GPU that nobody names.
        given: cost a second that somebody names, which goes before all else.

    Raises:
        UserError: as `of_plan` does, and of a GPU that nobody names where none stands in.
    """
    known = measured(asked, results)
    startup = GPU_STARTUP if asked.is_gpu else CPU_STARTUP
    if given:
        if known:
            startup = known.startup_seconds
        rates = Rates(given, given, given)
        source = "as given with --tokens-per-second"
        return Speed(asked.device or "a GPU", rates, startup, known is not None, "given", source)
    if known:
        return known
    if asked.is_gpu and not (asked.device or stand_in):
        raise UserError(
            "no GPU is here and none has computed this model yet; say which it will be with "
            '--device (such as "NVIDIA H100 80GB HBM3"), or --tokens-per-second.'
        )
    if shape is None:
        raise UserError(
            f"workload {asked.settings.workload}: nothing is known of its speed on "
            f"{asked.device or 'a GPU'}; compute a shard or two there first, or give "
            "--tokens-per-second."
        )
    dtype = str(asked.settings.options["dtype"])
    if asked.is_gpu:
        card = card_of(asked.device or stand_in)
        device, rates = card.name, assumed.on_card(shape, mean_cost, dtype, card)
        source = _why_on_card(asked, card, rates)
    else:
        device, rates = asked.device, assumed.on_cpu(shape, mean_cost, dtype, asked.threads or 1)
        source = (
            f"{assumed.CPU_GFLOPS_A_CORE[dtype]:g} GFLOP/s a core in {dtype} and "
            f"{1e6 * assumed.CPU_SECONDS_A_TOKEN:.0f} µs a token, as on other machines; a "
            "short run of a shard or two here has it measured"
        )
    return Speed(device, rates, startup, False, "assumption", f"an assumption: {source}")


def measured(asked: Asked, results: Path) -> Speed | None:
    """Return the speed that earlier runs below `results` tell; None where none does.

    On a CPU where jobs had another number of threads it is in proportion, which is an assumption.
    """
    found = earlier.look(results, asked)
    if found is None:
        return None
    parts, newest = found.parts, found.parts[-1]
    seconds = [part.startup_seconds for part in parts]
    usual = sum(seconds) / len(seconds) + AROUND_JOB_SECONDS
    startup = Rates(usual, usual, max(seconds) + AROUND_JOB_SECONDS)
    each = [part.cost / part.seconds["compute"] for part in parts]
    rate = sum(part.cost for part in parts) / sum(part.seconds["compute"] for part in parts)
    if asked.threads in (0, newest.threads):
        rates = Rates(min(each), rate, max(each))
        runs = ", ".join(str(results / run) for run in found.runs[:3])
        more = f" and {len(found.runs) - 3} more" if len(found.runs) > 3 else ""
        source = f"measured: {counted(len(parts), 'part')} of {runs}{more}"
        return Speed(newest.device_name, rates, startup, True, "earlier run", source)
    threads = newest.threads or 1
    scaled = asked.threads / threads * rate
    rates = Rates(scaled * 0.5, scaled, max(scaled, rate))
    source = (
        f"an assumption: in proportion to threads, from parts with {threads} of them "
        f"({', '.join(found.runs[:3])})"
    )
    return Speed(newest.device_name, rates, startup, True, "assumption", source)


def _why_on_card(asked: Asked, card: Card, rates: Rates) -> str:
    """Return what the assumed rates rest on: the card, or the host that is slower than any card."""
    host = f"{assumed.HOST_TOKENS_PER_SECOND:,} tokens a second that one thread of it prepares"
    if rates.low >= assumed.HOST_TOKENS_PER_SECOND:
        return f"the host limits it, whatever the card, to the {host}; no GPU has measured it yet"
    num_called = len(cards_called(asked.device))
    which = f", the slowest of {num_called} that are called so," if num_called > 1 else ""
    low, middle, high = (f"{100 * share:.0f}" for share in assumed.SHARES)
    limited = rates.high >= assumed.HOST_TOKENS_PER_SECOND
    limit = f", with the host's limit of the {host}" if limited else ""
    return (
        f"{middle} % ({low} to {high} %) of what the data sheet of {card.name}{which} would "
        f"allow{limit}; no GPU has measured it yet"
    )
