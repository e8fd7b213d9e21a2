"""The product as a user starts it: what a whole `featuremill extract` costs besides computing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.engines.ours import ONE_SHARD
from bench.lengths import tokens_of
from bench.record import ROOT
from bench.sample import write_fasta
from bench.stage import Stage, say
from featuremill.store import RunFolder


def start_up(stage: Stage, num_tokens: int) -> dict[str, Any]:
    """Return the wall time of one `featuremill extract` and what of it was not computing."""
    say(f"{stage.shape.name}: a whole featuremill extract")
    proteins = stage.sample.take(num_tokens)
    fasta = write_fasta(stage.folder / "start_up.fasta", proteins)
    folder = RunFolder(stage.fresh_folder() / "run")
    config = {
        "run": "bench",
        "inputs": [str(fasta)],
        "workload": "esm2",
        "shards": {"cost": ONE_SHARD},
        "device": stage.device,
    }
    weights = str(stage.subject.weights)
    plan_seconds = _verb(
        "plan", str(folder.root), "--config-json", json.dumps(config), "--weights", weights
    )
    plan = json.loads(folder.plan.read_text())
    (shard,) = (entry["shard"] for entry in plan["shards"])
    wall = _verb("extract", str(folder.root), shard)
    receipt = json.loads(folder.receipt(plan["recipe"], shard).read_text())
    computing = receipt["seconds"]["compute"]  # from the first batch to the last commit
    return {
        "shape": stage.shape.name,
        "tokens": sum(tokens_of(proteins)),
        "dtype": plan["settings"]["options"]["dtype"],
        "plan_seconds": round(plan_seconds, 3),
        "extract_seconds": round(wall, 3),
        "receipt_seconds": receipt["seconds"],
        "start_up_seconds": round(wall - computing, 3),
    }


def _verb(*arguments: str) -> float:
    """Run `featuremill …`; return its wall time."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "featuremill", *arguments],
        cwd=Path.cwd(),
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - started
