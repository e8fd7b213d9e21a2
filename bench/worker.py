"""The process that computes: one shape at a time on stage, a step an order.

The benchmark tells it steps, one JSON line each, and may kill it: what it was told before is known.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from bench.agenda import GROUND_KINDS, KINDS, Step
from bench.clock import Clock
from bench.compare import Settings
from bench.place import Name, Place, set_matmul_precision
from bench.sample import Sample
from bench.shapes import SHAPES
from bench.stage import GateError, Ground, Stage
from featuremill.base import this_process

RESERVED_SECONDS = 5.0
"""Of a step's time, for its end: better fewer passes than none."""


class Setting(NamedTuple):
    """What holds for all steps."""

    place: Name
    fasta: str
    scratch: str
    engines: list[str]
    """Parts of the names of those to compare; none for all."""
    spoil: bool


class Order(NamedTuple):
    """What the worker is told: a step, how long it may take, and who was judged before."""

    step: Step
    settings: Settings
    seconds: float
    judged: list[str] | None

    @classmethod
    def read(cls, line: str) -> Order:
        """Return the order that a line of JSON gives."""
        step, settings, seconds, judged = json.loads(line)
        return cls(Step(*step), Settings(*settings), seconds, judged)


class Answer(NamedTuple):
    """What a step came to: one of the first three; or how far it has come."""

    found: dict[str, Any] | None = None
    error: str = ""
    gate_failed: str = ""
    stage: dict[str, Any] | None = None
    judged: list[str] | None = None
    is_last: bool = True


def main() -> None:
    """Carry out what standard input says, until it ends."""
    this_process.die_with_parent(os.getppid(), signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    set_matmul_precision()
    logging.getLogger("featuremill").setLevel(logging.ERROR)
    worker = Worker(Setting(**json.loads(sys.argv[1])))
    _serve(worker, sys.stdin, answers)


def _serve(worker: Worker, orders: TextIO, answers: TextIO) -> None:
    def tell(answer: Answer) -> None:
        answers.write(json.dumps(answer._asdict()) + "\n")

    for line in orders:
        tell(worker.carry_out(Order.read(line), tell))


class Worker:
    """Carries out steps; keeps the shape on stage for as long as they need it."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._place = Place(setting.place)
        self._sample = Sample(Path(setting.fasta))
        self._stage: Stage | None = None
        self._stage_name = ""

    def carry_out(self, order: Order, tell: Callable[[Answer], None]) -> Answer:
        """Return what a step found, or what went wrong; and what is known of its shape. Tell the
        same of all that is known before its end: it may be cut off there."""
        if not order.step.shape:
            return self._without_shape(order, tell)
        answer, judged = Answer(), order.judged
        stage: Stage | None = None
        try:
            stage = self._on_stage(order.step, judged)
            if judged is None:
                stage.pass_gate()
                judged = [engine.name for engine in stage.engines]
            known = Answer(stage=stage.facts(), judged=judged, is_last=False)
            tell(known)
            stage.so_far = lambda found: tell(known._replace(found=found))
            clock = Clock((order.seconds - RESERVED_SECONDS) / 60)
            found = KINDS[order.step.kind](stage, order.step, order.settings, clock)
            answer = Answer(found if isinstance(found, dict) else {"rows": found})
        except GateError as error:
            answer = Answer(gate_failed=str(error))
        except Exception as error:
            traceback.print_exc()
            text = " ".join(str(error).split())[:300]
            answer = Answer(error=f"{type(error).__name__}: {text}")
        return answer._replace(stage=stage.facts() if stage else None, judged=judged)

    def _without_shape(self, order: Order, tell: Callable[[Answer], None]) -> Answer:
        if self._stage:
            self._stage.close()
            self._stage = None
        gc.collect()
        self._place.free_memory()
        clock = Clock((order.seconds - RESERVED_SECONDS) / 60)
        with tempfile.TemporaryDirectory(dir=self._setting.scratch) as folder:
            ground = Ground(self._place, Path(folder), Path(self._setting.fasta))
            ground.so_far = lambda found: tell(Answer(found, is_last=False))
            try:
                found = GROUND_KINDS[order.step.kind](ground, order.settings, clock)
                return Answer(found if isinstance(found, dict) else {"rows": found})
            except Exception as error:
                traceback.print_exc()
                text = " ".join(str(error).split())[:300]
                return Answer(error=f"{type(error).__name__}: {text}")

    def _on_stage(self, step: Step, judged: list[str] | None) -> Stage:
        if self._stage is None or self._stage_name != step.stage:
            if self._stage:
                self._stage.close()
            folder = Path(self._setting.scratch)
            self._stage = Stage(
                SHAPES[step.shape], self._place, folder, self._sample, self._setting.spoil
            )
            self._stage_name = step.stage
            if not step.has_peers:
                self._stage.choose(["featuremill"])
            if self._setting.engines:
                self._stage.choose(self._setting.engines)
            if judged is not None:
                self._stage.keep(judged)
        return self._stage


if __name__ == "__main__":
    main()
