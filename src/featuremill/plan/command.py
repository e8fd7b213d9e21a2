"""plan: read every record once, decide what is computed in which shard, and write it down.

Reads the inputs and `weights/<name>.json`; writes the shards, `manifest.parquet` and, last,
`plan.json`. Knows nothing of torch. The last committed plan stays in the store, so that an edit of
the input costs only the records that are new.
"""

from __future__ import annotations

import argparse
import logging
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from featuremill.base import run_log
from featuremill.base.errors import UserError, WorkloadError
from featuremill.base.locking import locked
from featuremill.base.this_process import num_cores
from featuremill.config import Run, from_json, model_of, read
from featuremill.lease.devices import Device, cpu, cuda_devices
from featuremill.merge.outputs import ABOUT
from featuremill.plan.announce import announce, sizes_of
from featuremill.plan.buckets import spool_old_shards
from featuremill.plan.hands import Hands
from featuremill.plan.manifest import write_manifest
from featuremill.plan.reading import Spooled, read_records
from featuremill.plan.repeats import repeated_rows
from featuremill.plan.rows import Rows
from featuremill.plan.shards import Cutter, Shard
from featuremill.plan.sizing import Cut, Sizing
from featuremill.plan.spool import Tally, ids_path
from featuremill.store.files import RunFolder, read_sealed, sha256_of, write_sealed
from featuremill.store.journal import COLUMNS
from featuremill.workload import Weights, Workload, find_workload
from featuremill.workload import weights as weights_verb
from featuremill.workload.recipe import recipe_of, settings_of

PLAN_VERSION = 1
RESERVED = {*ABOUT, *(column.name for column in COLUMNS)}
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
    parser.add_argument("--threads", type=int, help="processes that share the work (all cores)")


def run(arguments: argparse.Namespace) -> None:
    """Carry out `featuremill plan`."""
    if arguments.config:
        config = read(arguments.config, has_weights=bool(arguments.weights))
    else:
        config = from_json(arguments.config_json)
    model = model_of(config)
    if model and not arguments.weights:
        path = weights_verb.json_of(model)
        raise UserError(
            f"plan: {model} needs its weights: featuremill weights {model} --output {path}, "
            f"then featuremill plan … --weights {path}."
        )
    found = weights_verb.read(arguments.weights) if arguments.weights else None
    folder = RunFolder(arguments.run_folder)
    run_log.begin_anew(folder.root)
    with run_log.line(folder.root, "plan") as line:
        result = plan(folder, config, found, arguments.weights, arguments.replan, arguments.threads)
        line.text = "; ".join(sizes_of(folder, result))


def plan(
    folder: RunFolder,
    config: Run,
    weights: Weights | None,
    weights_path: Path | None = None,
    replan: bool = False,
    threads: int | None = None,
) -> dict[str, Any]:
    """Plan `config` into `folder` and return what `plan.json` says, and as `cut` what there is to
    say of the size of new shards.

    As many `threads` (all cores, if there is no number) share the work on a large input; what comes
    out does not depend on them.

    Raises:
        UserError: for inputs that cannot be read, options that cannot be met, and ids that stand
            for two different payloads. Nothing of an earlier plan is lost then.
    """
    workload = find_workload(config.workload)
    device = planning_device(config.device)
    options, settings = _settled(config, workload, device, weights)
    values = _values(config.workload, workload, options, weights)
    sizing = Sizing(
        config.shards.cost,
        folder.root.parent,
        settings,
        weights_path,
        values,
        workload.COST_UNIT,
        device,
        config.gpus,
    )
    folder.store.mkdir(parents=True, exist_ok=True)
    say = partial(log.info, "another job is at this run; waiting")
    with locked(folder.store / "plan.lock", say):
        spool_folder = folder.store / "spool"
        shutil.rmtree(spool_folder, ignore_errors=True)  # what a killed plan left behind
        try:
            last = {} if replan else read_sealed(folder.store / "plan.json") or {}
            with Hands(threads or num_cores()) as hands:
                about_records, cut = _plan_records(
                    folder, config, workload, options, sizing, last, hands
                )
        finally:
            shutil.rmtree(spool_folder, ignore_errors=True)
        result = {
            **_about_run(config, workload, options, settings),
            "weights": str(weights_path) if weights_path else None,
            **about_records,
        }
        write_sealed(folder.store / "plan.json", result)
        write_sealed(folder.plan, result)
    result["cut"] = cut.why
    announce(folder, result, sizing)
    return result


def _values(name: str, workload: Workload, options: Any, weights: Weights | None) -> pa.Schema:
    values = workload.schema(options, weights)
    if taken := RESERVED & set(values.names):
        raise WorkloadError(f"workload {name}: the name {taken.pop()!r} is the core's own.")
    return values


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


def _settled(
    config: Run, workload: Workload, device: Device, weights: Weights | None
) -> tuple[Any, dict[str, Any]]:
    """Return the options with every "auto" settled, and the settings they come to."""
    options = workload.Options.model_validate(config.options)
    settings = settings_of(config.workload, workload, options, device, weights)
    execution = options.model_dump(mode="json", include=options.EXECUTION)
    return workload.Options.model_validate(settings["options"] | execution), settings


def _about_run(
    config: Run, workload: Workload, options: Any, settings: dict[str, Any]
) -> dict[str, Any]:
    """Return what `plan.json` says whatever the records are."""
    return {
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
    }


def _plan_records(
    folder: RunFolder,
    config: Run,
    workload: Workload,
    options: Any,
    sizing: Sizing,
    last: Mapping[str, Any],
    hands: Hands,
) -> tuple[dict[str, Any], Cut]:
    """Read the records, write shards and manifest; return what `plan.json` says of them, and how
    new shards were cut."""
    scratch = folder.store / "spool"
    scratch.mkdir()
    (spools, tally), inputs = _read(scratch, config, workload, options, hands)
    rows = Rows(spools)
    repeats = repeated_rows(rows, [ids_path(spool) for spool in spools])
    names = [shard["shard"] for shard in last.get("shards", [])]
    old = spool_old_shards(folder, names, scratch / "old")
    cutter = Cutter(folder, spools, tally.records, old, hands)
    homeless = cutter.place()
    mean_bytes = tally.total_length / (tally.records - tally.refused)
    cut = sizing.cut(*homeless, round(homeless.records * mean_bytes))
    cutter.cut(cut.cost)
    write_manifest(folder.manifest, rows, cutter.locations, cutter.numbers, repeats, cutter.shards)
    about_records = {
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
    return about_records, cut


def _read(
    scratch: Path, config: Run, workload: Workload, options: Any, hands: Hands
) -> tuple[Spooled, list[dict[str, Any]]]:
    """Spool the records; return that, and what `plan.json` says of each input."""
    before = [_identity(path) for path in config.inputs]
    records = workload.records([Path(path) for path in config.inputs], options)
    spooled = read_records(records, config.workload, options, scratch, hands)
    inputs = _describe_inputs(config, spooled.tally)
    for path, identity in zip(config.inputs, before, strict=True):
        if _identity(path) != identity:
            raise UserError(f"{path}: it changed while it was read; run the same command again.")
    if spooled.tally.records == spooled.tally.refused:
        raise UserError(nothing_left(config, spooled.tally))
    return spooled, inputs


def _identity(path: str) -> tuple[int, int, int] | None:
    """Return what changes when a file is written to; None for none, which reading will tell."""
    if not Path(path).exists():
        return None
    about = Path(path).stat()
    return about.st_size, about.st_mtime_ns, about.st_ino


def nothing_left(config: Run, tally: Tally) -> str:
    """Return the sentence for an input of which no record is left to compute."""
    inputs = ", ".join(config.inputs)
    if not tally.records:
        return f"{inputs}: there is no record in the input; check the path in `inputs`."
    count, reason = min((-count, reason) for reason, count in tally.refusals.items())
    all_of_them = (
        "the only record was" if tally.records == 1 else f"all {tally.records:,} records were"
    )
    return (
        f"{inputs}: {all_of_them} refused, {-count:,} because: {reason}; "
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
