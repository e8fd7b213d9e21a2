"""One transfer: labels and their vectors in memory, the other records block by block."""

from __future__ import annotations

import csv
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill import features
from featuremill.features import Features, split_id
from featuremill.inputs import labels
from featuremill.inputs.labels import Label
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering, sha256_of, write_json
from featuremill.kit.processes import VERSION
from featuremill.kit.text import Progress, clipped, counted, one_line, records
from featuremill.steps.transfer import TABLE
from featuremill.steps.transfer.neighbours import Found, Matrix, Metric, Reference

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
    id_column: str = ""
    """Of the table, if not found by its name."""


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
    """The nearest one that has this label: its id or, of samples, `<sample>/<id>`."""
    distance: str
    """Of that one."""
    known: str
    """The label that the record has itself, which did not vote."""


class Missing(NamedTuple):
    """A record that gets no label, and why."""

    id: str
    reason: str


class Known(NamedTuple):
    """The labelled records of the reference, in its order."""

    ids: list[str]
    labels: list[str]
    sha256: list[str]
    """Of their payloads."""
    groups: list[str]
    """Of each; without groups, its payload's sha256."""
    reference: Reference
    found: list[Found]
    """The nearest of each, without itself, those with its payload and those of its group."""

    def row(self, id: str, found: Found, known: str) -> Row:
        """Return the row of a record."""
        names = [self.labels[row] for row in found.rows.tolist()]
        votes = Counter(names)
        agree = max(votes.values())
        place = next(place for place, name in enumerate(names) if votes[name] == agree)
        distance = round(float(found.distances[place]), 12)
        nearest = self.ids[int(found.rows[place])]
        return Row(id, names[place], agree, len(names), nearest, f"{distance:.9g}", known)


def transfer(chosen: Chosen) -> None:
    """Write the table, the records without a label, and what is known of its accuracy.

    Raises:
        UserError: when features, labels or the output are not fit for it.
    """
    if chosen.output.suffix != ".tsv":
        raise UserError(f"{chosen.output}: the table is a .tsv; give a name that ends so.")
    if chosen.k < 1:
        raise UserError(f"--k {chosen.k}: give 1 or more.")
    of = features.open(chosen.run_folder, chosen.vectors, choosing="--vectors")
    reference = of
    if chosen.reference not in (None, chosen.run_folder):
        reference = features.open(chosen.reference, chosen.vectors, choosing="--vectors")
        _refuse_other_features(of, reference)
    has_samples = reference.has_samples
    labelled, num_empty = labels.read(
        chosen.labels, chosen.column, chosen.group, has_samples, chosen.id_column, log=log
    )
    told = labels.Told(f"record of {reference.name}", has_samples, log)
    labelled = labels.by_record(labelled, chosen.labels, [reference], told)
    known = _known(reference, labelled, chosen)
    card, missing, table = map(Path, TABLE.files(str(chosen.output)))
    counts = Counter[str]()
    with delivering(table, is_named=True) as rows_path, delivering(missing) as missing_path:
        with (
            rows_path.open("w", encoding="utf-8", newline="") as rows_file,
            missing_path.open("w", encoding="utf-8", newline="") as missing_file,
        ):
            rows = csv.writer(rows_file, delimiter="\t", lineterminator="\n")
            rows.writerow([*of.id_columns, *Row._fields[1:]])
            lacking = csv.writer(missing_file, delimiter="\t", lineterminator="\n")
            lacking.writerow([*of.id_columns, *Missing._fields[1:]])
            for row in chain(_rows(of, known, of is reference, chosen.k), _failed(of)):
                counts["transferred" if isinstance(row, Row) else "without"] += 1
                id = split_id(row.id) if of.has_samples else (row.id,)
                cells = [one_line(str(cell)) for cell in (*id, *row[1:])]
                (rows if isinstance(row, Row) else lacking).writerow(cells)
        card_told = _card(chosen, of, reference, known)
        card_told["counts"] = {key: counts[key] for key in ("transferred", "without")} | {
            "labelled": len(known.ids),
            "labels_without_vector": len(labelled) - len(known.ids),
            "rows_without_label": num_empty,
        }
        write_json(card, card_told)
    _say(chosen, card_told)


def _refuse_other_features(of: Features, reference: Features) -> None:
    ours, theirs = (f"{one.recipe} ({one.column})" for one in (of, reference))
    if ours != theirs:
        raise UserError(
            f"{reference.name}: the recipe of its features is {theirs}, and that of {of.name} is "
            f"{ours}, so distances between them mean nothing; compute both by one recipe."
        )


def _known(reference: Features, labelled: Mapping[str, Label], chosen: Chosen) -> Known:
    """Return the labelled records with vectors, and the nearest of each."""
    rows = np.array(sorted(reference.rows_of(labelled).values()), np.int64)
    if not len(rows):
        theirs = reference.ids_of(np.arange(1))[0]
        raise UserError(
            f"{chosen.labels}: none of its {len(labelled):,} ids has features in {reference.name}: "
            f"its first is {clipped(next(iter(labelled)))!r}, the run's first is "
            f"{clipped(theirs)!r}; write the ids as the run has them."
        )
    told = reference.records_of(rows)
    ids = [told[row].id for row in rows.tolist()]
    sha256 = [told[row].sha256 for row in rows.tolist()]
    vectors = reference.take(rows)
    _refuse_not_finite(reference, ids, vectors)
    index = Reference(vectors, chosen.metric)
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
    found: list[Found] = []
    progress = Progress(log, "leaving out one by one")
    for start in range(0, len(ids), index.queries_at_once):
        some = slice(start, start + index.queries_at_once)
        excluded = group_N[some, None] == group_N
        excluded |= payload_N[some, None] == payload_N
        found += index.nearest(vectors[some], chosen.k, excluded)
        progress.at(len(found), len(ids))
    return Known(ids, [labelled[id].name for id in ids], sha256, groups, index, found)


def _refuse_not_finite(part: Features, ids: Sequence[str], vectors: Matrix) -> None:
    if not np.isfinite(vectors).all():
        place = int(np.flatnonzero(~np.isfinite(vectors).all(1))[0])
        raise UserError(
            f"{part.name}: the vector of record {clipped(ids[place])!r} in {part.column} has a "
            "number that is not finite, so it has no distance; leave that record out, or have its "
            "features computed anew."
        )


def _rows(of: Features, known: Known, is_same: bool, k: int) -> Iterator[Row | Missing]:
    """Yield the row of each record of the features, or why it has none, in their order."""
    place_of = {id: place for place, id in enumerate(known.ids)}
    progress, first = Progress(log, "looking for the nearest"), 0
    for ids, vectors in of.blocks():
        _refuse_not_finite(of, ids, vectors)
        itself = {at: place_of[id] for at, id in enumerate(ids) if id in place_of}
        if not is_same and itself:  # another record of the same name counts
            records = of.records_of(first + np.array(list(itself)))
            itself = {
                at: place
                for at, place in itself.items()
                if records[first + at].sha256 == known.sha256[place]
            }
        others = np.array([at for at in range(len(ids)) if at not in itself], np.int64)
        nearest = _of_strangers(known.reference, vectors, others, k)
        for at, id in enumerate(ids):
            if at not in itself:
                yield known.row(id, next(nearest), "")
            elif len((found := known.found[itself[at]]).rows):
                yield known.row(id, found, known.labels[itself[at]])
            else:
                reason = "all labelled records are of its group or have its sequence"
                yield Missing(id, reason)
        first += len(ids)
        progress.at(first, of.num_rows)


def _failed(of: Features) -> Iterator[Missing]:
    for failure in of.failures():
        yield Missing(failure.id, f"{failure.status}: {failure.reason}")


def _of_strangers(
    reference: Reference, vectors: Matrix, places: npt.NDArray[np.int64], k: int
) -> Iterator[Found]:
    for start in range(0, len(places), reference.queries_at_once):
        some = places[start : start + reference.queries_at_once]
        yield from reference.nearest(vectors[some], k)


def _card(chosen: Chosen, of: Features, reference: Features, known: Known) -> dict[str, Any]:
    runs = dict.fromkeys([chosen.run_folder, chosen.reference or chosen.run_folder])
    made_of = [chosen.labels, *(run / "manifest.json" for run in runs)]
    return {
        "featuremill": VERSION,
        "made_of": {str(path): sha256_of(path) for path in made_of},
        "labels": str(chosen.labels),
        "column": chosen.column,
        "group": chosen.group,
        "of": {"run": of.name, "recipe": of.recipe, "column": of.column},
        "reference": {"run": reference.name, "recipe": reference.recipe},
        "k": chosen.k,
        "metric": chosen.metric,
        "leave_one_out": _leave_one_out(known),
    }


def _leave_one_out(known: Known) -> dict[str, Any]:
    """Return how often a labelled record gets its own label."""
    judged = [place for place, found in enumerate(known.found) if len(found.rows)]
    names = [known.labels[place] for place in judged]
    groups = [known.groups[place] for place in judged]
    given = [known.row("", known.found[place], "").label for place in judged]
    right = [one == other for one, other in zip(given, names, strict=True)]
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


def _say(chosen: Chosen, told: Mapping[str, Any]) -> None:
    counts, judged = told["counts"], told["leave_one_out"]
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
