"""The table of docs/how-far.md: what `featuremill estimate` says of 10⁶, 10⁸ and 10⁹ proteins.

`python -m bench.how_far` takes the demo's proteins as a sample, one H100's data sheet for the speed
(an assumption), and for each number of GPUs the shards that `shards.cost: auto` cuts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from bench.record import ROOT
from featuremill.base.words import clock, human_bytes

DEVICE = "NVIDIA H100 80GB HBM3"
MODEL = "esm2_t33_650M_UR50D"
RECORDS = (10**6, 10**8, 10**9)
GPUS = (1, 4, 64, 512)
HEADINGS = (
    "proteins",
    "GPUs",
    "`shards.cost`",
    "shards",
    "time",
    "GPU hours",
    "start-up",
    "idle",
    "of the time: plan",
    "merge",
)


def main() -> int:
    """Print the table, and what the disk needs."""
    print(f"| {' | '.join(HEADINGS)} |")
    print(f"| {' | '.join('---' for _ in HEADINGS)} |")
    disks = []
    for num_records in RECORDS:
        answer = _estimate(num_records)
        for row in answer["rows"]:
            print(_line(row, answer["around_seconds"], num_records))
        disk = answer["disk"]
        disks.append(f"{num_records:,}: {human_bytes(disk['bytes'])}, {disk['files']:,} files")
    print("\n" + "\n".join(disks))
    return 0


def _line(row: dict[str, Any], around: dict[str, float], num_records: int) -> str:
    cells = [
        f"{num_records:,}",
        f"{row['slots']:,}",
        f"{row['best_cost']:_}",
        f"{row['shards_left']:,}",
        _ranged({key: _hours(value) for key, value in row["hours"].items()}),
        _ranged({key: _number(value) for key, value in row["device_hours"].items()}),
        f"{100 * row['startup_share']:.0f} %",
        f"{100 * row['idle_share']:.0f} %",
        clock(around["plan"]),
        clock(around["merge"]),
    ]
    return f"| {' | '.join(cells)} |"


def _ranged(words: dict[str, str]) -> str:
    return f"{words['middle']} ({words['least']} to {words['most']})"


def _number(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.1f}"


def _hours(hours: float) -> str:
    return f"{hours:,.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"


def _estimate(num_records: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        config = {
            "run": "far",
            "inputs": str(ROOT / "config" / "demo.fasta"),
            "workload": "esm2",
            "options": {"model": MODEL},
            "outputs": "parquet_dataset",
        }
        (Path(scratch) / "far.yaml").write_text(yaml.safe_dump(config))
        asked = ["--gpus", ",".join(map(str, GPUS)), "--records", str(num_records), "--json"]
        command = [sys.executable, "-m", "featuremill", "estimate", "far.yaml", "--device", DEVICE]
        done = subprocess.run(
            [*command, *asked],
            cwd=scratch,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
            check=True,
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    sys.exit(main())
