"""What a run measures, the most important first: when time runs out, the last are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from bench import bars, probes
from bench.clock import Clock
from bench.compare import Settings, compare
from bench.engines import Output
from bench.engines.ours import Ours, batch_budget
from bench.stage import Stage
from bench.start_up import start_up
from bench.table import TESTS

CPU = Settings(3, 3.0, least_tokens=7_000, first_gflop=100, probe_tokens=16_000, num_alone=12)
GPU = Settings(3, 1.5, least_tokens=16_000, first_gflop=30_000, probe_tokens=300_000, num_alone=48)
QUICK = Settings(1, 0.1, least_tokens=1_000, first_gflop=0, probe_tokens=1_500, num_alone=2)
REHEARSAL = QUICK._replace(matmul_size=256, long_residues=3_000)


class Step(NamedTuple):
    """One measurement of a run."""

    kind: str
    shape: str = ""
    output: Output = "mean"
    needs_seconds: float = 20.0
    """With less time left, the step is not begun."""
    at_most_seconds: float = 240.0
    """When it is not done after that, it is given up and the next one begins."""
    rival_tokens: int = 0
    """What ours and the peer that is as fast compute at least, all the same proteins; 0 where each
    engine has as many as fill its time."""

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
    "a": (
        Step("compare", "650M", "mean", 100),
        Step("kernels", "650M", at_most_seconds=90),
        Step("products", "650M", needs_seconds=40, at_most_seconds=90),
        Step("compare", "650M", "per_residue", 80),
    ),
    "b": (
        Step("compare", "3B", "mean", 120, 300),
        Step("compare", "150M", "mean", 80),
        Step("products", "3B", needs_seconds=60, at_most_seconds=120),
        Step("compare", "8M", "mean", 60),
        Step("compare", "150M", "per_residue", 80),
    ),
    "c": (
        Step(TESTS, needs_seconds=60, at_most_seconds=210),
        Step("start_up", "650M", needs_seconds=40, at_most_seconds=90),
        Step("same_bits", "650M", needs_seconds=40, at_most_seconds=120),
        Step("batch_memory", "650M", at_most_seconds=60),
        Step("budget_sweep", "650M", at_most_seconds=90),
        Step("long_protein", "650M", at_most_seconds=90),
        Step("share_of_gpu", "150M", needs_seconds=60, at_most_seconds=120),
        Step("peak_memory", "150M", needs_seconds=100, at_most_seconds=180),
    ),
}
"""Speed of 650M; of the others; and what has to be right: tests, start, bits and memory. Each is
for one command of at most ten minutes, start and end included."""
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
    """Return the step with a tiny network."""
    return step._replace(shape=REHEARSED[step.shape]) if step.shape else step


REHEARSED = {"8M": "tiny short", "150M": "tiny narrow", "650M": "tiny", "3B": "tiny fp16"}


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
}
