"""One transfer: labels and their vectors in memory, the other records block by block."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from featuremill import features
from featuremill.features import Features, Listed, Matrix, Rows
from featuremill.features.nearest import Found, Mask, Metric, NotFiniteError, nearest_in_memory
from featuremill.inputs import labels
from featuremill.inputs.labels import Label
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering, sha256_of, write_json
from featuremill.kit.processes import VERSION
from featuremill.kit.text import Progress, clipped, counted, records
from featuremill.kit.tsv import TsvWriter
from featuremill.steps.transfer.table import TABLE

NORMAL = 1.959964
"""Standard deviations of a 95 % interval."""
log = logging.getLogger("featuremill.transfer")


class Chosen(NamedTuple):
    """What is asked for."""

    run_folder: Path
    reference: Path | None
    labels: Path
    column: str
    group: str | None
    vectors: str | None
    k: int
    metric: Metric
    output: Path
    id_column: str | None = None
    """The table's column of ids, if not found by its name."""


class Row(NamedTuple):
    """A row of the table."""

    id: str
    label: str
    """That of most of its neighbours; of those that are as frequent, the nearest one's."""
    agree: int
    """Neighbours that have this label."""
    neighbours: int
    """Those that voted."""
    nearest: str
    """The whole id of the nearest one that has this label."""
    distance: str
    """Of that one."""
    known: str
    """The label that the record has itself, which did not vote."""


class Missing(NamedTuple):
    """A record that gets no label, and why."""

    id: str
    reason: str


class Known(NamedTuple):
    """The labelled records of the reference, by their sha256 and then their id: of equally near
    ones the first vote, so no label depends on the order of a run's rows."""

    ids: list[str]
    labels: list[str]
    sha256: list[str]
    """Of their payloads."""
    groups: list[str]
    """Of each; without groups, its payload's sha256."""
    vectors: Matrix
    nearest: list[Found]
    """The nearest to each, without itself, those with its payload and those of its group."""
    metric: Metric

    def row(self, id: str, nearest: Found, known: str) -> Row:
        """Return the row of a record."""
        names = [self.labels[row] for row in nearest.rows.tolist()]
        votes = Counter(names)
        agree = max(votes.values())
        index = next(index for index, name in enumerate(names) if votes[name] == agree)
        score = float(nearest.scores[index])
        distance = round(1 - score if self.metric == "cosine" else score, 12)
        nearest_id = self.ids[int(nearest.rows[index])]
        return Row(id, names[index], agree, len(names), nearest_id, f"{distance:.9g}", known)


def transfer(chosen: Chosen) -> None:
    """Write the table, the records without a label, and what is known of its accuracy.

    Raises:
        UserError: when features, labels or the output are not fit for it.
    """
    try:
        _transfer(chosen)
    except NotFiniteError:  # each number is finite: `_refuse_not_finite`
        raise UserError(
            f"{chosen.run_folder}: some vectors have numbers too large to compute distances; scale "
            "the features, or use others."
        ) from None


def _transfer(chosen: Chosen) -> None:
    if chosen.output.suffix != ".tsv":
        raise UserError(f"{chosen.output}: the table is a .tsv; give a name that ends so.")
    if chosen.k < 1:
        raise UserError(f"--k {chosen.k}: give 1 or more.")
    target = features.open(chosen.run_folder, chosen.vectors, choosing="--vectors")
    reference = target
    if chosen.reference not in (None, chosen.run_folder):
        reference = features.open(chosen.reference, chosen.vectors, choosing="--vectors")
        _refuse_other_features(target, reference)
    labels_of_records = labelled(reference, chosen, log)
    known = _known(reference, labels_of_records, chosen)
    card, missing, table = map(Path, TABLE.files(str(chosen.output)))
    counts = Counter[str]()
    with delivering(table, is_named=True) as rows_path, delivering(missing) as missing_path:
        with (
            rows_path.open("w", encoding="utf-8", newline="") as rows_file,
            missing_path.open("w", encoding="utf-8", newline="") as missing_file,
        ):
            rows = TsvWriter(rows_file, [*target.id_columns.names, *Row._fields[1:]])
            lacking = TsvWriter(missing_file, [*target.id_columns.names, *Missing._fields[1:]])
            for row in chain(_rows(target, known, target is reference, chosen.k), _failed(target)):
                counts["transferred" if isinstance(row, Row) else "without"] += 1
                table_of_row = rows if isinstance(row, Row) else lacking
                table_of_row.row([*target.id_columns.cells(row.id), *row[1:]])
        facts = _card(chosen, target, reference, known)
        facts["counts"] = {key: counts[key] for key in ("transferred", "without")} | {
            "labelled": len(known.ids),
            "labels_without_vector": len(labels_of_records.of_id) - len(known.ids),
            "rows_without_label": labels_of_records.num_empty,
        }
        write_json(card, facts)
    _say(chosen, facts)


def _refuse_other_features(target: Features, reference: Features) -> None:
    recipe, other = (f"{each.recipe} ({each.column})" for each in (target, reference))
    if recipe != other:
        raise UserError(
            f"{reference.name}: the recipe of its features is {other}, and that of {target.name} "
            f"is {recipe}, so distances between them mean nothing; compute both by one recipe."
        )


class Labelled(NamedTuple):
    """The labels of records, by their ids."""

    of_id: Mapping[str, Label]
    num_empty: int
    """Rows of the table without one."""
    rows: Rows
    """The records that have one, in order."""


def labelled(reference: Listed, chosen: Chosen, log: logging.Logger | None) -> Labelled:
    """Return the labels of the records of the reference; `log` warns of those that are of none.

    Raises:
        UserError: the table cannot be read, or is not of these records.
    """
    id_columns = reference.id_columns
    of_id, num_empty = labels.read(
        chosen.labels, chosen.column, chosen.group, id_columns, chosen.id_column or "", log=log
    )
    records = labels.NamedRecords(f"record of {reference.name}", id_columns, log)
    of_id = labels.by_record(of_id, chosen.labels, [reference], records)
    rows = np.array(sorted(reference.rows_of(of_id).values()), np.int64)
    if not len(rows):
        first_id = reference.ids_of(np.arange(1))[0]
        raise UserError(
            f"{chosen.labels}: none of its {len(of_id):,} ids has features in {reference.name}: "
            f"its first is {clipped(next(iter(of_id)))!r}, the run's first is "
            f"{clipped(first_id)!r}; write the ids as the run has them."
        )
    return Labelled(of_id, num_empty, rows)


def _known(reference: Features, known: Labelled, chosen: Chosen) -> Known:
    """Return the labelled records with vectors, and the nearest of each."""
    labelled, rows = known.of_id, known.rows[np.argsort(reference.ranks_of(known.rows))]
    record_of = reference.records_of(rows)
    ids = [record_of[row].id for row in rows.tolist()]
    sha256 = [record_of[row].sha256 for row in rows.tolist()]
    vectors = reference.take(rows)
    _refuse_not_finite(reference, ids, vectors)
    if num_lost := len(labelled) - len(ids):
        says = counted(num_lost, "label is", "labels are")
        log.info("%s of no record with features in %s", says, reference.name)
    log.info(
        "%s of %s with a label, %s numbers each; %s",
        f"{len(ids):,}",
        records(reference.num_rows),
        f"{reference.width:,}",
        f"no {chosen.group} votes for its own" if chosen.group else "no record votes for itself",
    )
    payload_N = np.unique(sha256, return_inverse=True)[1]
    groups = [labelled[id].group for id in ids] if chosen.group else sha256
    group_N = np.unique(groups, return_inverse=True)[1]

    def are_related(queries: slice, rows: slice) -> Mask:
        pairs: Mask = group_N[queries, None] == group_N[rows]
        pairs |= payload_N[queries, None] == payload_N[rows]
        return pairs

    nearest: list[Found] = []
    progress = Progress(log, "leaving out one by one")
    for hits in nearest_in_memory(vectors, vectors, chosen.k, chosen.metric, are_related):
        nearest.append(hits)
        progress.at(len(nearest), len(ids))
    names = [labelled[id].name for id in ids]
    return Known(ids, names, sha256, groups, vectors, nearest, chosen.metric)


def _refuse_not_finite(part: Features, ids: Sequence[str], vectors: Matrix) -> None:
    if not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(1))[0])
        raise UserError(
            f"{part.name}: the vector of record {clipped(ids[row])!r} in {part.column} has a "
            "number that is not finite, so it has no distance; leave that record out, or have its "
            "features computed anew."
        )


def _rows(target: Features, known: Known, is_same: bool, k: int) -> Iterator[Row | Missing]:
    """Yield the row of each record of the features, or why it has none, in their order."""
    index_of = {id: index for index, id in enumerate(known.ids)}
    progress, first = Progress(log, "looking for the nearest"), 0
    for ids, vectors in target.blocks():
        _refuse_not_finite(target, ids, vectors)
        own_place = {position: index_of[id] for position, id in enumerate(ids) if id in index_of}
        if not is_same and own_place:  # another record of the same name counts
            records = target.records_of(first + np.array(list(own_place)))
            own_place = {
                position: index
                for position, index in own_place.items()
                if records[first + position].sha256 == known.sha256[index]
            }
        others = np.array(
            [position for position in range(len(ids)) if position not in own_place], np.int64
        )
        nearest = nearest_in_memory(known.vectors, vectors[others], k, known.metric)
        for position, id in enumerate(ids):
            if position not in own_place:
                yield known.row(id, next(nearest), "")
            elif len((voters := known.nearest[own_place[position]]).rows):
                yield known.row(id, voters, known.labels[own_place[position]])
            else:
                reason = "all labelled records are of its group or have its sequence"
                yield Missing(id, reason)
        first += len(ids)
        progress.at(first, target.num_rows)


def _failed(target: Features) -> Iterator[Missing]:
    for failure in target.failures():
        yield Missing(failure.id, f"{failure.status}: {failure.reason}")


def _card(chosen: Chosen, target: Features, reference: Features, known: Known) -> dict[str, Any]:
    runs = dict.fromkeys([chosen.run_folder, chosen.reference or chosen.run_folder])
    made_of = [chosen.labels, *(run / "manifest.json" for run in runs)]
    return {
        "featuremill": VERSION,
        "made_of": {str(path): sha256_of(path) for path in made_of},
        "labels": str(chosen.labels),
        "column": chosen.column,
        "group": chosen.group,
        "of": {"run": target.name, "recipe": target.recipe, "column": target.column},
        "reference": {"run": reference.name, "recipe": reference.recipe},
        "k": chosen.k,
        "metric": chosen.metric,
        "leave_one_out": _leave_one_out(known),
    }


def _leave_one_out(known: Known) -> dict[str, Any]:
    """Return how often a labelled record gets its own label."""
    judged = [index for index, voters in enumerate(known.nearest) if len(voters.rows)]
    names = [known.labels[index] for index in judged]
    groups = [known.groups[index] for index in judged]
    transferred = [known.row("", known.nearest[index], "").label for index in judged]
    right = [label == known_label for label, known_label in zip(transferred, names, strict=True)]
    low, high = interval(right, groups)
    commonest = max(Counter(names).values(), default=0)
    return {
        "records": len(right),
        "groups": len(set(groups)),
        "accuracy": sum(right) / len(right) if right else None,
        "interval": [low, high],
        "commonest_label": commonest / len(right) if right else None,
    }


def interval(
    right: Sequence[bool], groups: Sequence[str]
) -> tuple[float, float] | tuple[None, None]:
    """Return Wilson's 95 % interval of the share that is right, as if those of a group were all
    right or all wrong: of (sum of sizes)² / sum of sizes² trials (Kish, Survey Sampling, 1965)."""
    if not right:
        return None, None
    sizes = Counter(groups).values()
    trials = len(right) ** 2 / sum(size**2 for size in sizes)
    share, spread = sum(right) / len(right), NORMAL**2 / trials
    half = math.sqrt(spread * (share * (1 - share) + spread / 4))
    low, high = ((share + spread / 2 + sign * half) / (1 + spread) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


def _say(chosen: Chosen, facts: Mapping[str, Any]) -> None:
    counts, judged = facts["counts"], facts["leave_one_out"]
    log.info("%s: %s", chosen.output, records(counts["transferred"]))
    if judged["records"]:
        low, high = judged["interval"]
        log.info(
            "leaving out each labelled record: accuracy %.3f (95 %% interval %.3f to %.3f; the "
            "commonest label alone %.3f).",
            judged["accuracy"],
            low,
            high,
            judged["commonest_label"],
        )
    if num_without := counts["without"]:
        _, missing, _ = TABLE.files(str(chosen.output))
        says = counted(num_without, "record has no label", "records have no label")
        log.warning("%s: %s lists them.", says, missing)
