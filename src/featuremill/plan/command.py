"""plan: read every record once, decide what is computed in which shard, and write it down.

Reads the inputs and `weights/<name>.json`; writes the shards, `records.parquet` and, last,
`plan.json`. Knows nothing of torch. The last committed plan stays in the store, so that an edit of
the input costs only the records that are new.
"""

from __future__ import annotations

import argparse
import logging
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.base import run_log
from featuremill.base.errors import UserError
from featuremill.base.locking import locked
from featuremill.base.this_process import num_cores
from featuremill.base.words import counted
from featuremill.config import Run, read, read_run
from featuremill.config.asked import options_asked
from featuremill.inputs import samples
from featuremill.inputs.samples import Sheet
from featuremill.lease.devices import planning_device
from featuremill.plan import nucleotides
from featuremill.plan.announce import announce, sizes_of
from featuremill.plan.buckets import spool_old_shards
from featuremill.plan.processes import Processes
from featuremill.plan.reading import Spooled, read_records
from featuremill.plan.records import write_records
from featuremill.plan.shards import Cutter
from featuremill.plan.sizing import Cut, Sizing, is_better
from featuremill.plan.taken import NOTHING, Lookup, look_up
from featuremill.store import ours, shared
from featuremill.store.files import sha256_of
from featuremill.store.formats import ABOUT, refuse_outputs
from featuremill.store.journal import COLUMNS
from featuremill.store.ledger import SAMPLE
from featuremill.store.plan import Input, Plan
from featuremill.store.results import Results
from featuremill.workload import Weights, plugin_errors
from featuremill.workload import weights as weights_verb
from featuremill.workload.option_files import execution_of
from featuremill.workload.recipe import recipe_of, settled

PLAN_VERSION = 1
RESERVED = {*ABOUT, SAMPLE, *(column.name for column in COLUMNS)}
"""Names of columns that a workload cannot give to its values."""
MAX_SHARED = 3
"""Files of several samples that are said one by one."""

log = logging.getLogger("featuremill.plan")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `featuremill plan`."""
    parser.add_argument("run_folder", type=Path, help="results/<run>")
    parser.add_argument("--config", type=Path, help="YAML file of the run (run.json of its folder)")
    parser.add_argument("--weights", type=Path, help="weights/<name>.json, if the workload has any")
    parser.add_argument("--replan", action="store_true", help="cut every shard anew")
    parser.add_argument("--threads", type=int, help="processes that share the work (all cores)")


def run(arguments: argparse.Namespace) -> None:
    """Carry out `featuremill plan`."""
    folder = Results(arguments.run_folder)
    if arguments.config:
        config = read(arguments.config, has_weights=bool(arguments.weights))
    else:
        config = read_run(folder)
    if config.model and not arguments.weights:
        path = weights_verb.json_of(config.model, config.workload)
        command = weights_verb.command_for(config.model, config.workload, path)
        raise UserError(
            f"plan: {config.model} needs its weights: {command}, then featuremill plan … --weights "
            f"{path}."
        )
    weights = weights_verb.read(arguments.weights, config.workload) if arguments.weights else None
    with run_log.line(folder.root, "plan") as line:
        made = plan(folder, config, weights, arguments.weights, arguments.replan, arguments.threads)
        line.text = "; ".join(filter(None, (*sizes_of(folder, made.plan), made.why_cut)))


class Planned(NamedTuple):
    """What planning came to."""

    plan: Plan
    why_cut: str
    """What there is to say of the size of new shards; empty where the config says it."""


def plan(
    folder: Results,
    config: Run,
    weights: Weights | None,
    weights_path: Path | None = None,
    replan: bool = False,
    threads: int | None = None,
) -> Planned:
    """Plan `config` into `folder`.

    As many `threads` (all cores, if there is no number) share the work on a large input; what comes
    out does not depend on them.

    Raises:
        UserError: for inputs that cannot be read, options that cannot be met, and ids that stand
            for two different payloads. Nothing of an earlier plan is lost then.
    """
    workload = config.module
    device = planning_device(config.device)
    options, settings = settled(config.workload, workload, config.options, device, weights)
    values = plugin_errors.schema_of(config.workload, workload, options, weights, RESERVED)
    refuse_outputs(config.outputs, values)
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
            last = None if replan else Plan.find(folder.store / "plan.json")
            with Processes(threads or num_cores()) as processes:
                result, why_cut = _planned(folder, config, options, sizing, last, processes)
        finally:
            shutil.rmtree(spool_folder, ignore_errors=True)
        result.write(folder.store / "plan.json")
        ours.write_json(folder.plan, result.content())
        shared.note_run(folder, result)
    announce(folder, result, last, why_cut, sizing, config.outputs)
    return Planned(result, why_cut)


def _planned(
    folder: Results,
    config: Run,
    options: Any,
    sizing: Sizing,
    last: Plan | None,
    processes: Processes,
) -> Planned:
    """Read the records, write shards and manifest; return the plan, which is not written yet."""
    scratch = folder.store / "spool"
    scratch.mkdir()
    sheet = samples.read(Path(config.samples)) if config.samples else None
    if sheet:
        _check(sheet)
    spooled, inputs = _read(scratch, config, sheet, options, processes)
    tally, repeats = spooled.tally, spooled.repeats
    if tally.is_nucleotides:
        nucleotides.refuse(config.inputs or [config.samples], log)
    names = [entry.shard for entry in last.shards] if last else []
    recipe = recipe_of(sizing.settings)
    old = spool_old_shards(folder, names, scratch / "old")
    not_computed = {name for name in names if not folder.part(recipe, name).exists()}
    cutter = Cutter(folder, spooled.folders, tally.records, old, processes, not_computed)
    own, offer = cutter.keep(), NOTHING
    if stores := shared.open_layers(config.store):
        remote = [layer for layer in shared.layers(config.store) if shared.is_remote(layer)]
        lookup = Lookup(folder, stores, remote, sizing.settings, sizing.values, own)
        offer = look_up(lookup, spooled.folders, scratch, processes)
    mean_bytes = tally.total_bytes / (tally.records - tally.refused)

    def cut_of(cost: int, records: int) -> Cut:
        return sizing.cut(cost, records, round(records * mean_bytes))

    unassigned = cutter.place(offer)
    not_begun = set(names) - folder.begun_shards()
    held = cutter.used_of(not_begun)
    if held.shards:
        now = held.shards + cut_of(*unassigned).shards(unassigned.cost)
        cost = unassigned.cost + held.cost
        anew = cut_of(cost, unassigned.records + held.records).shards(cost)
        if is_better(anew, now) or cutter.num_lost_by(not_begun):
            unassigned = cutter.release(not_begun)
    cut = cut_of(*unassigned)
    cutter.cut(cut.cost)
    is_any_new = unassigned.cost > 0 or held.shards > 0
    write_records(
        folder.records,
        spooled.rows,
        cutter.locations,
        cutter.numbers,
        repeats,
        cutter.shards,
        sheet.about if sheet else {},
    )
    taken = offer.taken(cutter.shards)
    from_stores: dict[str, Any] = {}
    if stores:
        from_stores = {"store": list(map(str, stores)), "taken": taken}
    result = Plan(
        version=PLAN_VERSION,
        run=config.run,
        workload=config.workload,
        workload_version=config.module.VERSION,
        cost_unit=config.module.COST_UNIT,
        recipe=recipe,
        settings=sizing.settings,
        execution=options.model_dump(mode="json", include=execution_of(type(options))),
        asked=options_asked(config),
        device=config.device,
        gpus=config.gpus,
        slots=sizing.slots if is_any_new or last is None else last.slots,
        weights=str(sizing.weights) if sizing.weights else None,
        inputs=inputs,
        counts=spooled.counts(cutter.unique),
        notes=dict(sorted(tally.notes.items())),
        refusals=dict(sorted(tally.refusals.items())),
        lengths=spooled.lengths,
        records_sha256=sha256_of(folder.records),
        shards=[shard for shard in cutter.shards if shard.shard not in offer.paths],
        **from_stores,
    )
    return Planned(result, cut.why)


def _read(
    scratch: Path,
    config: Run,
    sheet: Sheet | None,
    options: Any,
    processes: Processes,
) -> tuple[Spooled, list[Input]]:
    """Spool the records; return that, and what `plan.json` says of each input."""
    files = Counter(config.files)
    before = [_identity(path) for path in files]
    spooled = read_records(config, options, scratch, processes, sheet)
    inputs = [
        Input(
            path=name,
            bytes=Path(name).stat().st_size,
            records=spooled.tally.by_source[str(Path(name))] // times,
            sha256=sha256_of(Path(name)),
        )
        for name, times in files.items()
    ]
    for path, identity in zip(files, before, strict=True):
        if _identity(path) != identity:
            raise UserError(f"{path}: it changed while it was read; run the same command again.")
    return spooled, inputs


def _check(sheet: Sheet) -> None:
    """Refuse a sheet whose files are not there, and say what it comes to."""
    sheet.refuse_missing()
    log.info("%s", sheet.told)
    for file in sheet.shared[:MAX_SHARED]:
        log.warning("%s: %s is a file of several samples", sheet.path, file)
    if more := len(sheet.shared[MAX_SHARED:]):
        log.warning("%s: so are %s", sheet.path, counted(more, "other file"))


def _identity(path: str) -> tuple[int, int, int] | None:
    """Return what changes when a file is written to; None for none, which reading will tell."""
    if not Path(path).exists():
        return None
    about = Path(path).stat()
    return about.st_size, about.st_mtime_ns, about.st_ino
