"""Say, before long work starts, what the run will do."""

from __future__ import annotations

import logging
import os
from typing import Any

import pyarrow as pa

from featuremill.devices import Device
from featuremill.sizes import counted, expected_bytes, human_bytes
from featuremill.store import RunFolder

ONE_FILE = "one file of that size is hard to move and to read; parquet_dataset writes a folder."
ONE_BY_ONE = (
    "a dataset a record takes minutes for each million of them, and such a file opens slowly; "
    "parquet_dataset is the output for so many."
)
LARGE = {
    "parquet": (5_000_000, ONE_FILE),
    "per_protein_h5": (1_000_000, ONE_BY_ONE),
    "per_residue_h5": (1_000_000, ONE_BY_ONE),
}
"""From how many records on an output stops being sensible, and why. `npy` never does: it is mapped,
not read."""
log = logging.getLogger("featuremill.plan")


def announce(folder: RunFolder, plan: dict[str, Any], schema: pa.Schema, device: Device) -> None:
    """Log the run's size, model, device and expected bytes, and what looks odd."""
    for line in describe(folder, plan, schema, device):
        log.info("%s", line)
    for line in warnings(folder, plan):
        log.warning("%s", line)


def describe(
    folder: RunFolder, plan: dict[str, Any], schema: pa.Schema, device: Device
) -> list[str]:
    """Return the lines that say what will be done."""
    counts, lengths, options = plan["counts"], plan["lengths"], plan["settings"]["options"]
    model = f"{options['model']}, {options['dtype']}" if "model" in options else "no model"
    size = human_bytes(expected_bytes(schema, counts["planned"], lengths["total"]))
    return [
        *sizes_of(folder, plan),
        f"{plan['workload']} ({model}) on {_where(plan, device)}; "
        f"values take about {size}, in store/ and again in each output",
    ]


def sizes_of(folder: RunFolder, plan: dict[str, Any]) -> list[str]:
    """Return the lines that say how much there is to do."""
    counts, lengths, shards = plan["counts"], plan["lengths"], plan["shards"]
    left_out = [f"{counts[k]:,} {k}" for k in ("refused", "duplicate") if counts[k]]
    num_done = sum(folder.part(plan["recipe"], s["shard"]).exists() for s in shards)
    done = f", {num_done:,} of them done already" if num_done else ""
    return [
        f"{counted(counts['input'], 'record')}, {counted(lengths['total'], 'residue')}, "
        f"longest {lengths['longest']:,}" + (f"; {', '.join(left_out)}" if left_out else ""),
        f"{counted(counts['unique'], 'distinct record')} to compute "
        f"in {counted(len(shards), 'shard')}{done}",
    ]


def _where(plan: dict[str, Any], device: Device) -> str:
    is_spread = device.kind == "cuda" and plan["gpus"] > 1
    return f"{plan['gpus']} × {device.name} a job" if is_spread else device.name


def warnings(folder: RunFolder, plan: dict[str, Any]) -> list[str]:
    """Return what a person would want to know before the GPUs start."""
    lines = [f"{counted(count, 'record')}: {note}" for note, count in plan["notes"].items()]
    for reason, count in plan["refusals"].items():
        lines.append(f"{counted(count, 'record')} refused: {reason}")
    shards = [s for s in plan["shards"] if not folder.part(plan["recipe"], s["shard"]).exists()]
    num_gpus = int(os.environ.get("FEATUREMILL_GPUS", "0"))
    idle = num_gpus - len(shards) * plan["gpus"]
    if len(shards) > 1 and idle > 0:
        lines.append(
            f"{len(shards)} shards for {num_gpus} GPUs: {idle} will idle; lower shards.cost."
        )
    return [*lines, *large_outputs(plan["counts"]["planned"])]


def large_outputs(num_records: int) -> list[str]:
    """Return a sentence for each output that is no good for so many records."""
    return [
        f"outputs: {output} for {num_records:,} records: {LARGE[output][1]}"
        for output in os.environ.get("FEATUREMILL_OUTPUTS", "").split()
        if output in LARGE and num_records > LARGE[output][0]
    ]
