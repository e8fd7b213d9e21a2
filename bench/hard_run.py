"""Whole runs on one GPU: one in a single slot, then the same in three slots while workers are
killed and a neighbour takes the memory. Their values must have the same bits.

The runs are real (`featuremill run`), so this needs Snakemake; a rehearsal takes the CPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench import processes
from bench.clock import Clock
from bench.engines.ours import Ours
from bench.record import ROOT
from bench.sample import write_fasta
from bench.stage import Ground, Stage, say

SLOTS = 3
SHARDS = 24
KILLS = 3
LEFT_MB = 600
"""What the neighbour leaves of the GPU's memory: less than a batch needs."""
NEIGHBOUR_SECONDS = 15
NEIGHBOUR = """
import sys, time, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(max(0, free - int(sys.argv[1]) * 2**20), dtype=torch.uint8, device="cuda")
print(held.numel() >> 20, flush=True)
time.sleep(float(sys.argv[2]))
"""
WORKER = "featuremill.extract.worker"
"""What the command line of a worker names."""
FRACTIONS = (1.0, 0.5, 0.25)
"""Of what a pass took at its peak, as a limit of torch's allocator."""


def hard_run(ground: Ground, tokens: int, clock: Clock) -> dict[str, Any]:
    """Return what both runs took, what happened in between, and how many vectors differ."""
    from bench.sample import Sample

    proteins = Sample(ground.fasta).take(tokens)
    write_fasta(ground.folder / "in.fasta", proteins)
    total = sum(len(sequence) + 2 for _, sequence in proteins)
    found: dict[str, Any] = {"proteins": len(proteins), "tokens": total}
    for name, cost in (("whole", 10**9), ("hard", total // SHARDS)):
        config: dict[str, Any] = {
            "run": name,
            "inputs": "in.fasta",
            "workload": "esm2",
            "outputs": "parquet",
        }
        config |= {"options": {"model": "mill_t6_8M"}, "device": ground.place.device}
        path = ground.folder / f"{name}.yaml"
        path.write_text(json.dumps(config | {"shards": {"cost": cost}}))
    say("a whole run in one slot")
    started = time.monotonic()
    status = processes.run(
        words_of(ground, "whole", 1),
        clock.left() / 2,
        ground.folder / "whole.log",
        environment_of(1),
    )
    found["whole_seconds"] = round(time.monotonic() - started, 1)
    if status:
        words = processes.last_words(ground.folder / "whole.log")
        raise processes.ChildError(f"the whole run ended with {status}{words}")
    ground.so_far(found)
    say(f"the same in {SLOTS} slots, with {KILLS} kills and a neighbour")
    for found["hard"] in _disturbed(ground, clock):
        ground.so_far(found)
    found |= _compared(ground.folder)
    return found | ({} if found["differ"] == 0 else {"error": "the values differ"})


def words_of(ground: Ground, name: str, slots: int) -> list[str]:
    kind = ["--resources", f"gpu={slots}"] if ground.place.device == "cuda" else []
    command = [sys.executable, "-m", "featuremill", "run", str(ground.folder / f"{name}.yaml")]
    return [
        "env",
        "-C",
        str(ground.folder),
        *command,
        "--cores",
        str(2 * slots),
        *kind,
        "--",
        "merge",
    ]


def environment_of(slots: int) -> Mapping[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return {
        "PYTHONPATH": path,
        "FEATUREMILL_SLOTS_PER_GPU": str(slots),
        "FEATUREMILL_POLICY": "memory",
    }


def _disturbed(ground: Ground, clock: Clock) -> Iterator[dict[str, Any]]:
    """Yield what has happened to the run in three slots so far."""
    found: dict[str, Any] = {"kills": [], "neighbour_mb": None, "status": None}
    receipts = ground.folder / "results" / "hard" / "receipts"
    started = time.monotonic()
    neighbour: subprocess.Popen[str] | None = None
    log = ground.folder / "hard.log"
    words, environment = words_of(ground, "hard", SLOTS), environment_of(SLOTS)
    try:
        for status in processes.watched(words, clock.left() - 10, log, environment, 0.2):
            done = len(list(receipts.rglob("*.json")))
            found |= {"status": status, "seconds": round(time.monotonic() - started, 1)}
            is_due = len(found["kills"]) < KILLS and done > 2 * len(found["kills"])
            if is_due and (pid := next(workers(os.getpid()), None)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    found["kills"].append({"shards_done": done, "at": found["seconds"]})
                yield found
            if len(found["kills"]) == KILLS and neighbour is None and done > 2 * KILLS:
                neighbour = _neighbour(ground)
                found["neighbour_at"] = found["seconds"]
                yield found
        if neighbour and neighbour.stdout and ground.place.device == "cuda":
            found["neighbour_mb"] = int(neighbour.stdout.readline() or 0)
    finally:
        if neighbour:
            processes.kill(neighbour)
    text = log.read_text("utf-8", "replace")
    found["did_not_fit"] = text.count("did not fit")
    if found["status"]:
        found["last_words"] = processes.last_words(log)
    yield found


def workers(root: int) -> Iterator[int]:
    """Yield the processes below `root` that compute a shard."""
    for pid in processes.descendants(root):
        with contextlib.suppress(OSError):
            if WORKER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield pid


def _neighbour(ground: Ground) -> subprocess.Popen[str]:
    """Start the process that takes the memory; in a rehearsal, one that only waits."""
    code, more = NEIGHBOUR, [str(LEFT_MB), str(NEIGHBOUR_SECONDS)]
    if ground.place.device != "cuda":
        code, more = "import time; time.sleep(1)", []
    return subprocess.Popen([sys.executable, "-c", code, *more], stdout=subprocess.PIPE, text=True)


def _compared(folder: Path) -> dict[str, Any]:
    import featuremill

    (ids, one), (others, other) = (
        featuremill.load_matrix(folder / "results" / name) for name in ("whole", "hard")
    )
    rows = {name: row for row, name in enumerate(others)}
    differ = sum(
        name not in rows or not np.array_equal(one[row], other[rows[name]])
        for row, name in enumerate(ids)
    )
    retried = Counter(
        str(json.loads(path.read_text()).get("failed", 0))
        for path in (folder / "results" / "hard" / "receipts").rglob("*.json")
    )
    return {"vectors": len(ids), "differ": differ, "shards_by_failed": dict(retried)}


def limited_memory(stage: Stage, tokens: int) -> list[dict[str, Any]]:
    """Return, for several limits of torch's allocator, the seconds of an extraction and how many
    proteins have other bits than without a limit."""
    import torch

    say(f"{stage.shape.name}: less memory than batches take")
    ours, place, proteins = stage.ours(stage.dtype), stage.place, stage.sample.take(tokens)
    assert isinstance(ours, Ours)
    rows: list[dict[str, Any]] = []
    exact: dict[str, Any] = {}
    fasta = write_fasta(stage.folder / "limited.fasta", proteins)
    peak = total = 0
    for fraction in FRACTIONS:
        ours.model_for("mean")
        place.free_memory()
        base = place.reserved_bytes()
        if place.device == "cuda":
            total = torch.cuda.get_device_properties(0).total_memory
            limit = min(1.0, (base + fraction * (peak - base)) / total) if peak else 1.0
            torch.cuda.set_per_process_memory_fraction(limit)
        place.forget_peak()
        row: dict[str, Any] = {"of_peak": fraction, "limit_mb": 0, "seconds": 0.0}
        row |= {"differ": -1, "error": ""}
        rows.append(row)
        try:
            started = time.perf_counter()
            folder = stage.fresh_folder()
            ours.extract(fasta, folder, "mean")
            row["seconds"] = round(time.perf_counter() - started, 3)
            features = ours.read(folder, "mean", proteins)
            exact = exact or features
            row["differ"] = sum(
                not np.array_equal(features[name], exact[name]) for name, _ in proteins
            )
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        finally:
            if place.device == "cuda":
                peak = peak or place.peak_reserved_bytes()
                row["limit_mb"] = round((base + fraction * (peak - base)) / 2**20)
                torch.cuda.set_per_process_memory_fraction(1.0)
        stage.so_far({"rows": rows})
    return rows
