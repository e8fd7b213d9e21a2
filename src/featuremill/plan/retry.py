"""retry: make failed records run again, and only those.

Reads plan.json, records.parquet, the receipts and the parts; writes the payloads of the failed
records as new shards at the end of the plan, and the rows of records.parquet so that they point
there. The old parts do not change, and still match their receipts; merge reads these records from
the new parts.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from featuremill.base.arguments import add_runs
from featuremill.base.arrays import digests
from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.id_columns import SAMPLE
from featuremill.base.locking import locked
from featuremill.base.reasons import KINDS, all_kinds, kind_of
from featuremill.base.words import counted, listed
from featuremill.config.project import runs_of
from featuremill.plan.shards import cuts, write_new
from featuremill.store import command_line, files, ours, run_lock
from featuremill.store.files import sha256_of
from featuremill.store.parts import failed_rows, open_part, read_shard, read_verified
from featuremill.store.plan import Plan, PlannedShard
from featuremill.store.records import samples_of, shard_numbers
from featuremill.store.results import Results
from featuremill.workload import know_reasons

Places = npt.NDArray[np.int64]
"""The index of a shard in the plan's list times 2**32, plus the row there; -1 for no place."""
ELSEWHERE = -1
ROW = 2**32 - 1
"""The bits of a place that are the row."""
FAILED = np.dtype(
    [("place", "i8"), ("kind", "O"), ("sha256", "S32"), ("cost", "i8"), ("num_rows", "i8")]
)
"""A failed record: the name of the kind of its reason, and the number of input records for which
this distinct one stands."""
Failed = npt.NDArray[np.void]
"""Failed records that the plan asks for, in the order of their places."""
MOST_NAMED = 20
"""Samples that a message lists."""
log = logging.getLogger("featuremill.retry")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)
    parser.add_argument(
        "--reason",
        action="append",
        metavar="KIND",
        help="only records that failed for a reason of this kind "
        f"({', '.join(kind.name for kind in KINDS)}, or a workload's own); may be given several "
        "times",
    )
    parser.add_argument(
        "--sample",
        action="append",
        metavar="NAME",
        help="only records of this sample; may be given several times",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would run again")


def run(arguments: argparse.Namespace) -> None:
    runs = runs_of(arguments.run_folder)
    planned = [Results(f) for f in runs.folders if Results(f).plan.exists()]
    planned = [folder for folder in planned if folder.store.is_dir()]
    if not planned:
        raise UserError(
            f"{Results(runs.folders[0]).plan}: there is no planned run here; make one first "
            f"({runs.again()})."
        )
    say = partial(log.info, "another job is at this run; waiting")
    with contextlib.ExitStack() as stack:
        for folder in planned:
            stack.enter_context(run_lock.alone(folder.root))
            stack.enter_context(locked(folder.store / "plan.lock", say))
            run_lock.refuse_jobs(folder.root)
        kinds, samples = arguments.reason or [], arguments.sample or []
        is_changed = retry(planned, kinds, arguments.dry_run, samples)
    if is_changed:
        log.info("now run: %s", runs.again())


def retry(
    folders: Sequence[Results],
    kinds: Sequence[str],
    is_dry_run: bool = False,
    samples: Sequence[str] = (),
) -> bool:
    """Plan the failed records of these kinds and samples (of all, when none is given) once more,
    and return whether there were any to plan. Records of other samples with the same payloads come
    along.

    The caller holds the runs' locks.

    Raises:
        UserError: when there is no such kind, or no record failed for one.
        IntegrityError: when a plan, its records.parquet or a shard is not what it should be.
    """
    plans = [folder.read_plan_of_records() for folder in folders]
    for plan in plans:
        know_reasons(plan.workload)
    known = [kind.name for kind in all_kinds()]
    if unknown := [kind for kind in kinds if kind not in known]:
        raise UserError(
            f"--reason {unknown[0]}: there is no such kind of reason; the kinds are "
            f"{', '.join(known)}."
        )
    for folder in folders:
        folder.refuse_what_was_cleaned()
        _refuse_unknown(folder, samples)
    failed = [_failed(folder, plan, samples) for folder, plan in zip(folders, plans, strict=True)]
    if not any(map(len, failed)):
        whose = f" of {', '.join(samples)}" if samples else ""
        log.info("no record%s failed: there is nothing to run again", whose)
        return False
    for kind in kinds:
        if not any((each["kind"] == kind).any() for each in failed):
            raise UserError(
                f"--reason {kind}: no record failed for it; there are {_by_kind(*failed)}."
            )
    for folder, plan, each in zip(folders, plans, failed, strict=True):
        where = f"{folder.root}: " if len(folders) > 1 else ""
        chosen = each[np.isin(each["kind"], list(kinds))] if kinds else each
        if not len(chosen):
            log.info("%sno such record failed", where)
            continue
        num_records = where + counted(int(chosen["num_rows"].sum()), "failed record")
        if is_dry_run:
            log.info("%s would run again: %s", num_records, _by_kind(chosen))
            continue
        targets, shards = _write_shards(folder, plan, chosen)
        _replace_plan(folder, plan, chosen, targets, shards)
        new = counted(len(shards), "new shard")
        log.info("%s will run again, in %s: %s", num_records, new, _by_kind(chosen))
    return not is_dry_run


def _refuse_unknown(folder: Results, samples: Sequence[str]) -> None:
    known = set(samples_of(folder.records).get(SAMPLE, ()))
    if unknown := [sample for sample in samples if sample not in known]:
        raise UserError(
            f"--sample {unknown[0]}: {folder.root} has no such sample; records.parquet there has "
            f"{listed(sorted(known)[:MOST_NAMED])}."
            if known
            else f"--sample {unknown[0]}: {folder.root} is a run without samples; leave it out."
        )


def _by_kind(*failed: Failed) -> str:
    """Return the number of input records of each kind, in words."""
    counts: Counter[str] = Counter()
    for each in failed:
        for kind, num_rows in each[["kind", "num_rows"]].tolist():
            counts[kind] += num_rows
    by_number = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{number:,} {kind}" for kind, number in by_number)


def _failed(folder: Results, plan: Plan, samples: Sequence[str]) -> Failed:
    """Return every failed record that the plan asks for, or that `samples` do, out of the parts
    that are finished."""
    recipe, num_left = plan.recipe, 0
    places_of_shard, kinds = [np.empty(0, np.int64)], list[str]()
    for number, shard in enumerate(plan.shards):
        receipt = folder.find_receipt(recipe, shard.shard)
        if receipt is None:
            num_left += 1
        elif receipt.failed:
            try:
                open_part(folder, plan, shard, only_look=True)
            except IntegrityError as problem:
                log.warning("%s", problem)
                num_left += 1
            else:
                rows, reasons = failed_rows(folder.part(recipe, shard.shard))
                places_of_shard.append((number << 32) + rows.astype(np.int64))
                kinds += [kind_of(reason).name for reason in reasons]
    if num_left:
        log.warning(
            "%s not finished: what fails there is not in this",
            f"{num_left:,} of {counted(len(plan.shards), 'shard')} "
            + ("is" if num_left == 1 else "are"),
        )
    failed = np.zeros(len(kinds), FAILED)
    failed["place"], failed["kind"] = np.concatenate(places_of_shard), kinds
    is_chosen = np.full(len(failed), not samples)
    for table, places in _places_in(folder.records, [source.shard for source in plan.sources]):
        at, is_there = _find(failed["place"], places)
        failed["sha256"][at] = digests(table["sha256"].filter(pa.array(is_there)))
        failed["cost"][at] = table["cost"].to_numpy()[is_there]
        np.add.at(failed["num_rows"], at, 1)
        if samples:
            names = table[SAMPLE].cast(pa.string()).filter(pa.array(is_there))
            is_chosen[at[np.asarray(pc.is_in(names, value_set=pa.array(samples)))]] = True
    chosen: Failed = failed[(failed["num_rows"] > 0) & is_chosen]
    return chosen


def _places_in(records_path: Path, shards: Sequence[str]) -> Iterator[tuple[pa.Table, Places]]:
    """Yield the row groups of records.parquet, and the place of each row in the plan's `shards`."""
    names = pa.array(shards, pa.string())
    with pq.ParquetFile(records_path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            number = shard_numbers(table, names, records_path)
            places = (number << 32) + table["row"].fill_null(0).to_numpy()
            yield table, np.where(number < 0, ELSEWHERE, places)


def _find(places: Places, wanted: Places) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return which of the sorted `places` are `wanted`, and which of `wanted` are among them."""
    if not len(places):
        return np.empty(0, np.int64), np.zeros(len(wanted), bool)
    at = np.minimum(np.searchsorted(places, wanted), len(places) - 1)
    is_there = places[at] == wanted
    return at[is_there], is_there


def _write_shards(folder: Results, plan: Plan, chosen: Failed) -> tuple[Places, list[PlannedShard]]:
    """Write the chosen records as new shards, after a check of those that hold them. Return the
    place of each record in the new shards, which are counted from 0, and the shards.

    Raises:
        IntegrityError: a shard is damaged; it is then set aside.
        UserError: a shard is gone.
    """
    paths = [folder.shard(shard.shard) for shard in plan.shards]
    for number in np.unique(chosen["place"] >> 32):
        if not paths[number].exists():
            raise UserError(
                f"{paths[number]}: this shard is gone; delete {folder.plan} and run it again "
                f"({command_line.again(folder.root)})."
            )
        read_verified(paths[number])
    order = np.argsort(chosen["sha256"])
    cost = chosen["cost"][order]
    largest = max(1, *(shard.cost for shard in plan.shards))
    targets = np.empty(len(order), np.int64)
    shards: list[PlannedShard] = []
    for ((_, start, end, shard_cost),) in cuts([(0, cost)], int(cost.sum()), len(cost), largest):
        piece = order[start:end]
        targets[piece] = (len(shards) << 32) + np.arange(len(piece))
        places, tables = chosen["place"][piece], []
        for number in np.unique(places >> 32):
            rows = places[places >> 32 == number] & ROW
            tables.append(read_shard(paths[number]).take(pa.array(rows)))
        table = pa.concat_tables(tables).combine_chunks()
        table = table.take(pa.array(np.argsort(digests(table["sha256"])))).combine_chunks()
        shards.append(write_new(folder, table, shard_cost))
    return targets, shards


def _replace_plan(
    folder: Results, plan: Plan, chosen: Failed, targets: Places, new: list[PlannedShard]
) -> None:
    """Put the new shards at the end of the plan and of records.parquet.

    plan.json is removed first and written last. Without it Snakemake plans again from the copy in
    the store, which lists the new shards by then. So a kill at any point leaves a plan that agrees
    with its records.parquet. What needs space on the disk is written before.
    """
    gone, gone_cost = np.zeros((2, len(plan.shards)), np.int64)
    np.add.at(gone, chosen["place"] >> 32, 1)
    np.add.at(gone_cost, chosen["place"] >> 32, chosen["cost"])
    kept = [
        replace(shard, wanted=shard.wanted - num, cost=shard.cost - cost) if num else shard
        for shard, num, cost in zip(plan.shards, gone.tolist(), gone_cost.tolist(), strict=True)
        if shard.wanted > num
    ]
    after = plan.model_copy(update={"shards": kept + new})
    targets = targets + (len(kept) << 32)
    with ours.delivering(folder.plan) as new_plan, ours.delivering(folder.records) as new_records:
        _move_rows(folder.records, new_records, plan, after, chosen["place"], targets)
        after = after.model_copy(update={"records_sha256": sha256_of(new_records)})
        after.write(folder.kept_plan)
        new_plan.write_text(files.as_text(files.sealed(after.as_json())), "utf-8")
        for old_file, new_file in ((folder.plan, new_plan), (folder.records, new_records)):
            # As old as before: an input that was edited meanwhile has to look newer to Snakemake.
            shutil.copystat(old_file, new_file)
        files.sync(new_plan)
        ours.vacate(folder.plan)
        for shard in new:
            _forget(folder, plan.recipe, shard.shard)


def _move_rows(
    records_path: Path, moved: Path, before: Plan, after: Plan, origins: Places, targets: Places
) -> None:
    """Write records.parquet to `moved`, with the records of the sorted `origins` at `targets`."""
    old, new = ([source.shard for source in plan.sources] for plan in (before, after))
    index, names = {name: number for number, name in enumerate(new)}, pa.array(new, pa.string())
    translation = np.array([index.get(name, ELSEWHERE) for name in old], np.int64)
    schema = pq.read_schema(records_path)
    with pq.ParquetWriter(moved, schema, compression="zstd") as writer:
        for table, places in _places_in(records_path, old):
            at, is_moved = _find(origins, places)
            shard, row = translation[places >> 32], places & ROW
            shard[is_moved], row[is_moved] = targets[at] >> 32, targets[at] & ROW
            numbers = pa.array(shard.astype(np.int32), mask=places < 0)
            columns = {name: table[name] for name in schema.names} | {
                "shard": pa.DictionaryArray.from_arrays(numbers, names),
                "row": pa.array(row.astype(np.int32), mask=places < 0),
            }
            writer.write_table(pa.table(list(columns.values()), schema=schema))


def _forget(folder: Results, recipe: str, shard: str) -> None:
    """Remove what is left of an earlier try of just these records, unless they went well in it.

    The results' manifest.json goes as well then: it names that part, and Snakemake has to see that
    merge must run again although the plan may be the same to the byte.
    """
    journal, part = folder.journal(recipe, shard), folder.part(recipe, shard)
    kept = folder.find_kept_receipt(recipe, shard)
    if kept is None or kept.failed:
        receipts = folder.receipt(recipe, shard), part.with_suffix(".json")
        ours.vacate(folder.delivery)
        for path in (*receipts, part, folder.telemetry(recipe, shard)):
            path.unlink(missing_ok=True)
    for path in (journal, journal.with_suffix(".log")):
        path.unlink(missing_ok=True)
