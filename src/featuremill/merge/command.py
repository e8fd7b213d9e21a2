"""merge: gather the parts into results in input order, and account for every record.

Reads plan.json, records.parquet, the receipts, the parts and, of failed records, the shards;
writes what the run asks for, failed.tsv, failed.fa and, last, manifest.json. Refuses to deliver
unless input = ok + failed + refused + duplicate, every part's bytes are those of its receipt, and
every row has the sha256 it should. `--partial` writes what there is by now, to a folder of its own;
then + pending belongs to the sum.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import pyarrow as pa

from featuremill.base import run_log
from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.locking import locked
from featuremill.base.progress import Progress
from featuremill.base.this_process import num_cores
from featuremill.base.words import counted
from featuremill.config import products, read_run
from featuremill.merge import accounts, delivery, samples
from featuremill.merge.by_shard import collected
from featuremill.merge.delivery import Source
from featuremill.merge.gather import Gatherer, in_order
from featuremill.merge.provenance import carried, delivery_of, provenance_of
from featuremill.store import ours, shared, stored
from featuremill.store.delivery import Accounts, Delivery, Written
from featuremill.store.files import remove_left, scratch
from featuremill.store.formats import (
    FAILED,
    NOTES,
    SAMPLES,
    format_of,
    index_of,
    names,
    outputs_of,
    sidecar_of,
)
from featuremill.store.parts import Part, open_source, refuse_taken
from featuremill.store.plan import Plan, PlannedShard
from featuremill.store.results import Results, enter
from featuremill.store.row_order import RowOrder, is_by_shard
from featuremill.store.shared_index import keep_index

Parts = list[Part | None]
log = logging.getLogger("featuremill.merge")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, help="results/<run>")
    parser.add_argument(
        "--outputs",
        nargs="*",
        choices=names(),
        help="default: those of run.json, else the last merge's, else parquet",
    )
    parser.add_argument("--max-failed", type=int, help="default: that of run.json, else 0")
    parser.add_argument("--threads", type=int, default=num_cores())
    parser.add_argument(
        "--order",
        choices=get_args(RowOrder),
        help="of the rows of results: that of run.json, else auto, which is the order of shards "
        "from some million records on",
    )
    parser.add_argument(
        "--partial",
        action="store_true",
        help="write what is computed by now, to partial/; ignores --max-failed",
    )


def run(arguments: argparse.Namespace) -> None:
    folder = Results(enter(arguments))
    threads = max(1, arguments.threads)
    outputs, max_failed = arguments.outputs, arguments.max_failed
    order: RowOrder = arguments.order or "auto"
    extra_fields: dict[str, Any] = {}
    run = read_run(folder) if folder.run.exists() else None
    if run:
        outputs = list(run.outputs) if outputs is None else outputs
        max_failed = run.max_failed if max_failed is None else max_failed
        order = arguments.order or run.order
        extra_fields = carried(run)
    elif outputs is None:
        outputs = _outputs(folder)
    for name in outputs:
        format_of(name)  # one that is broken is refused while the last results still stand
    pa.set_cpu_count(threads)
    if not folder.plan.exists():
        raise folder.has_no_plan()
    with run_log.line(folder.root, "merge") as line, waiting_for_others(folder):
        if arguments.partial:
            result = merge_partial(folder, outputs, threads, extra_fields)
        else:
            result = merge(folder, outputs, max_failed or 0, threads, extra_fields, order)
            if run:
                now = {"outputs": tuple(outputs), "max_failed": max_failed, "order": order}
                products.merged(run.model_copy(update=now), folder.root).note(is_new=True)
        line.text = f"{result.counts.in_words}: {', '.join(result.outputs)}"


@contextmanager
def waiting_for_others(folder: Results) -> Iterator[None]:
    """Wait until plan, retry and merge are done, and keep them away for the block: they write anew
    what is read here several times."""
    with ExitStack() as locks:
        for verb in ("plan", "merge"):
            say = partial(log.info, "another job is at %s.lock of this run; waiting", verb)
            locks.enter_context(locked(folder.store / f"{verb}.lock", say))
        yield


def _outputs(folder: Results) -> list[str]:
    """Return what the last merge wrote; the config, which knows, is only at hand in a workflow."""
    last = folder.find_delivery()
    written = last.outputs if last else {}
    if outputs := list(outputs_of(written).values()):
        return outputs
    log.info("writing parquet, as there was no merge before; --outputs names other formats")
    return ["parquet"]


def merge(
    folder: Results,
    outputs: list[str],
    max_failed: int,
    num_threads: int = 2,
    extra_fields: Mapping[str, Any] = MappingProxyType({}),
    order: RowOrder = "auto",
) -> Delivery:
    """Write the results of the plan in `folder`, with rows in this `order`; return the content of
    manifest.json, `extra_fields` included.

    Raises:
        IntegrityError: when a part is not what its receipt says, or the sums don't agree.
        UserError: when more records failed than `max_failed`; nothing is lost.
    """
    plan = folder.read_plan_of_records()
    listed = [folder.store / name for name in FAILED]
    with ExitStack() as stack:
        if is_by_shard(order, outputs, folder, plan):
            extra_fields = {**extra_fields, "row_order": "shard"}
            source: Source = stack.enter_context(collected(folder, plan, outputs, num_threads))
            delivery.clear(folder, outputs)
        else:
            parts, problems = open_parts(folder, plan, num_threads, only_look=False)
            if problems:
                others = f" ({len(problems) - 1} more like it)" if len(problems) > 1 else ""
                raise IntegrityError(f"{problems[0]}{others}")
            delivery.clear(folder, outputs)
            source = stack.enter_context(gathered(folder, plan, parts, num_threads))
        counts = count(source, plan, listed)
        if counts.failed > max_failed:
            raise UserError(_too_many(folder, counts, max_failed))
        ours.discard(folder.partial.root)
        result = _write(folder, plan, source, outputs, counts, extra_fields, listed[0])
    for path in listed:
        delivery.copy(path, folder.root / path.name)
    accounts.write_notes(folder.records, folder.root / NOTES, has_any=bool(plan.notes))
    ours.write_json(folder.delivery, result.content())
    stored.forget_delivered(folder, source.keys)
    if plan.store:
        shared.note_run(folder, plan, [receipt.part for receipt in result.receipts])
        with contextlib.suppress(OSError):  # the next plan does it
            keep_index(Path(plan.store[0]), plan.recipe)
    _say(folder, result)
    return result


def merge_partial(
    folder: Results,
    outputs: list[str],
    num_threads: int = 2,
    extra_fields: Mapping[str, Any] = MappingProxyType({}),
) -> Delivery:
    """Write what is computed of `folder`'s plan by now; return the content of the
    manifest.json.

    Results that are whole and of this plan make it needless: then theirs is returned.
    Records of damaged parts are pending.

    Raises:
        UserError: while another plan is being made.
    """
    try:
        plan = folder.read_plan_of_records()
    except IntegrityError:
        raise UserError(
            f"{folder.records}: it does not belong to {folder.plan.name}, as while a run plans; "
            "try again when it has planned."
        ) from None
    whole = folder.find_delivery()
    if whole and whole.is_of(plan):
        log.info("nothing is pending: the results in %s are complete.", folder.root)
        return whole
    parts, problems = open_parts(folder, plan, num_threads, only_look=True)
    for problem in problems:
        log.warning("%s", problem)
    ours.discard(folder.partial.root)
    results = folder.partial
    results.root.mkdir(exist_ok=True)
    is_empty = not any(parts)
    if is_empty:
        log.warning("no part is finished yet, so there are no values to write.")
    with gathered(folder, plan, parts, num_threads) as source:
        listed = [source.scratch / name for name in FAILED]
        counts = count(source, plan, listed)
        chosen, extra_fields = [] if is_empty else outputs, {**extra_fields, "partial": True}
        result = _write(folder, plan, source, chosen, counts, extra_fields, listed[0])
        for path in listed:
            delivery.copy(path, results.root / path.name)
    ours.write_json(results.delivery, result.content())
    _say(results, result)
    if counts.failed:
        log.info("max_failed does not count here; a whole merge will look at it.")
    return result


def _write(
    folder: Results,
    plan: Plan,
    source: Source,
    outputs: list[str],
    counts: Accounts,
    extra_fields: Mapping[str, Any],
    failures: Path,
) -> Delivery:
    """Write the result files and the table of samples, if there are any; return the content of
    their manifest.json."""
    is_partial = bool(extra_fields.get("partial"))
    results = folder.partial if is_partial else folder
    if source.samples:
        samples.write(source, folder.records, failures, results.root / SAMPLES, counts)
    else:
        ours.discard(results.root / SAMPLES)  # that of an earlier run
    receipts = [receipt for receipt in source.receipts if receipt]
    marks = {"partial": "true"} if is_partial else {}
    provenance = provenance_of(plan, receipts) | marks
    paths = {name: results.root / format_of(name).file for name in outputs}
    written = source.write(paths, provenance, counts.ok)
    content = delivery_of(plan, receipts, counts, written, extra_fields)
    warnings = [*content.warnings, *shared.problems(folder, plan)]
    update: dict[str, Any] = {"warnings": warnings}
    if not is_partial:
        of_sheet = [SAMPLES] if source.samples else []
        formats = [*map(format_of, outputs)]
        sidecars = [sidecar_of(format.file) for format in formats if format.has_sidecar]
        if extra_fields.get("row_order") == "shard":
            sidecars += [index_of(format.file) for format in formats]
        update["beside"] = [*FAILED, NOTES, *of_sheet, *sidecars]
    return content.model_copy(update=update)


def open_parts(
    folder: Results, plan: Plan, num_threads: int, only_look: bool
) -> tuple[Parts, list[IntegrityError]]:
    """Return all parts, None for damaged ones, and the errors of these."""

    def opened(source: PlannedShard) -> Part | IntegrityError | None:
        try:
            return open_source(folder, plan, source, only_look)
        except IntegrityError as problem:
            return problem

    shown = Progress(log, "checking the parts", "parts")
    answers: list[Part | IntegrityError | None] = []
    for answer in in_order(opened, plan.sources, num_threads):
        answers.append(answer)
        shown.at(len(answers), len(plan.sources))
    own = next((part for part in answers[: len(plan.shards)] if isinstance(part, Part)), None)
    for number in range(len(plan.shards), len(answers)):
        part = answers[number]
        if own and isinstance(part, Part) and not part.values.equals(own.values):
            answers[number] = refuse_taken(folder, part, only_look)
    problems = [part for part in answers if isinstance(part, IntegrityError)]
    return [None if isinstance(part, IntegrityError) else part for part in answers], problems


class InInputOrder(Gatherer):
    """The rows in the order of the input: sorted out of the parts."""

    keys = frozenset[str]()

    def account(self, table: Path, fasta: Path) -> Accounts:
        return accounts.account(self, table, fasta)

    def write(
        self, paths: Mapping[str, Path], provenance: dict[str, str], num_ok: int
    ) -> dict[str, Written]:
        return delivery.write(self, paths, provenance, num_ok, self.folder.root)


@contextmanager
def gathered(folder: Results, plan: Plan, parts: Parts, num_threads: int) -> Iterator[InInputOrder]:
    """Yield the rows of the run in the order of its input; a scratch folder exists meanwhile."""
    remove_left(folder.store / "merge")
    with scratch(folder.store / "merge") as scratch_folder:
        names = [source.shard for source in plan.sources]
        yield InInputOrder(folder, names, parts, scratch_folder, num_threads)


def count(source: Source, plan: Plan, listed: list[Path]) -> Accounts:
    """Count every input record, list those without values, and check the sums."""
    totals = source.account(*listed)
    if plan.store:
        num_taken = int(source.rows_of_shard[len(plan.shards) :].sum())
        totals = totals.model_copy(update={"taken": num_taken})
    planned = plan.counts
    if totals.input != planned.input or any(
        getattr(totals, kind) != getattr(planned, kind) for kind in ("refused", "duplicate")
    ):
        raise IntegrityError(
            f"merge: the records don't add up: plan.json has {planned.as_json()}, records.parquet "
            f"and parts {totals.as_json()}; delete plan.json and run the same command again."
        )
    return totals


def _too_many(folder: Results, counts: Accounts, max_failed: int) -> str:
    table, fasta = (folder.store / name for name in FAILED)
    sequences = f" and {fasta} their sequences" if fasta.stat().st_size else ""
    return (
        f"{counts.failed:,} of {counted(counts.input, 'record')} failed and max_failed is "
        f"{max_failed:,}: {table} has each one's reason{sequences}; "
        f"featuremill retry {folder.root} lets them be tried again, and a higher max_failed "
        "delivers the results of the others, which are computed and kept."
    )


def _say(folder: Results, result: Delivery) -> None:
    say = log.info if result.counts.has_all else log.warning
    say("%s", result.counts.in_words)
    for line in result.warnings:
        log.warning("%s", line)
    counts = result.counts
    files = [*result.outputs, *(FAILED if counts.failed or counts.refused else ())]
    log.info("results are in %s: %s", folder.root, ", ".join(files))
