"""One run: the steps in their order, each in a process that may hang or die.

This process uses no GPU itself, keeps the record, and shows each table as soon as it is known.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from bench import gpu_tests, table
from bench.agenda import (
    CPU,
    CPU_STEPS,
    GPU,
    GPU_PARTS,
    GROUND_KINDS,
    KINDS,
    QUICK,
    QUICK_KINDS,
    QUICK_STEPS,
    REHEARSAL,
    Step,
    rehearsed,
)
from bench.clock import Clock
from bench.compare import Settings
from bench.lengths import describe
from bench.place import Place, keep_to_one_gpu
from bench.processes import Child, ChildError
from bench.record import Record
from bench.run import MINUTES
from bench.sample import Sample
from bench.shapes import SHAPES
from bench.stage import say
from bench.table import FORKING, TESTS
from bench.worker import Answer, Order, Setting
from featuremill.base.devices import cuda_devices

MEASURED = "measured"
ALONE = (TESTS, FORKING, "hard_run", "training")
"""Steps that start whole programs: the process that computes leaves them the GPU."""
START_SECONDS = 60.0
"""What a process may take to start and to import torch."""
Parts = list[tuple[str, list[Step]]]
"""Names ("" where there is only one) and steps."""


def conduct(given: argparse.Namespace) -> int:
    """Run what the arguments say; return the exit status."""
    settings, parts = _plan(given)
    if not any(steps for _, steps in parts):
        return _refused(
            f"no step has these parts, shapes and kinds; parts are {', '.join(GPU_PARTS)}, shapes "
            f"{', '.join(SHAPES)}, kinds {', '.join([*KINDS, *GROUND_KINDS, TESTS, FORKING])}"
        )
    place = Place(given.place)
    if place.has_gpu_steps:
        keep_to_one_gpu()
    if place.name == "gpu" and (why := _why_no_gpu()):
        return _refused(why)
    gpu = place.compute_device() if place.name == "gpu" else None
    record = Record(given.out, place.name, place.name != "rehearsal" and not given.quick, gpu)
    record.content |= {
        "data": {"file": given.fasta.name, **describe(Sample(given.fasta).original)},
        "stages": {},
        MEASURED: {},
        "left_out": [],
    }
    if place.name == "rehearsal":
        record.content["rehearsal"] = "the steps for a GPU with tiny networks on this CPU"
    record.save()
    print(table.head(record.content), flush=True)
    given.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        run = Run(given, settings, record, Path(scratch))
        try:
            for name, steps in parts:
                minutes = MINUTES[place.name] if given.minutes is None else given.minutes
                run.part(name, steps, Clock(minutes))
        finally:
            run.close()
    return _end(record, given)


def _end(record: Record, given: argparse.Namespace) -> int:
    content = record.content
    if failure := content.get("gate_failed"):
        print(f"bench: the gate failed, so no speed is shown. {failure}", file=sys.stderr)
        return 1
    content["complete"] = True
    record.save()
    if content["left_out"]:
        print(f"\n{table.left_out(content)}")
    print(f"\n{record.path}")
    if given.quick or given.place == "rehearsal":
        word = "--quick" if given.quick else "--rehearse"
        print(f"{word} shows that everything runs; its speeds mean nothing.")
    return 3 if any("error" in found for found in content[MEASURED].values()) else 0


def _refused(why: str) -> int:
    print(f"bench: {why}.", file=sys.stderr)
    return 2


def _why_no_gpu() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build for CPUs; take one for CUDA"
    if not torch.cuda.is_available():
        return "torch sees no GPU here (python -m featuremill doctor tells why); leave out --gpu"
    if not cuda_devices():
        return "torch sees a GPU and NVML none, by which jobs find theirs (libnvidia-ml.so.1)"
    return ""


def _plan(given: argparse.Namespace) -> tuple[Settings, Parts]:
    """Return how much is computed, and in which steps."""
    settings, kinds = {"cpu": CPU, "gpu": GPU, "rehearsal": REHEARSAL}[given.place], given.steps
    parts: dict[str, Sequence[Step]] = {"": CPU_STEPS}
    if given.quick:
        settings, parts, kinds = QUICK, {"": QUICK_STEPS}, kinds or QUICK_KINDS
    elif given.place != "cpu":
        parts = {name: GPU_PARTS.get(name, ()) for name in given.part}
    if given.place == "rehearsal":
        parts = {name: [rehearsed(step) for step in steps] for name, steps in parts.items()}
    if given.passes:
        settings = settings._replace(num_passes=given.passes)
    if given.seconds:
        settings = settings._replace(seconds=given.seconds)
    return settings, [
        (
            name,
            [
                step
                for step in steps
                if (not kinds or step.kind in kinds)
                and (not given.shapes or step.shape in given.shapes)
            ],
        )
        for name, steps in parts.items()
    ]


class Run:
    """Carries out steps and notes what came of them."""

    def __init__(
        self, given: argparse.Namespace, settings: Settings, record: Record, scratch: Path
    ) -> None:
        self._place = Place(given.place)
        self._settings = settings
        self._record = record
        self._scratch = scratch
        self._setting = Setting(
            given.place, str(given.fasta), str(scratch), given.engines, given.spoil
        )
        self._judged: dict[str, list[str]] = {}
        """The engines that passed the gate, by stage."""
        self._worker: Child | None = None

    def part(self, name: str, steps: Sequence[Step], clock: Clock) -> None:
        """Carry out the steps for which there is time; one that fails is noted, the rest go on."""
        content = self._record.content
        for step in steps:
            if "gate_failed" in content:
                return
            if clock.left() < step.needs_seconds:
                content["left_out"].append(step.name)
                say(f"left out for lack of time: {step.name}")
                continue
            part = {"part": name} if name else {}
            started = time.monotonic()
            for answer in self._carry_out(step, clock):
                if answer.stage:
                    self._learn(step, answer)
                took = {"took_seconds": round(time.monotonic() - started, 1)}
                if answer.gate_failed:
                    content["gate_failed"] = answer.gate_failed
                elif answer.found or answer.error:
                    found = answer.found
                    if not found:  # beside what was found before it
                        kept = content[MEASURED].get(step.name, {})
                        found = {**kept, "error": answer.error}
                    content[MEASURED][step.name] = {**found, **part, **took}
                self._record.save()
            if step.name in content[MEASURED]:
                shown = table.measured(step.name, content[MEASURED][step.name])
                print(f"\n{shown}", flush=True)

    def _carry_out(self, step: Step, clock: Clock) -> Iterator[Answer]:
        """Yield what a step tells while it is carried out, and last what it came to."""
        # What is for a GPU ends in time, as whoever lends one may end it; a CPU is one's own.
        seconds = clock.left()
        at_most = step.at_most_seconds
        if self._place.has_gpu_steps:
            seconds = at_most = min(seconds, at_most)
        if step.kind in ALONE:
            self.close()
        if step.kind in (TESTS, FORKING):
            is_alone = step.kind == FORKING
            say("the test that hung, alone" if is_alone else "the tests that need a GPU")
            for found in gpu_tests.run(self._place.name, self._scratch, at_most, is_alone):
                yield Answer(found)
            return
        try:
            yield from self._ask(step, seconds, at_most)
        except ChildError as error:
            self.close()
            yield Answer(error=str(error))

    def _ask(self, step: Step, seconds: float, at_most: float) -> Iterator[Answer]:
        if not self._worker:
            command = [sys.executable, "-m", "bench.worker", json.dumps(self._setting._asdict())]
            self._worker = Child(command)
        order = Order(step, self._settings, seconds, self._judged.get(step.stage))
        self._worker.tell(json.dumps(order))
        end = time.monotonic() + at_most
        is_last = False
        while not is_last:
            answer = Answer(**json.loads(self._worker.answer(end - time.monotonic())))
            is_last = answer.is_last
            yield answer

    def _learn(self, step: Step, answer: Answer) -> None:
        """Note what is known of a shape; a judgement is shown when it is made."""
        assert answer.stage
        stages = self._record.content["stages"]
        is_new = bool(answer.stage["gate"])
        known = stages.setdefault(step.shape, {})
        known |= {name: fact for name, fact in answer.stage.items() if fact or name not in known}
        if answer.judged is not None and step.stage not in self._judged:
            self._judged[step.stage] = answer.judged
        elif not answer.gate_failed:
            return
        if is_new:
            print(f"\n{table.gates({step.shape: known})}", flush=True)

    def close(self) -> None:
        """End the process that computes, if there is one."""
        if self._worker:
            self._worker.close()
            self._worker = None
