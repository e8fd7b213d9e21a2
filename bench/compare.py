"""The comparison: every engine and every ceiling once, then again, in the same order."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from bench import gpu_only
from bench.bars import RATE_OF_EXTRACT, is_rival
from bench.ceiling import MATMUL_SIZE, Gemms, Matmul
from bench.clock import Clock
from bench.engines import Dtype, Engine, Output
from bench.engines.ours import Ours, batch_budget
from bench.lengths import Protein, describe, tokens_of
from bench.shapes import Shape
from bench.stage import Stage, say

PLAN_SECONDS = "plan_seconds"
"""What of each pass of ours was `plan`, which no run does on a GPU."""
MAX_TRIALS = 3
MAX_GROWTH = 8.0
"""A trial tells how many tokens fill a pass, if that is not many times what it computed."""
SLOW_SECONDS = 30.0
"""Who takes longer for a pass has no further one, unless it is ours or as fast as ours."""


class Settings(NamedTuple):
    """How much is computed."""

    num_passes: int
    seconds: float
    """How long one pass of a peer should take."""
    least_tokens: int
    """What every pass computes at least: several of fair-esm's batches."""
    first_gflop: float
    """Work of the first trial that finds out how fast a contestant is."""
    probe_tokens: int
    num_alone: int
    matmul_size: int = MATMUL_SIZE
    long_residues: int = 36_000
    """Of the protein that is computed whole."""
    run_tokens: int = 40_000_000
    """Of the runs whose workers are killed."""

    def first_tokens_of(self, shape: Shape) -> int:
        """Return the tokens of a first trial, the fewer the larger the network."""
        return max(1_000, round(self.first_gflop * 1e9 / shape.gemm_flops()))


class Contestant(Protocol):
    """Something with a rate."""

    name: str
    target_seconds: float
    """How long one pass of it should take."""

    def measure(self, proteins: list[Protein]) -> tuple[float, int]:
        """Return (seconds, tokens) of one pass over `proteins`."""

    def facts(self) -> dict[str, Any]:
        """Return what else is known of it."""


class EndToEnd:
    """An engine from FASTA to files."""

    def __init__(self, stage: Stage, engine: Engine, output: Output, seconds: float) -> None:
        self.name = engine.name
        # A run's start (reading, sharding) and end (the last sync) are short in minutes of work:
        # where a pass of ours is to tell of runs, it has to be longer than its peers' passes.
        is_ours = isinstance(engine, Ours)
        is_fast = stage.place.has_gpu_steps and is_ours and engine.dtype != "fp32"
        self.target_seconds = 3 * seconds if is_fast else seconds
        self._plan_seconds: list[float] = []
        self._stage, self._engine, self._output = stage, engine, output
        self._facts: dict[str, Any] = {"writes": engine.writes(output), "dtype": engine.dtype}

    def measure(self, proteins: list[Protein]) -> tuple[float, int]:
        place = self._stage.place
        self._stage.load(self._engine)
        if isinstance(self._engine, Ours):
            # What it delivers is decided when it is loaded.
            self._engine.model_for(self._output)
        before = place.allocated_bytes()
        place.forget_peak()
        seconds = self._stage.extraction_seconds(self._engine, self._output, proteins)
        if place.device == "cuda":
            self._facts["working_gpu_mb"] = round((place.peak_bytes() - before) / 2**20)
        if isinstance(self._engine, Ours):
            self._plan_seconds.append(self._engine.seconds["plan"])
        return seconds, sum(tokens_of(proteins))

    def facts(self) -> dict[str, Any]:
        if not isinstance(self._engine, Ours):
            return self._facts
        parts = dict(self._engine.seconds)
        return self._facts | {"seconds_of_last_pass": parts, PLAN_SECONDS: self._plan_seconds}


class Alone:
    """The device's share of our work: by CUDA's events, where it is a GPU."""

    def __init__(self, stage: Stage, dtype: Dtype, output: Output, seconds: float) -> None:
        self.name = f"featuremill {dtype}, {stage.place.only}"
        self.target_seconds = seconds
        self._stage, self._dtype, self._output = stage, dtype, output
        self._budget = batch_budget(stage.place)
        self._batches: tuple[int, list[Any]] = (0, [])

    def measure(self, proteins: list[Protein]) -> tuple[float, int]:
        model = self._stage.ours(self._dtype).model_for(self._output)
        if self._batches[0] != len(proteins):
            self._batches = len(proteins), gpu_only.prepare(model, proteins, self._budget)
        seconds = gpu_only.seconds(self._stage.place, model, self._batches[1])
        return seconds, sum(tokens_of(proteins))

    def facts(self) -> dict[str, Any]:
        return {"budget": self._budget}


class Roof:
    """The encoder's matrix products alone."""

    def __init__(self, stage: Stage, dtype: str, seconds: float) -> None:
        self._gemms = Gemms(stage.shape, stage.place, dtype, batch_budget(stage.place))
        self.name = self._gemms.name
        self.target_seconds = seconds / 2

    def measure(self, proteins: list[Protein]) -> tuple[float, int]:
        repeats = max(1, round(sum(tokens_of(proteins)) / self._gemms.num_rows))
        seconds = sum(self._gemms.run() for _ in range(repeats))
        return seconds, repeats * self._gemms.num_rows

    def facts(self) -> dict[str, Any]:
        return {"kernel": self._gemms.kernel, "rows": self._gemms.num_rows}


def compare(
    stage: Stage, output: Output, clock: Clock, settings: Settings, rival_tokens: int
) -> Iterator[dict[str, Any]]:
    """Yield the passes of all contestants after each of them; fewer than asked for when time runs
    out."""
    contestants = _contestants(stage, output, settings.seconds)
    matmul = None
    if stage.place.has_gpu_steps:
        matmul = Matmul(stage.place, stage.dtype, settings.matmul_size)
    for contestant in contestants:
        if contestant.name not in stage.set_sizes:
            say(f"{stage.shape.name} {output}: sizing {contestant.name}")
            stage.set_sizes[contestant.name] = _set_size(stage, contestant, settings)
    sizes = {contestant.name: stage.set_sizes[contestant.name] for contestant in contestants}
    if rival_tokens:
        rivals = list(filter(is_rival, sizes))
        most = max([rival_tokens, *(sizes[name] for name in rivals)])
        sizes |= dict.fromkeys(rivals, most)
    sets = {name: stage.sample.take(size) for name, size in sizes.items()}
    gpu = {"gpu": stage.place.compute_device().name} if stage.place.device == "cuda" else {}
    passes: dict[str, list[tuple[float, int]]] = {name: [] for name in sizes}
    teraflops: list[float] = []
    longest = 0.0
    going_on = contestants
    for number in range(settings.num_passes):
        if number and clock.left() < longest:
            break
        say(f"{stage.shape.name} {output}: pass {number + 1} of {settings.num_passes}")
        started = time.monotonic()
        for contestant in going_on:
            passes[contestant.name].append(contestant.measure(sets[contestant.name]))
        if matmul:
            teraflops.append(matmul.run())
        slow = {
            name: measured[-1][0]
            for name, measured in passes.items()
            if measured[number:] and measured[-1][0] > SLOW_SECONDS and not is_rival(name)
        }
        going_on = [contestant for contestant in going_on if contestant.name not in slow]
        longest = max(longest, time.monotonic() - started - sum(slow.values()))
        yield {
            "shape": stage.shape.name,
            "output": output,
            "dtype": stage.dtype,
            **gpu,
            "passes": number + 1,
            "matmul_tflops": [float(f"{value:.3g}") for value in teraflops],
            "rows": [
                _row(stage, contestant, sets[contestant.name], passes[contestant.name])
                for contestant in contestants
            ],
        }


def _contestants(stage: Stage, output: Output, seconds: float) -> list[Contestant]:
    found: list[Contestant] = []
    for engine in stage.engines:
        found.append(EndToEnd(stage, engine, output, seconds))
        if stage.place.has_gpu_steps and isinstance(engine, Ours) and engine.dtype != "fp32":
            found.append(Alone(stage, engine.dtype, output, seconds))
    dtypes = [engine.dtype for engine in stage.engines if isinstance(engine, Ours)]
    return found + [Roof(stage, dtype, seconds) for dtype in dtypes if dtype != "fp16"]


def _set_size(stage: Stage, contestant: Contestant, settings: Settings) -> int:
    """Return how many tokens fill the contestant's time; warms it up on the way."""
    size = settings.first_tokens_of(stage.shape)
    for _ in range(MAX_TRIALS):
        seconds, tokens = contestant.measure(stage.sample.take(size))
        growth = contestant.target_seconds / seconds
        size = max(round(tokens * min(growth, MAX_GROWTH)), settings.least_tokens)
        if growth < MAX_GROWTH:
            break
    return size


def _row(
    stage: Stage,
    contestant: Contestant,
    proteins: list[Protein],
    measured: Sequence[tuple[float, int]],
) -> dict[str, Any]:
    rates = [tokens / seconds for seconds, tokens in measured]
    facts = contestant.facts()
    if PLAN_SECONDS in facts:  # of the trials as well, which came first
        facts[PLAN_SECONDS] = plans = facts[PLAN_SECONDS][-len(measured) :]
        facts[RATE_OF_EXTRACT] = round(
            statistics.median(
                tokens / (seconds - plan)
                for (seconds, tokens), plan in zip(measured, plans, strict=True)
            ),
            1,
        )
    lengths = describe(proteins)
    return {
        "name": contestant.name,
        "tokens": measured[0][1],
        "lengths": lengths,
        "seconds": [round(seconds, 4) for seconds, _ in measured],
        "tokens_per_second": round(statistics.median(rates), 1),
        "range": [round(min(rates), 1), round(max(rates), 1)],
        "gflops_per_token": round(stage.shape.flops(lengths["effective_length"]) / 1e9, 4),
        **facts,
    }
