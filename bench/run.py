"""`python -m bench.run`: measure, write the JSON as it comes, print the tables at the end."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench import table
from bench.clock import Clock
from bench.compare import Settings
from bench.lengths import describe
from bench.record import Record
from bench.sample import SAMPLE, Sample
from bench.shapes import SHAPES
from bench.stage import GateError, Stage, say
from bench.steps import (
    CPU,
    CPU_STEPS,
    GPU,
    GPU_STEPS,
    PARTS,
    QUICK,
    QUICK_PARTS,
    QUICK_STEPS,
    Step,
)

MEASURED = "measured"
SCRATCH = Path(__file__).parent / ".scratch"
"""Beside the code and not in /tmp, which may be memory: engines are to write to a disk."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 when an engine of ours is wrong, 3 when a step failed."""
    given = _parser().parse_args(arguments)
    if given.gpu and not torch.cuda.is_available():
        print("bench: torch sees no GPU here; leave out --gpu.", file=sys.stderr)
        return 2
    if not _steps(given)[1]:
        print(
            f"bench: no step has these shapes and parts; parts are {', '.join(PARTS)}, shapes "
            f"{', '.join(SHAPES)}.",
            file=sys.stderr,
        )
        return 2
    logging.getLogger("featuremill").setLevel(logging.ERROR)
    record = Record(given.out, "gpu" if given.gpu else "cpu", given.quick)
    sample = Sample(given.fasta)
    record.content |= {
        "data": {"file": given.fasta.name, **describe(sample.original)},
        "stages": {},
        MEASURED: {},
        "left_out": [],
    }
    record.save()
    run = Run(given, record, sample)
    given.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        try:
            run.all(Path(scratch))
        except GateError as error:
            record.content["gate_failed"] = str(error)
            record.save()
            print(table.gates(record.content))
            print(f"bench: the gate failed, so no speed is shown. {error}", file=sys.stderr)
            return 1
    record.content["complete"] = True
    record.save()
    print(table.whole(record.content))
    print(f"\n{record.path}")
    if given.quick:
        print("--quick shows that everything runs; its speeds mean nothing.")
    return 3 if any("error" in found for found in record.content[MEASURED].values()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.run", description=__doc__)
    add = parser.add_argument
    add("--gpu", action="store_true", help="measure GPU 0 and not the CPU")
    add("--quick", action="store_true", help="a tiny network, one pass: does everything run?")
    add(
        "--minutes",
        type=float,
        default=15.0,
        help="leave out the last steps rather than overrun (15)",
    )
    add("--out", type=Path, help="the JSON to write (bench/results/<date>-<machine>-<kind>.json)")
    add("--fasta", type=Path, default=SAMPLE, help="proteins to use in place of the sample")
    add("--shapes", type=_words, help="only these shapes, as in 8M,35M")
    add("--parts", type=_words, help=f"only these parts, of {','.join(PARTS)}")
    add("--passes", type=int, help="passes of each comparison (3)")
    add("--seconds", type=float, help="how long one pass of a peer should take")
    add("--scratch", type=Path, default=SCRATCH, help="folder for weights and what engines write")
    add("--spoil", action="store_true", help="make our weights wrong, to see the gate fail")
    return parser


def _words(text: str) -> list[str]:
    return text.split(",")


def _steps(given: argparse.Namespace) -> tuple[Settings, list[Step]]:
    settings = GPU if given.gpu else CPU
    steps: Sequence[Step] = GPU_STEPS if given.gpu else CPU_STEPS
    parts = given.parts
    if given.quick:
        settings, steps, parts = QUICK, QUICK_STEPS, parts or QUICK_PARTS
    if given.passes:
        settings = settings._replace(num_passes=given.passes)
    if given.seconds:
        settings = settings._replace(seconds=given.seconds)
    chosen = [
        step
        for step in steps
        if (not parts or step.part in parts) and (not given.shapes or step.shape in given.shapes)
    ]
    return settings, chosen


class Run:
    """One run: its steps in their order, each shape on stage for as long as steps need it."""

    def __init__(self, given: argparse.Namespace, record: Record, sample: Sample) -> None:
        self._record = record
        self._settings, self._steps = _steps(given)
        self._clock = Clock(given.minutes)
        self._sample = sample
        self._device = "cuda" if given.gpu else "cpu"
        self._spoil = given.spoil
        self._judged: dict[str, set[str]] = {}
        """The engines that passed the gate, by shape."""
        self._stage: Stage | None = None

    def all(self, folder: Path) -> None:
        """Carry out the steps for which there is time; one that fails is noted, the rest go on."""
        content = self._record.content
        for step in self._steps:
            if self._clock.left() < step.needs_seconds:
                content["left_out"].append(step.name)
                say(f"left out for lack of time: {step.name}")
                continue
            started = time.monotonic()
            try:
                found = self._carry_out(step, folder)
            except GateError:
                raise
            except Exception as error:
                traceback.print_exc()
                found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
            found["took_seconds"] = round(time.monotonic() - started, 1)
            content[MEASURED][step.name] = found
            self._record.save()

    def _carry_out(self, step: Step, folder: Path) -> dict[str, Any]:
        stage = self._on_stage(step.shape, folder)
        try:
            if step.shape not in self._judged:
                stage.pass_gate()
                self._judged[step.shape] = {engine.name for engine in stage.engines}
            found = PARTS[step.part](stage, step, self._settings, self._clock)
        finally:
            known = self._record.content["stages"].setdefault(step.shape, {})
            known |= {name: fact for name, fact in stage.facts().items() if fact or not known}
        return found if isinstance(found, dict) else {"rows": found}

    def _on_stage(self, shape: str, folder: Path) -> Stage:
        if self._stage is None or self._stage.shape.name != shape:
            if self._stage:
                self._stage.close()
            self._stage = Stage(SHAPES[shape], self._device, folder, self._sample, self._spoil)
            if shape in self._judged:
                self._stage.keep(self._judged[shape])
        return self._stage


if __name__ == "__main__":
    sys.exit(main())
