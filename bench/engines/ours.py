"""featuremill: the plan and the worker of a real run, with the model's loading taken out.

What is timed is what a run does between the start of `featuremill plan` and a finished journal:
reading, hashing and sharding the input, batches with the worker's overlap, commits, syncs.
"""

from __future__ import annotations

import faulthandler
import hashlib
import io
import json
import os
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import torch

from bench.engines import BYTES, Dtype, Engine, Features, Missing, Output, as_float32
from bench.lengths import Protein
from bench.place import Place
from bench.subject import Subject
from featuremill.config import validate
from featuremill.extract import Job
from featuremill.extract.worker import Worker
from featuremill.plan.command import plan
from featuremill.store.plan import Plan
from featuremill.store.results import Results
from featuremill.workload import Weights, weights
from featuremill.workloads import esm2
from featuremill.workloads.esm2 import matmul

ONE_SHARD = 10**12
STALL_SECONDS = 3600.0


def batch_budget(place: Place) -> int:
    """Return the tokens that our batches hold there; sorted peers get as many."""
    return esm2.batch_cost(esm2.Options(), place.compute_device())


def options_for(dtype: Dtype, output: Output, **more: Any) -> dict[str, Any]:
    """Return the options of a config that asks for `output`."""
    if output == "mean":
        return {"dtype": dtype, **more}
    wide = {"output_dtype": "float32"} if output == "exact" else {}
    return {"dtype": dtype, "pool": "none", "per_residue": True, **wide, **more}


class Ours:
    """featuremill's engine in this process."""

    def __init__(self, subject: Subject, dtype: Dtype) -> None:
        self.dtype = dtype
        self.name = f"featuremill {dtype}"
        self.bytes_a_weight = BYTES[dtype]
        self.device = subject.place.compute_device()
        self.seconds: dict[str, float] = {}
        """Where the last extraction spent its time, as the worker says it."""
        self._subject = subject
        self._loaded: tuple[dict[str, Any], Any] = ({}, None)

    def load(self) -> None:
        self.model_for("exact")

    def unload(self) -> None:
        self._loaded = ({}, None)

    def model_for(self, output: Output, **more: Any) -> Any:
        """Return a model that delivers `output`, loaded as a worker does; keeps the last one."""
        options = options_for(self.dtype, output, **more)
        if self._loaded[0] != options:
            self._loaded = ({}, None)  # gives its memory back first
            found = self._weights()
            resolved = esm2.resolve(esm2.Options.model_validate(options), self.device, found)
            self._loaded = (options, esm2.load(resolved, [self.device], found))
        return self._loaded[1]

    def with_products(self, form: type[matmul.Product]) -> Any:
        """Return another model that delivers means, with this form of the matrix products.

        Raises:
            WorkloadError: where that form is not right here.
        """
        options = esm2.Options.model_validate(options_for(self.dtype, "mean"))
        found = self._weights()
        with patch.object(matmul, "forms", lambda *_: [form]):
            return esm2.load(esm2.resolve(options, self.device, found), [self.device], found)

    def estimated_mb(self, model: Any, batch_tokens: int) -> int:
        """Return what the product estimates for a job with batches of so many tokens."""
        return esm2.memory_mb(model.options, self.device, self._weights(), batch_tokens)

    def backend(self) -> str:
        """Return which attention kernel runs."""
        return str(getattr(self._loaded[1], "backend", ""))

    def writes(self, output: Output) -> str:
        return f"one Arrow stream, {'vectors in fp32' if output == 'mean' else 'residues in fp16'}"

    def extract(self, fasta: Path, folder: Path, output: Output) -> None:
        model = self.model_for(output)
        started = time.perf_counter()
        planned = self._plan(fasta, folder, output)
        self.seconds = {"plan": round(time.perf_counter() - started, 3)}
        # The weights are loaded already; a worker that loads them again would get the same ones.
        with patch.object(esm2, "load", lambda *_: model):
            for entry in planned.shards:
                self._work(folder, planned, entry.shard)

    def read(self, folder: Path, output: Output, proteins: list[Protein]) -> Features:
        (path,) = (folder / "store" / "journals").rglob("*.arrows")
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_stream(source).read_all()
        assert set(table["status"].to_pylist()) == {"ok"}, table["reason"].to_pylist()
        row_of = {digest: row for row, digest in enumerate(table["sha256"].to_pylist())}
        kind = "mean" if output == "mean" else "residues"
        (values,) = (table[name] for name in table.column_names if name.startswith(kind))
        return {name: array_of(values[row_of[_digest(text)]]) for name, text in proteins}

    def _weights(self) -> Weights:
        return weights.read(self._subject.weights)

    def _plan(self, fasta: Path, folder: Path, output: Output) -> Plan:
        config = {
            "run": "bench",
            "inputs": [str(fasta)],
            "workload": "esm2",
            "options": options_for(self.dtype, output),
            "shards": {"cost": ONE_SHARD},
            "device": self.device.kind,
            "outputs": "parquet",
        }
        path = self._subject.weights
        return plan(Results(folder), validate(config), self._weights(), path).plan

    def _work(self, folder: Path, planned: Plan, shard: str) -> None:
        job = Job(
            run_folder=str(folder),
            recipe=planned.recipe,
            shard=shard,
            settings=planned.settings,
            execution=planned.execution,
            cost_unit=planned.cost_unit,
            weights=planned.weights,
            threads=torch.get_num_threads(),
            stall_seconds=STALL_SECONDS,
            supervisor_pid=os.getpid(),
            devices=[self.device],
        )
        events = io.StringIO()
        try:
            Worker(job, events).run()
        finally:
            faulthandler.cancel_dump_traceback_later()
        done = json.loads(events.getvalue().splitlines()[-1])
        assert done["event"] == "done" and not done["failed"], done
        self.seconds |= done["seconds"]


def _digest(sequence: str) -> bytes:
    return hashlib.sha256(sequence.encode()).digest()


def array_of(value: Any) -> Any:
    """Return a value of ours, a vector or a protein's residues, in fp32."""
    if pa.types.is_fixed_size_list(value.type):
        return as_float32(np.array(value.as_py()))
    width = value.type.value_type.list_size
    numbers = value.values.flatten().to_numpy(zero_copy_only=False)
    return as_float32(numbers).reshape(-1, width)


def engines(subject: Subject) -> tuple[list[Engine], list[Missing]]:
    """Return featuremill in every precision that is worth its while on the device."""
    has_bf16, where = subject.place.compute_device().has_bf16, subject.place.device
    dtypes: list[Dtype] = ["fp32", "bf16"] if has_bf16 else ["fp32"]
    if subject.place.has_gpu_steps:
        dtypes.append("fp16")
    missing = []
    if not has_bf16:
        name = "CPU has no bf16 instructions" if where == "cpu" else "GPU has no bf16"
        missing = [Missing("featuremill bf16", f"this {name}")]
    return [Ours(subject, dtype) for dtype in dtypes], missing
