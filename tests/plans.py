"""Whole plans, receipts and weights files, of which a test says only what it is about."""

import json
import math
from pathlib import Path

from featuremill.store.files import seal_of, sealed, sha256_of, write_json

SNAKEMAKE_SECONDS_A_JOB = 0.06
"""Of its main process, during which it starts no other job: `python -m bench.scale --records 50000
--shards 1000` (bench/figures.md)."""
SNAKEMAKE_SECONDS_A_JOB_LEFT = 7e-6
"""On top, for each job that could run as well, since it looks at all of them: `python -m bench.dag
--shards 1000 3000`, whose jobs do nothing, took 9.8 and 16.8 ms of processor a job."""


def plan_json(shards=(), **given):
    """Return what plan.json says; `shards` may leave out what does not matter."""
    counts = {"input": 1, "refused": 0, "duplicate": 0, "planned": 1, "unique": 1}
    settings = {"workload": "composition", "version": "1", "options": {}, "weights_sha256": None}
    shard = {"shard": "s", "records": 1, "wanted": 1, "cost": 1, "bytes": 1}
    about = {"version": 1, "run": "test", "recipe": "r", "records_sha256": ""}
    about["cost_unit"] = "residues"
    about |= {"workload": "composition", "workload_version": "1", "weights": None, "inputs": []}
    about |= {"execution": {}, "device": "cpu", "gpus": 1, "notes": {}, "refusals": {}}
    return {
        **(about | {"lengths": {"total": 1, "longest": 1}} | given),
        "settings": settings | given.get("settings", {}),
        "counts": counts | given.get("counts", {}),
        "shards": [shard | entry for entry in shards],
    }


def receipt_json(**given):
    """Return what a receipt says."""
    about = {"version": 2, "shard": "s", "recipe": "r", "part": ""}
    about |= {"rows": 1, "ok": 1, "failed": 0, "cost": 1}
    about["seconds"] = {"compute": 1.0, "total": 1.0, "wait": 0.0}
    return {**about, "devices": [{"kind": "cpu", "uuid": "x", "name": "a CPU"}], **given}


def delivery_json(**given):
    """Return what manifest.json says."""
    plan = plan_json()
    same = ("run", "recipe", "records_sha256", "settings", "cost_unit", "inputs", "lengths")
    counts = {"input": 1, "ok": 1, "failed": 0, "refused": 0, "duplicate": 0}
    told = {key: plan[key] for key in same}
    return {**told, "plan": plan["counts"], "counts": counts, "outputs": {}, "parts": {}, **given}


def write_weights(path, file="gone.safetensors", num_bytes=0, layers=33, width=1280):
    """Write weights/<name>.json at `path`, of weights in `file`."""
    file = Path(file)
    about = {
        "version": 1,
        "name": path.stem,
        "path": str(file),
        "bytes": num_bytes,
        "sha256": sha256_of(file) if file.is_file() else "0" * 64,
        "metadata": {
            "num_layers": str(layers),
            "embed_dim": str(width),
            "attention_heads": "20",
            "dtype": "float32",
        },
    }
    path.write_text(json.dumps(about))
    return path


def wasted(total, cost, slots, rate, startup):
    """Return the seconds of slots that shards of `cost` waste, expected before anything runs.

    Each shard costs its start-up, which asks for few of them. At the end a slot waits half a shard
    on average, since no two take the same time, and a last round that is not full keeps slots
    without any: that asks for small ones. Snakemake starts them one after the other. What a crash
    costs asks for neither: a job goes on from its last batch, so that is the start-up and the
    seconds since the last sync, whatever the shard is.
    """
    num_shards = max(1, round(total / cost))
    shard = total / num_shards / rate
    jobs_end = math.ceil(num_shards / slots) * (startup + shard)
    if num_shards > 1:
        # One round at least, also where some slots have no shard at all.
        rounds = max(1.0, num_shards / slots)
        spread = rounds * (startup + shard) + shard / 2 * (1 - 1 / slots)
        jobs_end = max(jobs_end, spread)
    a_job = SNAKEMAKE_SECONDS_A_JOB + SNAKEMAKE_SECONDS_A_JOB_LEFT * num_shards / 2
    started = min(slots, num_shards) * a_job
    end = max(started + jobs_end, num_shards * a_job + startup + shard)
    return end * slots - total / rate


def write_sealed(path, value):
    """Write a JSON object as featuremill does, whatever it says."""
    write_json(path, sealed(json.loads(json.dumps(value))))


def read_sealed(path):
    """Return what a JSON file of featuremill's says, its seal checked and taken off."""
    value = json.loads(path.read_text("utf-8"))
    assert value.pop("seal", None) in (None, seal_of(value))
    return value
