"""What `shards.cost: auto` leaves of start-ups, and what a worker would save that stays on its slot
for the next shard.

`python -m bench.staying` cuts proteins of the demo's lengths for ESM-2 on H100s: speed and start-up
are the assumptions of `featuremill estimate`, nothing is measured.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from featuremill.plan import speeds
from featuremill.plan.shard_cost import Work, choose
from featuremill.plan.speeds import JobSpec
from featuremill.store.plan import Settings
from featuremill.workloads.esm2 import estimates

DEVICE = "NVIDIA H100 80GB HBM3"
MODELS = ("esm2_t6_8M_UR50D", "esm2_t30_150M_UR50D", "esm2_t33_650M_UR50D", "esm2_t36_3B_UR50D")
RECORDS = (20_000, 500_000, 10**7)
GPUS = (1, 4, 8)
MEAN_TOKENS = 358
HEADINGS = ("proteins", "model", "GPUs", "shards", "each", "start-up", "all shards", "saved")


def main() -> int:
    """Print a line a case."""
    print(f"| {' | '.join(HEADINGS)} |")
    print(f"| {' | '.join('---' for _ in HEADINGS)} |")
    for num_records in RECORDS:
        for name in MODELS:
            for gpus in GPUS:
                print(f"| {' | '.join(_cells(num_records, name, gpus))} |")
    return 0


def _cells(num_records: int, name: str, gpus: int) -> list[str]:
    weights = estimates.weights_ahead(name)
    model = estimates.model_of(weights)
    options = {"model": name, "dtype": "bf16"}
    settings = Settings(workload="esm2", version="", options=options, weights_sha256=None)
    job = JobSpec(settings, DEVICE, is_gpu=True)
    speed = speeds.find(job, Path("no-earlier-runs"), weights, MEAN_TOKENS)
    tokens, part_bytes = MEAN_TOKENS * num_records, 4 * model.sizes.width * num_records
    cut = choose(Work(tokens, num_records, tokens, part_bytes), speed, gpus)
    rounds = math.ceil(cut.num_shards / gpus)
    whole = rounds * (cut.startup_seconds + cut.seconds)
    saved = (rounds - 1) * cut.startup_seconds
    return [
        f"{num_records:,}",
        name.split("_")[2],
        f"{gpus}",
        f"{cut.num_shards}",
        f"{cut.seconds:.0f} s",
        f"{100 * cut.startup_share:.1f} %",
        f"{whole:,.0f} s",
        f"{saved:.0f} s, {100 * saved / whole:.1f} %",
    ]


if __name__ == "__main__":
    sys.exit(main())
