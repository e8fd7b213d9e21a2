"""Where a batch's time goes on a CPU, operation by operation, beside the products alone.

    python -m bench.steps                          # 8M, 35M and 150M, fp32 and bf16
    python -m bench.steps --shapes 8M --dtypes bf16 --tokens 4000

Weights are random, the proteins are the sample's first ones, in a worker's batches, mean over
residues. Seconds are those of the processor on one thread, so that others who use the machine
hardly change them. Each pass computes the batches as they are (`whole`), once more with each
operation timed, and the products alone; told is the least of the passes, of each line by itself. So
lines add up to the whole only about. A step that no operation of its own computes has no line: it
is part of another one. What no operation takes is Python's: calls, views, copies of rows, and
memory that is asked for.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from bench.ceiling import Gemms
from bench.engines import Dtype
from bench.engines.ours import Ours, batch_budget
from bench.place import Place
from bench.sample import Sample
from bench.shapes import SHAPES
from bench.subject import Subject
from featuremill.workload.batches import make_batches
from featuremill.workloads import esm2
from featuremill.workloads.esm2 import pooling
from featuremill.workloads.esm2.encoder import PRODUCTS
from featuremill.workloads.esm2.stages import Stage

PASSES = 3
TOKENS = {"8M": 20_000, "35M": 14_000, "150M": 7_000}
"""Of each shape at least, unless `--tokens` says otherwise."""
KERNELS = {"rotate_": "rotary", "add_norm": "norms and residual", "norm": "norms and residual"}
"""The steps that the encoder's kernels are."""
STEPS = (
    "products",
    "GELU",
    "attention",
    "norms and residual",
    "rotary",
    "gather and pool",
    "tokens and results",
    "Python",
)
"""As they are told; GELU is what its product takes longer than without it."""
REPEATED = "repeated"
"""What is computed to know that, and nobody needs."""
REPEATS = 3


class Clock:
    """Adds up the seconds of operations by the steps that they belong to."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def timed(self, step: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        """Return `operation`, its seconds counted."""

        def run(*given: Any, **more: Any) -> Any:
            found, seconds = spent(operation, *given, **more)
            self.seconds[step] += seconds
            return found

        return run


def spent(operation: Callable[..., Any], *given: Any, **more: Any) -> tuple[Any, float]:
    """Return what `operation` returns, and its seconds."""
    started = time.process_time()
    found = operation(*given, **more)
    return found, time.process_time() - started


class Timed:
    """A product whose seconds are counted."""

    def __init__(self, product: Any, clock: Clock) -> None:
        self._product, self._clock = product, clock
        self._run = clock.timed("products", product)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._product, name)
        return self._clock.timed("products", found) if callable(found) else found

    def __call__(self, *given: Any) -> Any:
        return self._run(*given)

    def gelu(self, *given: Any) -> Any:
        """Repeat it without GELU and with it: what that takes longer is GELU."""
        product, seconds = self._product, self._clock.seconds
        found, first = spent(product.gelu, *given)
        both, repeated = spent(self._without_and_with, *given)
        gelu = both[1] - both[0]
        seconds["GELU"] += gelu
        seconds["products"] += first - gelu
        seconds[REPEATED] += repeated
        return found

    def _without_and_with(self, *given: Any) -> list[float]:
        ways = self._product, self._product.gelu
        return [min(spent(way, *given)[1] for _ in range(REPEATS)) for way in ways]


@contextmanager
def counted(model: Any, clock: Clock) -> Iterator[None]:
    """Have `clock` count what `model` computes in the block."""
    functions = (
        (pooling, "tensors_of_layer", "gather and pool"),
        (torch.nn.functional, "embedding", "gather and pool"),
        (esm2, "prepare", "tokens and results"),
        (esm2, "collect", "tokens and results"),
    )
    stages = [timed_stage(stage, clock) for stage in model.encoder.stages]
    with ExitStack() as patches:
        patches.enter_context(patch.object(model.encoder, "stages", stages))
        for owner, name, step in functions:
            timed = clock.timed(step, getattr(owner, name))
            patches.enter_context(patch.object(owner, name, timed))
        yield


def timed_stage(stage: Stage, clock: Clock) -> Stage:
    """Return the stage with `clock` around each of its operations."""
    operations = stage.kernels._asdict()
    kernels: dict[str, Any] = {
        name: clock.timed(step, operations[name])
        for name, step in KERNELS.items()
        if name in operations
    }
    layers = []
    for layer in stage.layers:
        products: dict[str, Any] = {name: Timed(getattr(layer, name), clock) for name in PRODUCTS}
        layers.append(layer._replace(**products))
    backend = stage.backend._replace(attend=clock.timed("attention", stage.backend.attend))
    if backend.rotate_and_attend:
        both = clock.timed("attention", backend.rotate_and_attend)
        backend = backend._replace(rotate_and_attend=both)
    return stage._replace(
        layers=layers,
        backend=backend,
        kernels=stage.kernels._replace(**kernels),
    )


def compute(model: Any, batches: list[list[bytes]], budget: int) -> None:
    """Compute batches as a worker does, without writing them."""
    for payloads in batches:
        esm2.collect(model, esm2.run(model, esm2.prepare(model, payloads, budget)))


def measure(subject: Subject, dtype: Dtype, num_tokens: int) -> tuple[dict[str, float], str]:
    """Return microseconds a token of each step, of the whole and of the products alone; and what
    computes."""
    budget = batch_budget(subject.place)
    model = Ours(subject, dtype).model_for("mean")
    payloads = [sequence.encode() for _, sequence in Sample().take(num_tokens)]
    costs = [esm2.cost(payload, model.options) for payload in payloads]
    batches = [[payloads[row] for row in rows] for rows in make_batches(costs, budget)]
    roof = Gemms(subject.shape, subject.place, dtype, budget)
    compute(model, batches, budget)
    found: dict[str, list[float]] = {}
    for _ in range(PASSES):
        clock = Clock()
        clock.timed("whole", compute)(model, batches, budget)
        with counted(model, clock):
            clock.timed("Python", compute)(model, batches, budget)
        known = sum(clock.seconds[step] for step in (REPEATED, *STEPS[:-1]))
        clock.seconds["Python"] -= known
        clock.timed("products alone", roof.run)()
        for step, seconds in clock.seconds.items():
            tokens = budget if step == "products alone" else sum(costs)
            found.setdefault(step, []).append(1e6 * seconds / tokens)
    return {step: min(each) for step, each in found.items()}, model.backend


def table(found: dict[str, float]) -> str:
    """Return a line a step: microseconds a token, and the share of the whole."""
    whole = found["whole"]
    rows = {step: found[step] for step in (*STEPS, "whole", "products alone") if found.get(step)}
    return "\n".join(f"{step:20} {us:9.2f} {us / whole:7.1%}" for step, us in rows.items())


def main() -> None:
    """Measure, and print a table for each shape and dtype."""
    parser = argparse.ArgumentParser(prog="bench.steps", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--shapes", nargs="+", choices=SHAPES, default=list(TOKENS))
    add("--dtypes", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    add("--tokens", type=int, help="at least (8M: 20,000, 35M: 14,000, 150M: 7,000)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for shape in given.shapes:
            subject = Subject(SHAPES[shape], Place("cpu"), Path(folder, shape))
            for dtype in given.dtypes:
                tokens = given.tokens or TOKENS.get(shape, 7_000)
                found, backend = measure(subject, dtype, tokens)
                print(f"\n{shape} {dtype}, µs a token on one thread ({backend})")
                print(table(found), flush=True)


if __name__ == "__main__":
    main()
