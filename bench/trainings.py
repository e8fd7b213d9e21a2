"""An autoencoder trained by one process and by ranks that add their gradients (NCCL on GPUs, gloo
on a CPU), and the sums of one rank alone, by each library that is here.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file

from bench import hard_run, processes
from bench.clock import Clock
from bench.sample import Sample, write_fasta
from bench.stage import Ground, say

ONE_RANK = """
import os, sys, time, torch
from torch import distributed
kind, numbers = sys.argv[1], int(sys.argv[2])
device = torch.device("cuda", 0) if kind == "nccl" else torch.device("cpu")
distributed.init_process_group(kind, rank=0, world_size=1)
held = torch.ones(numbers, device=device)
distributed.all_reduce(held)
if device.type == "cuda":
    torch.cuda.synchronize()
started = time.perf_counter()
for _ in range(20):
    distributed.all_reduce(held)
if device.type == "cuda":
    torch.cuda.synchronize()
assert float(held[0]) == 1.0
print(time.perf_counter() - started)
distributed.destroy_process_group()
"""
"""Twenty sums of one rank: does the library load, connect and end?"""
FEATURES, STEPS = 2_048, 500
SHORT = 64, 20
"""The same in a rehearsal."""


class Training(NamedTuple):
    """A training by the product."""

    name: str
    device: str
    ranks: int


def train(ground: Ground, tokens: int, clock: Clock) -> list[dict[str, Any]]:
    """Return the seconds of each training, and how far its weights are from the first one's."""
    say("a run whose vectors are learned from")
    write_fasta(ground.folder / "in.fasta", Sample(ground.fasta).take(tokens))
    config: dict[str, Any] = {
        "run": "vectors",
        "inputs": "in.fasta",
        "workload": "esm2",
        "outputs": "parquet",
    }
    config |= {"options": {"model": "mill_t6_8M"}, "device": ground.place.device}
    (ground.folder / "vectors.yaml").write_text(json.dumps(config))
    environment = hard_run.environment_of(1)
    _run(ground, "vectors", hard_run.words_of(ground, "vectors", 1), environment, clock)
    rows: list[dict[str, Any]] = []
    first: dict[str, torch.Tensor] = {}
    for training in _trainings(ground):
        say(f"autoencoder: {training.name}")
        row: dict[str, Any] = {"name": training.name, "seconds": 0.0, "l2": 0.0, "error": ""}
        rows.append(row)
        try:
            row["seconds"] = _trained(ground, training, environment, clock)
            path = ground.folder / training.name / "sae_weights.safetensors"
            weights = load_file(path)
            first = first or weights
            row["l2"] = max(
                float(f"{torch.linalg.norm(weights[key] - of) / (torch.linalg.norm(of) or 1):.2g}")
                for key, of in first.items()
            )
        except Exception as error:
            row["error"] = " ".join(str(error).split())[:300]
        ground.so_far({"rows": rows})
    for kind in ("gloo", "nccl"):
        if kind == "nccl" and ground.place.device != "cuda":
            continue
        row = {"name": f"20 sums of one rank, {kind}", "seconds": 0.0, "l2": 0.0, "error": ""}
        rows.append(row)
        numbers = 1_000_000 if ground.place.device == "cpu" else 50_000_000
        command = [sys.executable, "-c", ONE_RANK, kind, str(numbers)]
        try:
            printed = _run(ground, kind, command, _alone(environment), clock)
            row["seconds"] = round(float(printed.split()[-1]), 4)
        except Exception as error:
            row["error"] = " ".join(str(error).split())[:300]
        ground.so_far({"rows": rows})
    return rows


def _trainings(ground: Ground) -> list[Training]:
    count = torch.cuda.device_count() if ground.place.device == "cuda" else 0
    listed = [Training("cpu-one-process", "cpu", 1), Training("cpu-two-ranks-gloo", "cpu", 2)]
    if count:
        listed.insert(0, Training("gpu-one-process", "cuda", 1))
    if count > 1:
        listed.append(Training("gpu-two-ranks-nccl", "cuda", 2))
    return listed


def _trained(
    ground: Ground, training: Training, environment: Mapping[str, str], clock: Clock
) -> float:
    features, steps = SHORT if ground.place.name == "rehearsal" else (FEATURES, STEPS)
    words = ["sae", "train", str(ground.folder / "results" / "vectors"), "--features"]
    words += [str(features), "--steps", str(steps), "--batch", "64", "--k", "8"]
    words += ["--device", training.device, "--gpus", str(training.ranks)]
    words += ["--output", str(ground.folder / training.name)]
    started = time.monotonic()
    command = [sys.executable, "-m", "featuremill", *words]
    _run(ground, training.name, command, environment, clock)
    return round(time.monotonic() - started, 1)


def _run(
    ground: Ground,
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    clock: Clock,
) -> str:
    """Run a command to its end; return what it printed."""
    log = ground.folder / f"{name}.log"
    if status := processes.run(command, clock.left(), log, environment):
        raise processes.ChildError(f"{name} ended with {status}{processes.last_words(log)}")
    return log.read_text("utf-8", "replace")


def _alone(environment: Mapping[str, str]) -> Mapping[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
