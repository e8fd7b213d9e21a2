"""plan: read every record once, decide what is computed in which shard, and write it down.

Reads the inputs and `weights/<name>.json`; writes the shards, `manifest.parquet` and, last,
`plan.json`. Knows nothing of torch. The last committed plan stays in the store, so that an edit of
the input costs only the records that are new.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from featuremill import weights as weights_verb
from featuremill.config import Run, read, validate
from featuremill.devices import Device, cpu, cuda_devices
from featuremill.errors import UserError, WorkloadError
from featuremill.journal import COLUMNS
from featuremill.outputs import IDENTITY
from featuremill.plan.announce import announce
from featuremill.plan.manifest import write_manifest
from featuremill.plan.repeats import repeated_rows
from featuremill.plan.shards import Cutter, Shard, open_old_shard
from featuremill.plan.spool import Spool, Tally
from featuremill.store import RunFolder, read_json, recipe_of, sha256_of, write_json
from featuremill.workload import Weights, Workload, find_workload

PLAN_VERSION = 1
RESERVED = {*IDENTITY.names, *(column.name for column in COLUMNS)}
"""Names of columns that a workload cannot give to its values."""
log = logging.getLogger("featuremill.plan")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `featuremill plan`."""
    parser.add_argument("run_folder", type=Path, help="results/<run>")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", type=Path, help="YAML file of the run")
    source.add_argument("--config-json", help="the same as JSON text")
    parser.add_argument("--weights", type=Path, help="weights/<name>.json, if the workload has any")
    parser.add_argument("--replan", action="store_true", help="cut every shard anew")


def run(arguments: argparse.Namespace) -> None:
    """Carry out `featuremill plan`."""
    if arguments.config:
        config = read(arguments.config)
    else:
        config = validate(json.loads(arguments.config_json))
    workload = find_workload(config.workload)
    model = workload.weights(workload.Options.model_validate(config.options))
    if model and not arguments.weights:
        path = f"weights/{weights_verb.name_of(model)}.json"
        raise UserError(
            f"plan: {model} needs its weights: featuremill weights {model} --output {path}, "
            f"then featuremill plan … --weights {path}."
        )
    found = weights_verb.read(arguments.weights) if arguments.weights else None
    plan(RunFolder(arguments.run_folder), config, found, arguments.weights, arguments.replan)


def plan(
    folder: RunFolder,
    config: Run,
    weights: Weights | None,
    weights_path: Path | None = None,
    replan: bool = False,
) -> dict[str, Any]:
    """Plan `config` into `folder` and return what `plan.json` says.

    Raises:
        UserError: for inputs that cannot be read, options that cannot be met, and ids that stand
            for two different payloads. Nothing of an earlier plan is lost then.
    """
    workload = find_workload(config.workload)
    options = workload.Options.model_validate(config.options)
    device = planning_device(config.device)
    settings = settings_of(config.workload, workload, options, device, weights)
    options = workload.Options.model_validate(
        settings["options"] | options.model_dump(mode="json", include=options.EXECUTION)
    )
    values = workload.schema(options, weights)
    if taken := RESERVED & set(values.names):
        raise WorkloadError(
            f"workload {config.workload}: the name {taken.pop()!r} is the core's own."
        )
    folder.store.mkdir(parents=True, exist_ok=True)
    with (folder.store / "plan.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        spool_folder = folder.store / "spool"
        shutil.rmtree(spool_folder, ignore_errors=True)  # what a killed plan left behind
        try:
            last = {} if replan else read_json(folder.store / "plan.json") or {}
            about_records = _plan_records(folder, config, workload, options, last)
        finally:
            shutil.rmtree(spool_folder, ignore_errors=True)
        result = {
            "version": PLAN_VERSION,
            "run": config.run,
            "workload": config.workload,
            "workload_version": workload.VERSION,
            "cost_unit": workload.COST_UNIT,
            "recipe": recipe_of(settings),
            "settings": settings,
            "execution": options.model_dump(mode="json", include=options.EXECUTION),
            "device": config.device,
            "gpus": config.gpus,
            "weights": str(weights_path) if weights_path else None,
            **about_records,
        }
        write_json(folder.store / "plan.json", result)
        write_json(folder.plan, result)
    announce(folder, result, values, device)
    return result


def planning_device(choice: str) -> Device:
    """Return the device that "auto" options are settled for: the least able one of those chosen.

    A cluster plans where no GPU is: with `device: cuda` an Ampere or newer one is then taken for
    granted.
    """
    gpus = [] if choice == "cpu" else cuda_devices()
    if gpus:
        return min(gpus, key=lambda gpu: gpu.has_bf16)
    if choice == "cuda":
        return Device("cuda", "", "a GPU that this machine does not have", has_bf16=True)
    return cpu()


def settings_of(
    name: str, workload: Workload, options: Any, device: Device, weights: Weights | None
) -> dict[str, Any]:
    """Return everything that determines the values; its digest is the recipe."""
    resolved = workload.resolve(options, device, weights)
    return {
        "workload": name,
        "version": workload.VERSION,
        "options": resolved.model_dump(mode="json", exclude=resolved.EXECUTION),
        "weights_sha256": weights.sha256 if weights else None,
    }


def _plan_records(
    folder: RunFolder, config: Run, workload: Workload, options: Any, last: Mapping[str, Any]
) -> dict[str, Any]:
    """Read the records, write shards and manifest, and return what `plan.json` says of them."""
    before = [_identity(path) for path in config.inputs]
    with Spool(folder.store / "spool", lambda payload: workload.cost(payload, options)) as spool:
        records = workload.records([Path(path) for path in config.inputs], options)
        spool.add_all(records, _progress())
    tally = spool.tally
    inputs = _describe_inputs(config, tally)
    for path, identity in zip(config.inputs, before, strict=True):
        if _identity(path) != identity:
            raise UserError(f"{path}: it changed while it was read; run the same command again.")
    if tally.records == tally.refused:
        raise UserError(_nothing_left(config, tally))
    with pa.memory_map(str(spool.rows_path)) as source:
        rows = pa.ipc.open_stream(source).read_all()
    repeats = repeated_rows(rows, spool.ids_path)
    old = [
        found
        for shard in last.get("shards", [])
        if (found := open_old_shard(shard["shard"], folder.shard(shard["shard"])))
    ]
    cutter = Cutter(folder, spool, old, config.shards.cost)
    cutter.cut()
    write_manifest(folder.manifest, rows, cutter.locations, repeats, cutter.shards)
    return {
        "inputs": inputs,
        "counts": {
            "input": tally.records,
            "refused": tally.refused,
            "duplicate": len(repeats),
            "planned": tally.records - tally.refused - len(repeats),
            "unique": cutter.unique,
        },
        "notes": dict(sorted(tally.notes.items())),
        "refusals": dict(sorted(tally.refusals.items())),
        "lengths": {"total": tally.total_length, "longest": tally.longest},
        "manifest_sha256": sha256_of(folder.manifest),
        "shards": [_describe_shard(shard) for shard in cutter.shards],
    }


def _identity(path: str) -> tuple[int, int, int] | None:
    """Return what changes when a file is written to; None for none, which reading will tell."""
    if not Path(path).exists():
        return None
    about = Path(path).stat()
    return about.st_size, about.st_mtime_ns, about.st_ino


def _nothing_left(config: Run, tally: Tally) -> str:
    inputs = ", ".join(config.inputs)
    if not tally.records:
        return f"{inputs}: there is no record in the input; check the path in `inputs`."
    (reason, count), *_ = tally.refusals.most_common()
    return (
        f"{inputs}: all {tally.records:,} records were refused, {count:,} because: {reason}; "
        "check that the input is what the workload expects."
    )


def _describe_inputs(config: Run, tally: Tally) -> list[dict[str, Any]]:
    described = []
    for name in config.inputs:
        sha256 = sha256_of(Path(name))
        size = Path(name).stat().st_size
        records = tally.by_source[str(Path(name))]
        described.append({"path": name, "bytes": size, "records": records, "sha256": sha256})
    return described


def _describe_shard(shard: Shard) -> dict[str, Any]:
    return {
        "shard": shard.name,
        "records": shard.records,
        "wanted": shard.wanted,
        "cost": shard.cost,
        "bytes": shard.bytes,
    }


def _progress(every_seconds: float = 5.0) -> Any:
    """Return a tick that logs how far reading is, at most once in `every_seconds`."""
    last = time.monotonic()

    def tick(tally: Tally) -> None:
        nonlocal last
        if time.monotonic() - last >= every_seconds:
            last = time.monotonic()
            log.info("%s records read", f"{tally.records:,}")

    return tick
