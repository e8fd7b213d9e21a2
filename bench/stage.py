"""One shape on stage: its weights, the engines that passed the gate, and what they said."""

from __future__ import annotations

import gc
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench import gate
from bench.bars import is_rival
from bench.engines import Engine, Features, Missing, Output, line_up
from bench.engines.ours import Ours
from bench.lengths import Protein, tokens_of
from bench.place import Place
from bench.sample import Sample, write_fasta
from bench.shapes import Shape
from bench.subject import Subject

ROOM = 0.3
"""Share of a GPU's memory that loading leaves to activations, and to the products alone."""


class GateError(Exception):
    """An engine of ours is wrong; no speed may be shown."""


class Ground:
    """Where a step without a shape computes: a device, proteins, and a folder of its own."""

    def __init__(self, place: Place, folder: Path, fasta: Path) -> None:
        self.place = place
        self.folder = folder
        self.fasta = fasta
        self.so_far: Callable[[dict[str, Any]], None] = lambda _: None


def say(text: str) -> None:
    """Tell on standard error what is being done; never a speed."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


class Stage:
    """The engines of one shape, with the proteins that they compute.

    An engine is loaded when it is needed and stays while the device's memory holds it: who was
    used longest ago goes first.
    """

    def __init__(
        self, shape: Shape, place: Place, folder: Path, sample: Sample, spoil: bool = False
    ) -> None:
        self.shape = shape
        self.place = place
        self.sample = sample
        self.folder = folder / shape.name
        self.subject = Subject(shape, place, folder / "weights", spoil)
        self.engines, self.missing = line_up(self.subject)
        self.load_seconds: dict[str, float] = {}
        self.verdicts: list[gate.Verdict] = []
        self.precision = ""
        """What torch was told of fp32 products when the reference was computed."""
        self.set_sizes: dict[str, int] = {}
        """Tokens that fill one pass of a contestant, by its name."""
        self.so_far: Callable[[dict[str, Any]], None] = lambda _: None
        """Takes what a step has found so far: what is told is kept, whatever comes after."""
        self._loaded: list[Engine] = []
        """The one used last at the end."""

    @property
    def dtype(self) -> str:
        """The number type of ours that the targets and the probes are about."""
        dtypes = [engine.dtype for engine in self.engines if isinstance(engine, Ours)]
        return next(dtype for dtype in ("bf16", "fp16", "fp32") if dtype in dtypes)

    def ours(self, dtype: str) -> Ours:
        """Return our engine for `dtype`, loaded."""
        (found,) = (e for e in self.engines if isinstance(e, Ours) and e.dtype == dtype)
        self.load(found)
        return found

    def load(self, engine: Engine) -> None:
        """Have an engine loaded, and note how long the first time took."""
        if engine in self._loaded:
            self._loaded.remove(engine)
            self._loaded.append(engine)
            return
        if isinstance(engine, Ours):
            assert self.subject.weights  # converting is not loading
        else:
            assert self.subject.model is not None  # nor is drawing the weights
        self._make_room(engine.bytes_a_weight * self.shape.num_weights())
        started = time.perf_counter()
        engine.load()
        self.place.synchronize()
        self.load_seconds.setdefault(engine.name, round(time.perf_counter() - started, 3))
        self._loaded.append(engine)

    def _make_room(self, num_bytes: int) -> None:
        while self._loaded:
            free, total = self.place.free_memory()
            if free - num_bytes >= ROOM * total:
                return
            oldest = self._loaded.pop(0)
            say(f"{self.shape.name}: {oldest.name} makes room")
            oldest.unload()
            gc.collect()

    def pass_gate(self) -> None:
        """Judge every engine; drop peers that are wrong or cannot run.

        Raises:
            GateError: when one of ours is wrong.
        """
        say(f"{self.shape.name}: loading and judging")
        proteins = self.sample.spread()
        self.precision = torch.get_float32_matmul_precision()
        reference: tuple[Features, Features] | None = None
        for engine in list(self.engines):
            try:
                self.load(engine)
                found = (
                    self._features(engine, "exact", proteins),
                    self._features(engine, "mean", proteins),
                )
            except Exception as error:
                if isinstance(engine, Ours) or reference is None:
                    raise
                self._drop(engine, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
                continue
            reference = reference or found
            verdict = gate.judge(engine.name, engine.dtype, *found, reference)
            self.verdicts.append(verdict)
            has_to_be_right = engine.dtype == "fp32" or is_rival(engine.name)
            if verdict.failures() and has_to_be_right and not isinstance(engine, Ours):
                self._drop(engine, "; ".join(verdict.failures()))
        ours = {engine.name for engine in self.engines if isinstance(engine, Ours)}
        wrong = [v for v in self.verdicts if v.engine in ours and v.failures()]
        if wrong:
            raise GateError(
                "; ".join(f"{self.shape.name} {v.engine}: {', '.join(v.failures())}" for v in wrong)
            )

    def choose(self, names: list[str]) -> None:
        """Leave out all engines but those with one of `names` in theirs, and the reference."""
        self.engines = [
            engine
            for number, engine in enumerate(self.engines)
            if number == 0 or any(name in engine.name for name in names)
        ]

    def keep(self, names: list[str]) -> None:
        """Leave out all engines but these, which were judged when the shape was here before."""
        self.engines = [engine for engine in self.engines if engine.name in names]

    def _drop(self, engine: Engine, reason: str) -> None:
        self.engines.remove(engine)
        if engine in self._loaded:
            self._loaded.remove(engine)
        engine.unload()
        self.missing.append(Missing(engine.name, reason))
        say(f"{self.shape.name}: {engine.name} left out: {reason}")

    def _features(self, engine: Engine, output: Output, proteins: list[Protein]) -> Features:
        fasta = write_fasta(self.folder / "gate.fasta", proteins)
        folder = self.fresh_folder()
        engine.extract(fasta, folder, output)
        return engine.read(folder, output, proteins)

    def fresh_folder(self) -> Path:
        """Return an empty folder for one extraction."""
        folder = self.folder / "output"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def extraction_seconds(self, engine: Engine, output: Output, proteins: list[Protein]) -> float:
        """Return how long `engine` takes from a FASTA file to closed files."""
        fasta = write_fasta(self.folder / "input.fasta", proteins)
        folder = self.fresh_folder()
        self.place.synchronize()
        started = time.perf_counter()
        engine.extract(fasta, folder, output)
        self.place.synchronize()
        return time.perf_counter() - started

    def close(self) -> None:
        """Give the memory back."""
        for engine in self.engines:
            engine.unload()
        self.engines, self._loaded = [], []
        del self.subject
        gc.collect()
        self.place.free_memory()

    def facts(self) -> dict[str, Any]:
        """Return what the record says of this stage."""
        return {
            "layers": self.shape.num_layers,
            "width": self.shape.width,
            "heads": self.shape.num_heads,
            "float32_matmul_precision": self.precision,
            "gate_tokens": sum(tokens_of(self.sample.spread())),
            "gate": [v._asdict() | {"failures": v.failures()} for v in self.verdicts],
            "missing": [missing._asdict() for missing in self.missing],
            "load_seconds": self.load_seconds,
            "backend": {
                e.name: e.backend()
                for e in self.engines
                if isinstance(e, Ours) and e.name in self.load_seconds
            },
        }
