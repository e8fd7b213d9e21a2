"""What a run measures, the most important first: when time runs out, the last are left out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from bench import bars, beside, hard_run, probes, trainings
from bench.clock import Clock
from bench.compare import Settings, compare
from bench.engines import Output
from bench.engines.ours import Ours, batch_budget
from bench.stage import Ground, Stage
from bench.start_up import start_up
from bench.table import FORKING, TESTS

CPU = Settings(3, 3.0, least_tokens=7_000, first_gflop=100, probe_tokens=16_000, num_alone=12)
GPU = Settings(3, 1.5, least_tokens=16_000, first_gflop=30_000, probe_tokens=300_000, num_alone=48)
QUICK = Settings(1, 0.1, least_tokens=1_000, first_gflop=0, probe_tokens=1_500, num_alone=2)
REHEARSAL = QUICK._replace(matmul_size=256, long_residues=3_000, run_tokens=20_000)


class Step(NamedTuple):
    """One measurement of a run."""

    kind: str
    shape: str = ""
    output: Output = "mean"
    needs_seconds: float = 20.0
    """With less time left, the step is not begun."""
    at_most_seconds: float = 240.0
    """When it is not done after that, it is given up and the next one begins."""
    has_peers: bool = True
    """Whether peers are loaded and judged too, which takes compilations; if not, ours alone."""
    rival_tokens: int = 0
    """What ours and the peer that is as fast compute at least, all the same proteins; 0 where each
    engine has as many as fill its time."""

    @property
    def stage(self) -> str:
        """What steps share: the shape, with its peers or without."""
        return self.shape if self.has_peers else f"{self.shape} alone"

    @property
    def name(self) -> str:
        is_comparison = self.kind == "compare"
        return f"{self.kind} {self.shape}".strip() + (f" {self.output}" if is_comparison else "")


CPU_STEPS = (
    Step("compare", "8M", "mean", 60, 900, rival_tokens=36_000),
    Step("compare", "35M", "mean", 120, 900, rival_tokens=36_000),
    Step("compare", "150M", "mean", 300, 1800, rival_tokens=14_000),
    Step("same_bits", "8M"),
    Step("compare", "8M", "per_residue", 60, 900, rival_tokens=36_000),
    Step("start_up", "8M", needs_seconds=30),
    Step("peak_memory", "35M", needs_seconds=80),
    Step("compare", "35M", "per_residue", 90, 900, rival_tokens=36_000),
)
"""36,000 tokens are 101 proteins of the sample, 14,000 are 37."""
GPU_PARTS = {
    "tests": (
        Step(TESTS, needs_seconds=60, at_most_seconds=150),
        Step(FORKING, needs_seconds=30, at_most_seconds=75),
    ),
    "small": (
        Step("compare", "8M", "mean", 60, 110),
        Step("compare", "150M", "mean", 60, 110),
        Step("kernels", "8M", needs_seconds=5, at_most_seconds=20),
        Step("kernels", "150M", needs_seconds=5, at_most_seconds=20),
    ),
    "residues": (
        Step("compare", "650M", "per_residue", 60, 130),
        Step("compare", "35M", "mean", 60, 110),
    ),
    "workloads": (
        Step("scores", needs_seconds=15, at_most_seconds=60),
        Step("contacts", needs_seconds=15, at_most_seconds=40),
        Step("llm_json", needs_seconds=20, at_most_seconds=60),
        Step("geneformer", needs_seconds=15, at_most_seconds=40),
        Step("esmc", needs_seconds=15, at_most_seconds=40),
        Step("prott5", needs_seconds=30, at_most_seconds=60),
        Step("esm1b", needs_seconds=15, at_most_seconds=40),
        Step("llm_json_large", needs_seconds=30, at_most_seconds=90),
    ),
    "large": (
        Step("share_of_products", "650M", "mean", 15, 45, has_peers=False),
        Step("share_of_products", "3B", "mean", 20, 60, has_peers=False),
        Step("compare", "3B", "mean", 60, 130),
        Step("compare", "650M", "mean", 60, 120),
        Step("kernels", "650M", needs_seconds=5, at_most_seconds=20),
        Step("products", "650M", needs_seconds=20, at_most_seconds=60),
    ),
    "slots": (
        Step("share_of_gpu", "150M", "mean", 30, 60, has_peers=False),
        Step("limited_memory", "150M", "mean", 10, 30, has_peers=False),
        Step("peak_memory", "150M", "mean", 30, 90, has_peers=False),
        Step("training", needs_seconds=30, at_most_seconds=90),
    ),
    "faults": (Step("hard_run", needs_seconds=60, at_most_seconds=235),),
    "bits": (
        Step("start_up", "650M", "mean", 40, 90, has_peers=False),
        Step("batch_memory", "650M", "mean", 20, 60, has_peers=False),
        Step("budget_sweep", "650M", "mean", 20, 60, has_peers=False),
        Step("long_protein", "650M", "mean", 20, 30, has_peers=False),
        Step("same_bits", "650M", "mean", 40, 120, has_peers=False),
    ),
}
"""In the order in which a lent GPU is used. First what no GPU has shown: tests, small networks and
residues, other workloads, large networks and their peers, several jobs on one GPU, and their
faults; last what an H200 has shown before. Each part is for four minutes."""
QUICK_STEPS = (
    Step("compare", "tiny", "mean", 5, rival_tokens=2_000),
    Step("compare", "tiny", "per_residue", 5, rival_tokens=2_000),
    Step("same_bits", "tiny", needs_seconds=5),
    Step("start_up", "tiny", needs_seconds=5),
    Step("peak_memory", "tiny", needs_seconds=5),
)
QUICK_KINDS = ("compare", "same_bits")
"""What --quick runs unless --steps names more."""


def rehearsed(step: Step) -> Step:
    """Return the step with a tiny network, and with time for a CPU that others use."""
    step = step._replace(at_most_seconds=REHEARSED_LONGER * step.at_most_seconds)
    return step._replace(shape=REHEARSED[step.shape]) if step.shape else step


REHEARSED_LONGER = 20


REHEARSED = {
    "8M": "tiny short",
    "35M": "tiny flat",
    "150M": "tiny narrow",
    "650M": "tiny",
    "3B": "tiny fp16",
}


def run_compare(stage: Stage, step: Step, settings: Settings, clock: Clock) -> Any:
    """Compare all engines for one output."""
    missing = {name: f"{name}: {reason}" for name, reason in stage.missing}
    found: dict[str, Any] = {}
    for found in compare(stage, step.output, clock, settings, step.rival_tokens):
        found |= {"bars": [bar._asdict() for bar in bars.of_comparison(found, missing)]}
        stage.so_far(found)
    return found


def run_same_bits(stage: Stage, _step: Step, settings: Settings, _clock: Clock) -> Any:
    """Probe every dtype at the usual budget, and on a GPU the one that counts at the others."""
    usual = batch_budget(stage.place)
    dtypes = [engine.dtype for engine in stage.engines if isinstance(engine, Ours)]
    cases: list[tuple[str, int]] = [(dtype, usual) for dtype in dtypes]
    if stage.place.has_gpu_steps:
        cases += [(stage.dtype, budget) for budget in probes.BUDGETS if budget != usual]
    rows: list[dict[str, Any]] = []
    for case in cases:
        rows.append(probes.same_bits(stage, *case, settings.probe_tokens, settings.num_alone))
        stage.so_far({"rows": rows})
    return rows


def run_start_up(stage: Stage, _step: Step, settings: Settings, clock: Clock) -> Any:
    """Time the product's start."""
    found = start_up(stage, settings.probe_tokens, clock)
    known = bars.of_start_up(stage.shape.name, found, stage.place.has_gpu_steps)
    return found | ({"bars": [bar._asdict() for bar in known]} if known else {})


def run_beside(name: str, ground: Ground, settings: Settings, clock: Clock) -> Any:
    """Time a workload and its peers."""
    return beside.measure(name, ground, settings.num_passes, clock)


KINDS: dict[str, Callable[[Stage, Step, Settings, Clock], Any]] = {
    "compare": run_compare,
    "same_bits": run_same_bits,
    "start_up": run_start_up,
    "kernels": lambda stage, *_: probes.kernels(stage),
    "products": lambda stage, _, settings, __: probes.forms(stage, settings.probe_tokens),
    "budget_sweep": lambda stage, _, settings, __: probes.budget_sweep(
        stage, 2 * settings.probe_tokens
    ),
    "batch_memory": lambda stage, _, settings, __: probes.batch_memory(
        stage, settings.probe_tokens
    ),
    "long_protein": lambda stage, _, settings, __: probes.long_protein(
        stage, settings.long_residues
    ),
    "share_of_gpu": lambda stage, _, settings, clock: probes.share_of_gpu(
        stage, 5 * settings.probe_tokens, clock
    ),
    "peak_memory": lambda stage, _, settings, clock: probes.peak_memory(
        stage, settings.probe_tokens, clock
    ),
    "share_of_products": lambda stage, _, settings, __: probes.share_of_products(
        stage, settings.probe_tokens, 5 * settings.num_passes
    ),
    "limited_memory": lambda stage, _, settings, __: hard_run.limited_memory(
        stage, settings.probe_tokens
    ),
}
GROUND_KINDS: dict[str, Callable[[Ground, Settings, Clock], Any]] = {
    "hard_run": lambda ground, settings, clock: hard_run.hard_run(
        ground, settings.run_tokens, clock
    ),
    "training": lambda ground, settings, clock: trainings.train(
        ground, settings.probe_tokens, clock
    ),
    **{name: partial(run_beside, name) for name in beside.CASES},
}
"""Steps without a shape: they make their own networks, or start whole programs."""
