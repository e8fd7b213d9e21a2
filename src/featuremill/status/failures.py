"""Failed and refused records by reason, before failed.tsv exists: reasons of failed rows from the
parts, ids and reasons of refused records from records.parquet."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from featuremill.base.id_columns import IdColumns
from featuremill.base.text import clipped
from featuremill.store.failed import MOST_EXAMPLES, Example, Group, Reason, by_number, reason_of
from featuremill.store.parts import failed_rows
from featuremill.store.plan import Plan
from featuremill.store.records import whole_ids, with_keys
from featuremill.store.results import Results


def read_failures(
    results: Results, plan: Plan, failed: Mapping[str, Mapping[int, Reason]]
) -> tuple[list[Group], bool]:
    """Return the failed and refused input records by reason, and whether records.parquet can be
    read; `failed` has the failed rows of each part."""
    counts: Counter[Reason] = Counter()
    for text, number in plan.refusals.items():
        counts[reason_of("refused", text)] += number
    try:
        num_failed, examples, samples = _count_in(results.records, failed, list(counts))
        is_readable = True
    except (OSError, LookupError, pa.ArrowException):
        num_failed, examples, samples, is_readable = Counter(), {}, {}, False
        for rows in failed.values():
            num_failed.update(rows.values())
    counts += num_failed
    groups = [
        Group(*reason, n, examples.get(reason, []), samples=by_number(samples.get(reason, {})))
        for reason, n in counts.items()
    ]
    groups.sort(key=lambda group: (group.status, -group.number, group.kind, group.reason))
    return groups, is_readable


def failed_in_part(results: Results, recipe: str, shard: str) -> dict[int, Reason]:
    """Return the shard's rows that failed, each with its reason."""
    try:
        rows, texts = failed_rows(results.part(recipe, shard))
    except (OSError, pa.ArrowInvalid):  # --verify reports it
        return {}
    return dict(zip(rows.tolist(), (reason_of("failed", text) for text in texts), strict=True))


def _count_in(
    records_path: Path, failed: Mapping[str, Mapping[int, Reason]], refused: list[Reason]
) -> tuple[Counter[Reason], dict[Reason, list[Example]], dict[Reason, Counter[str]]]:
    """Return three values by reason: how many records of records.parquet are in `failed` rows of
    shards; examples of these and of the `refused` reasons; how many failed in each sample."""
    samples: defaultdict[Reason, Counter[str]] = defaultdict(Counter)
    counts: Counter[Reason] = Counter()
    examples: defaultdict[Reason, list[Example]] = defaultdict(list)
    places = [(name, row, reason) for name, rows in failed.items() for row, reason in rows.items()]
    names, rows, reasons = zip(*places, strict=True) if places else ((), (), ())
    number = pa.array(range(len(places)), pa.int64())
    wanted = pa.table(
        {"shard": pa.array(names, pa.string()), "row": pa.array(rows, pa.int32()), "place": number}
    )
    with pq.ParquetFile(records_path) as file:
        id_columns = IdColumns.among(file.schema_arrow.names)
        for group in range(file.num_row_groups):
            failures: list[tuple[int, Reason]] = []
            if places:
                failures += _failed_in(file, group, wanted, reasons)
                counts.update(reason for _, reason in failures)
            for key in id_columns.keys if failures else ():
                of_row = file.read_row_group(group, [key])[key]
                for at, reason in failures:
                    samples[reason][of_row[at].as_py()] += 1
            if any(len(examples[reason]) < MOST_EXAMPLES for reason in refused):
                texts = file.read_row_group(group, ["reason"])["reason"]
                refusals = pc.indices_nonzero(texts.is_valid()).to_pylist()  # without pandas
                failures += [(at, reason_of("refused", texts[at].as_py())) for at in refusals]
            elif not places:
                break
            shown = [pair for pair in failures if len(examples[pair[1]]) < MOST_EXAMPLES]
            if shown:
                ids = whole_ids(with_keys(file.read_row_group(group, id_columns.names)))
            for at, reason in shown:
                if len(examples[reason]) < MOST_EXAMPLES:
                    examples[reason].append(Example(clipped(ids[at].as_py())))
    return counts, examples, samples


def _failed_in(
    file: pq.ParquetFile, group: int, wanted: pa.Table, reasons: tuple[Reason, ...]
) -> list[tuple[int, Reason]]:
    """Return the position in the row group of each failed record, and why it failed."""
    table = file.read_row_group(group, ["shard", "row"])
    table = table.set_column(0, "shard", table["shard"].cast(pa.string()))
    table = table.append_column("at", pa.array(range(len(table)), pa.int64()))
    table = table.join(wanted, ["shard", "row"], join_type="inner").sort_by("at")
    at, places = table["at"].to_pylist(), table["place"].to_pylist()
    return [(at, reasons[number]) for at, number in zip(at, places, strict=True)]
