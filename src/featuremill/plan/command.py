"""plan: read every record once, decide what is computed in which shard, and write it down.

Reads the inputs and `weights/<name>.json`; writes the shards, `records.parquet` and, last,
`plan.json`. Knows nothing of torch. The last committed plan stays in the store, so that an edit of
the input costs only the records that are new.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.base import run_log
from featuremill.base.devices import planning_device
from featuremill.base.errors import UserError
from featuremill.base.id_columns import WHOLE
from featuremill.base.locking import locked
from featuremill.base.this_process import num_cores
from featuremill.base.words import counted
from featuremill.config import Run, products, read, read_run
from featuremill.inputs import samples
from featuremill.inputs.samples import Sheet
from featuremill.plan.announce import announce, sizes_of
from featuremill.plan.buckets import spool_old_shards
from featuremill.plan.needs import too_large
from featuremill.plan.processes import Processes
from featuremill.plan.reading import Spooled, read_records, refuse_nucleotides
from featuremill.plan.records import write_records
from featuremill.plan.shard_cost import Cut, Sizing, is_better
from featuremill.plan.shards import Cutter
from featuremill.plan.taken import NOTHING, Lookup, Offer, look_up
from featuremill.store import ours, shared, state
from featuremill.store.files import remove_left, scratch, sha256_of
from featuremill.store.formats import ABOUT, refuse_outputs
from featuremill.store.journal import COLUMNS
from featuremill.store.plan import Input, Plan
from featuremill.store.results import Results, enter
from featuremill.workload import Weights, plugin_errors
from featuremill.workload import weights as weights_verb
from featuremill.workload.option_files import execution_of
from featuremill.workload.recipe import recipe_of, settled

PLAN_VERSION = 1
RESERVED = {*ABOUT, *WHOLE, *(column.name for column in COLUMNS)}
"""Names of columns that a workload cannot give to its values."""
MAX_SHARED = 3
"""Files of several samples that are said one by one."""

log = logging.getLogger("featuremill.plan")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, help="results/<run>")
    parser.add_argument("--config", type=Path, help="YAML file of the run (run.json of its folder)")
    parser.add_argument("--weights", type=Path, help="weights/<name>.json, if the workload has any")
    parser.add_argument("--replan", action="store_true", help="cut every shard anew")
    parser.add_argument("--threads", type=int, help="processes that share the work (all cores)")


def run(arguments: argparse.Namespace) -> None:
    folder = Results(arguments.run_folder if arguments.config else enter(arguments))
    if arguments.config:
        config = read(arguments.config, has_weights=bool(arguments.weights))
    else:
        config = read_run(folder)
    weights = weights_verb.read(arguments.weights, config.workload) if arguments.weights else None
    if model := config.model:
        path = arguments.weights or Path(weights_verb.json_of(model, config.workload))
        command = weights_verb.command_for(model, config.workload, str(path))
        if not weights:
            raise UserError(
                f"plan: {model} needs its weights: {command}, then featuremill plan … --weights "
                f"{path}."
            )
        if weights_verb.are_of_another(path, model, config.workload):
            raise UserError(
                f"{path}: it is of other weights than {model}; {command} writes it anew."
            )
    with run_log.line(folder.root, "plan") as line:
        threads = arguments.threads
        planned = plan(folder, config, weights, arguments.weights, arguments.replan, threads)
        products.planned(config, folder.root).note(is_new=True)
        line.text = "; ".join(filter(None, (*sizes_of(folder, planned.plan), planned.why_cut)))


class Planned(NamedTuple):
    plan: Plan
    why_cut: str
    """A sentence about the size of new shards; "" if the config sets it."""
    read: Mapping[str, list[int]]
    """The looks of the inputs by path, before they were read."""


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
        last = None if replan else Plan.find(folder.kept_plan)
        remove_left(folder.store / "spool")
        with (
            scratch(folder.store / "spool") as spool_folder,
            Processes(threads or num_cores()) as processes,
        ):
            planning = Planning(folder, config, options, sizing, last, processes, spool_folder)
            planned = planning.write()
        result, why_cut, read = planned
        result.write(folder.kept_plan)
        ours.write_json(folder.plan, result.content())
        seen = {i.path: state.Seen(sha256=i.sha256, looks=read[i.path]) for i in result.inputs}
        state.State(config={}, inputs=seen).write(state.planned_inputs(folder.root))
        shared.note_run(folder, result)
    announce(folder, result, last, why_cut, sizing, config.outputs, config.order)
    if warning := too_large(config, device, weights, result):
        log.warning("%s", warning)
    return planned


class Assigned(NamedTuple):
    """Which record is computed in which shard."""

    cutter: Cutter
    stores: Sequence[Path]
    """Stores of several runs, the first of which is written."""
    offer: Offer
    has_new: bool
    """Whether shards were cut that the last plan has not."""
    why: str
    """A sentence on the size of new shards; empty where the config says it."""


class Planning(NamedTuple):
    """A plan that is being made."""

    folder: Results
    run: Run
    options: Any
    """The run's, with every "auto" settled."""
    sizing: Sizing
    last: Plan | None
    """The plan before, whose shards stay where that is possible."""
    processes: Processes
    scratch: Path

    def write(self) -> Planned:
        """Write shards and records.parquet; return the plan, which is not written yet."""
        sheet = samples.read(Path(self.run.samples)) if self.run.samples else None
        if sheet:
            sheet.refuse_missing()
            log.info("%s", sheet.summary)
            for file in sheet.shared[:MAX_SHARED]:
                log.warning("%s: %s is a file of several samples", sheet.path, file)
            if more := len(sheet.shared[MAX_SHARED:]):
                log.warning("%s: so are %s", sheet.path, counted(more, "other file"))
        spooled, inputs, read = self._read(sheet)
        repeats = spooled.repeats
        if spooled.tally.is_nucleotides:
            refuse_nucleotides(self.run.named, log)
        cut = self._cut(spooled)
        write_records(
            self.folder.records,
            spooled.rows,
            cut.cutter.locations,
            cut.cutter.numbers,
            repeats,
            cut.cutter.shards,
            sheet.about if sheet else {},
        )
        return Planned(self._plan(spooled, inputs, cut), cut.why, read)

    def _read(self, sheet: Sheet | None) -> tuple[Spooled, list[Input], dict[str, list[int]]]:
        """Spool the records; return that, what `plan.json` says of each input, and its looks."""
        files = Counter(self.run.files)
        before = _looks(files)
        spooled = read_records(self.run, self.options, self.scratch, self.processes, sheet)
        digests = self.processes.map(sha256_of, [(Path(name),) for name in files])
        inputs = [
            Input(
                path=name,
                bytes=Path(name).stat().st_size,
                records=spooled.tally.by_source[str(Path(name))] // times,
                sha256=sha256,
            )
            for (name, times), sha256 in zip(files.items(), digests, strict=True)
        ]
        if new := [path for path, looks in _looks(files).items() if looks != before[path]]:
            raise UserError(f"{new[0]}: it changed while it was read; run the same command again.")
        return spooled, inputs, before

    def _cut(self, spooled: Spooled) -> Assigned:
        """Give each record a shard: an old one, one of a store, or a new one."""
        folder, sizing, tally = self.folder, self.sizing, spooled.tally
        names = [entry.shard for entry in self.last.shards] if self.last else []
        recipe = recipe_of(sizing.settings)
        old = spool_old_shards(folder, names, self.scratch / "old")
        not_computed = {name for name in names if not folder.part(recipe, name).exists()}
        cutter = Cutter(folder, spooled.folders, tally.records, old, self.processes, not_computed)
        own, offer = cutter.keep(), NOTHING
        if stores := shared.open_layers(self.run.store):
            layers = shared.layers(self.run.store)
            remote = [layer for layer in layers if shared.is_remote(layer)]
            lookup = Lookup(folder, stores, remote, sizing.settings, sizing.values, own)
            offer = look_up(lookup, spooled.folders, self.scratch, self.processes)
        mean_bytes = tally.total_bytes / (tally.records - tally.refused)

        def cut_of(cost: int, records: int) -> Cut:
            return sizing.cut(cost, records, round(records * mean_bytes))

        unassigned = cutter.assign(offer)
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
        has_new = unassigned.cost > 0 or held.shards > 0
        return Assigned(cutter, stores, offer, has_new, cut.why)

    def _plan(self, spooled: Spooled, inputs: list[Input], cut: Assigned) -> Plan:
        run, sizing, tally, last = self.run, self.sizing, spooled.tally, self.last
        taken = cut.offer.taken(cut.cutter.shards)
        from_stores: dict[str, Any] = {}
        if cut.stores:
            from_stores = {"store": list(map(str, cut.stores)), "taken": taken}
        not_in_recipe = {*execution_of(type(self.options))}
        return Plan(
            version=PLAN_VERSION,
            run=run.run,
            workload=run.workload,
            workload_version=run.module.VERSION,
            cost_unit=run.module.COST_UNIT,
            recipe=recipe_of(sizing.settings),
            settings=sizing.settings,
            execution=self.options.model_dump(mode="json", include=not_in_recipe),
            asked=products.options_of_values(run),
            device=run.device,
            gpus=run.gpus,
            slots=sizing.slots if cut.has_new or last is None else last.slots,
            weights=str(sizing.weights) if sizing.weights else None,
            inputs=inputs,
            counts=spooled.counts(cut.cutter.unique),
            notes=dict(sorted(tally.notes.items())),
            refusals=dict(sorted(tally.refusals.items())),
            lengths=spooled.lengths,
            records_sha256=sha256_of(self.folder.records),
            shards=[each for each in cut.cutter.shards if each.shard not in cut.offer.paths],
            **from_stores,
        )


def _looks(files: Iterable[str]) -> dict[str, list[int]]:
    """Return the looks of the files that exist; reading reports the others."""
    return {path: state.looks(Path(path)) for path in files if Path(path).exists()}
