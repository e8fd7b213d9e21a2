"""Figures of docs/performance.md: what `featuremill estimate` says of 10⁶, 10⁸ and 10⁹ proteins.

`python -m bench.how_far` takes the demo's proteins as a sample, the speed that an H200 showed, and
for each number of GPUs the shards that `shards.cost: auto` cuts. `--device` takes another card: an
H100's speed is derived from the H200's, that of most others an assumption.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from bench.record import ROOT
from featuremill.base.words import clock, human_bytes
from featuremill.config import validate
from featuremill.plan.estimate.command import device_called
from featuremill.plan.estimate.report import Case, Estimate, Row
from featuremill.plan.estimate.work import Work, look
from featuremill.store.plan import Counts
from featuremill.store.results import Results
from featuremill.workload import EstimatesMemory, find_workload
from featuremill.workload.recipe import settings_of

DEVICE = "NVIDIA H200"
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
    """Print where the speed is from, the table, and what the disk needs."""
    parser = argparse.ArgumentParser(prog="bench.how_far", description=main.__doc__)
    parser.add_argument("--device", default=DEVICE, help="the GPUs, as nvidia-smi says them")
    device = parser.parse_args().device
    speed = _estimate(RECORDS[0], device).rows[0].speed
    rate, uncertainty = speed.cost_per_second, speed.uncertainty
    print(
        f"{speed.device}: {rate:,.0f} tokens a second, {speed.source}, within {uncertainty:g} ×\n"
    )
    print(f"| {' | '.join(HEADINGS)} |")
    print(f"| {' | '.join('---' for _ in HEADINGS)} |")
    disks = []
    for num_records in RECORDS:
        answer = _estimate(num_records, device)
        for row in answer.rows:
            print(_line(row, answer.around_seconds, num_records))
        size = human_bytes(sum(answer.disk.values()))
        disks.append(f"{num_records:,}: {size}, {answer.num_files:,} files")
    print("\n" + "\n".join(disks))
    return 0


def _line(row: Row, around: dict[str, float], num_records: int) -> str:
    cells = [
        f"{num_records:,}",
        f"{row.slots:,}",
        f"{row.best_cost:_}",
        f"{row.shards_left:,}",
        _hours(row.hours),
        _number(row.device_hours),
        f"{100 * row.startup_share:.0f} %",
        f"{100 * row.idle_share:.0f} %",
        clock(around["plan"]),
        clock(around["merge"]),
    ]
    return f"| {' | '.join(cells)} |"


def _number(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.1f}"


def _hours(hours: float) -> str:
    return f"{hours:,.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"


def _estimate(num_records: int, device_name: str) -> Estimate:
    """Return what the verb would say if the demo had so many records of the same kind."""
    config = validate(
        {
            "run": "far",
            "inputs": str(ROOT / "config" / "demo.fasta"),
            "workload": "esm2",
            "options": {"model": MODEL},
            "outputs": "parquet_dataset",
        }
    )
    workload, device = find_workload(config.workload), device_called(device_name, is_gpu=True)
    options = workload.Options.model_validate(config.options)
    assert isinstance(workload, EstimatesMemory)
    weights = workload.weights_ahead(options)
    settings = settings_of(config.workload, workload, options, device, weights)
    with tempfile.TemporaryDirectory() as scratch:  # without earlier runs
        folder = Results(Path(scratch) / "results" / config.run)
        work = _grown(look(folder, config, settings), num_records)
        return Case(config, folder, settings, weights, device, device_name, work).estimate(GPUS)


def _grown(work: Work, num_records: int) -> Work:
    plan = work.plan
    factor = num_records / plan.counts.input
    counts = {key: round(value * factor) for key, value in plan.counts.as_json().items()}
    lengths = plan.lengths.model_copy(update={"total": round(plan.lengths.total * factor)})
    (shard,) = plan.shards
    whole = replace(shard, cost=round(shard.cost * factor), bytes=lengths.total)
    grown = {"counts": Counts(**counts), "lengths": lengths, "shards": [whole]}
    return work._replace(plan=plan.model_copy(update=grown), left=[whole])


if __name__ == "__main__":
    sys.exit(main())
