"""`featuremill transfer`: assign each record the label of its nearest labelled records.

Writes the table and its accuracy. The labelled records and their vectors are in memory; other
records are read in blocks.
"""

from __future__ import annotations

import argparse
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
from featuremill.features.nearest import Mask, Metric, Neighbours, NotFiniteError, nearest_in_memory
from featuremill.inputs import labels
from featuremill.inputs.labels import Label
from featuremill.kit.arrays import refuse_not_finite
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering, sha256_of, write_json
from featuremill.kit.processes import VERSION
from featuremill.kit.tables import add_options, without_features
from featuremill.kit.text import Progress, counted, records
from featuremill.kit.tsv import TsvWriter
from featuremill.steps.transfer.section import KEYS, TABLE, Transfer

NORMAL = 1.959964
"""Half the width of a 95 % interval in standard deviations."""
WHY_NOT_FINITE = "so it has no distance; leave that record out, or have its features computed anew."
log = logging.getLogger("featuremill.transfer")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_folder", type=Path, help="results/<run> with the records to label")
    add(
        "reference",
        type=Path,
        nargs="?",
        help="the run of the labelled records, if that is another one",
    )
    add("--labels", type=Path, required=True, metavar="TABLE", help="CSV, TSV or Parquet with ids")
    add_options(parser, Transfer, *KEYS)
    add(
        "--output",
        type=Path,
        required=True,
        metavar="FILE.tsv",
        help="beside it go .missing.tsv and .json",
    )


def run(arguments: argparse.Namespace) -> None:
    options = {key: getattr(arguments, key) for key in KEYS}
    section = Transfer.model_construct(labels=str(arguments.labels), **options)
    transfer(arguments.run_folder, arguments.reference, section, arguments.output)


class Row(NamedTuple):
    """A row of the table."""

    id: str
    label: str
    """The most frequent label of the neighbours; of equally frequent ones, that of the nearest."""
    agree: int
    """The number of neighbours with this label."""
    neighbours: int
    nearest: str
    """The whole id of the nearest neighbour with this label."""
    distance: str
    known: str
    """The record's own label, which has no vote, or ""."""


class Missing(NamedTuple):
    """A record without a label, and the reason."""

    id: str
    reason: str


class Known(NamedTuple):
    """The labelled records of the reference, sorted by sha256 and id. Of equally near records the
    first vote, so that labels do not depend on the order of rows."""

    ids: list[str]
    labels: list[str]
    sha256: list[str]
    groups: list[str]
    """The groups; without groups, the sha256."""
    vectors: Matrix
    nearest: list[Neighbours]
    """The nearest records with another payload and another group."""
    metric: Metric

    def row(self, id: str, nearest: Neighbours, known: str) -> Row:
        """Return the row of a record."""
        names = [self.labels[row] for row in nearest.rows.tolist()]
        votes = Counter(names)
        agree = max(votes.values())
        index = next(index for index, name in enumerate(names) if votes[name] == agree)
        score = float(nearest.scores[index])
        distance = round(1 - score if self.metric == "cosine" else score, 12)
        nearest_id = self.ids[int(nearest.rows[index])]
        return Row(id, names[index], agree, len(names), nearest_id, f"{distance:.9g}", known)


def transfer(run_folder: Path, other: Path | None, section: Transfer, output: Path) -> None:
    """Write the table, the records without a label, and the card with the accuracy. `other` is the
    run of the labelled records, if it is not `run_folder`.

    Raises:
        UserError: the features, the labels or the output are wrong.
    """
    try:
        _transfer(run_folder, other, section, output)
    except NotFiniteError:  # the vectors are finite (`refuse_not_finite`); distances overflow
        raise UserError(
            f"{run_folder}: some vectors have numbers too large to compute distances; scale "
            "the features, or use others."
        ) from None


def _transfer(run_folder: Path, other: Path | None, section: Transfer, output: Path) -> None:
    if output.suffix != ".tsv":
        raise UserError(f"{output}: the table is a .tsv; give a name that ends so.")
    if section.k < 1:
        raise UserError(f"--k {section.k}: give 1 or more.")
    target = reference = features.open(run_folder, section.vectors, choosing="--vectors")
    if other not in (None, run_folder):
        reference = features.open(other, section.vectors, choosing="--vectors")
        recipe, expected = (f"{each.recipe} ({each.column})" for each in (reference, target))
        if recipe != expected:
            raise UserError(
                f"{reference.name}: the recipe of its features is {recipe}, and that of "
                f"{target.name} is {expected}, so distances between them mean nothing; compute "
                "both by one recipe."
            )
    labels_of_records = labelled(reference, section, log)
    known = _known(reference, labels_of_records, section)
    card, missing, table = map(Path, TABLE.files(str(output)))
    counts = Counter[str]()
    with delivering(table, is_named=True) as rows_path, delivering(missing) as missing_path:
        with (
            rows_path.open("w", encoding="utf-8", newline="") as rows_file,
            missing_path.open("w", encoding="utf-8", newline="") as missing_file,
        ):
            rows = TsvWriter(rows_file, [*target.id_columns.names, *Row._fields[1:]])
            lacking = TsvWriter(missing_file, [*target.id_columns.names, *Missing._fields[1:]])
            failed = (
                Missing(failure.id, f"{failure.status}: {failure.reason}")
                for failure in target.failures()
            )
            for row in chain(_rows(target, known, target is reference, section.k), failed):
                counts["transferred" if isinstance(row, Row) else "without"] += 1
                table_of_row = rows if isinstance(row, Row) else lacking
                table_of_row.row([*target.id_columns.cells(row.id), *row[1:]])
        runs = dict.fromkeys([run_folder, other or run_folder])
        made_of = [Path(section.labels), *(run / "manifest.json" for run in runs)]
        leave_one_out = _leave_one_out(known)
        facts = {
            "featuremill": VERSION,
            "made_of": {str(path): sha256_of(path) for path in made_of},
            **section.model_dump(include={"labels", "column", "group"}),
            "of": {"run": target.name, "recipe": target.recipe, "column": target.column},
            "reference": {"run": reference.name, "recipe": reference.recipe},
            "k": section.k,
            "metric": section.metric,
            "leave_one_out": leave_one_out,
            "counts": {
                "transferred": counts["transferred"],
                "without": counts["without"],
                "labelled": len(known.ids),
                "labels_without_vector": len(labels_of_records.of_id) - len(known.ids),
                "rows_without_label": labels_of_records.num_empty,
            },
        }
        write_json(card, facts)
    log.info("%s: %s", output, records(counts["transferred"]))
    if leave_one_out["records"]:
        log.info(
            "leaving out each labelled record: accuracy %.3f (95 %% interval %.3f to %.3f; the "
            "commonest label alone %.3f).",
            leave_one_out["accuracy"],
            *leave_one_out["interval"],
            leave_one_out["commonest_label"],
        )
    if num_without := counts["without"]:
        have_none = counted(num_without, "record has no label", "records have no label")
        log.warning("%s: %s lists them.", have_none, missing)


class Labelled(NamedTuple):
    """The labels of records."""

    of_id: Mapping[str, Label]
    num_empty: int
    """The number of table rows without a label."""
    rows: Rows
    """The sorted rows of the labelled records."""


def labelled(reference: Listed, section: Transfer, log: logging.Logger | None) -> Labelled:
    """Return the labels of the reference's records; log a warning for labels without a record.

    Raises:
        UserError: the table cannot be read, or no label has a record.
    """
    table, id_columns, id_column = Path(section.labels), reference.id_columns, section.id_column
    of_id, num_empty = labels.read(
        table, section.column, section.group, id_columns, id_column or "", log=log
    )
    records = labels.NamedRecords(f"record of {reference.name}", id_columns, log)
    of_id = labels.by_record(of_id, table, [reference], records)
    rows = np.array(sorted(reference.rows_of(of_id).values()), np.int64)
    if not len(rows):
        raise without_features(section.labels, of_id, [reference])
    return Labelled(of_id, num_empty, rows)


def _known(reference: Features, known: Labelled, section: Transfer) -> Known:
    labelled, rows = known.of_id, known.rows[np.argsort(reference.ranks_of(known.rows))]
    record_of = reference.records_of(rows)
    ids = [record_of[row].id for row in rows.tolist()]
    sha256 = [record_of[row].sha256 for row in rows.tolist()]
    vectors = reference.take(rows)
    refuse_not_finite(vectors, ids, reference.name, reference.column, WHY_NOT_FINITE)
    if num_lost := len(labelled) - len(ids):
        labels_are = counted(num_lost, "label is", "labels are")
        log.info("%s of no record with features in %s", labels_are, reference.name)
    log.info(
        "%s of %s with a label, %s numbers each; %s",
        f"{len(ids):,}",
        records(reference.num_rows),
        f"{reference.width:,}",
        f"no {section.group} votes for its own" if section.group else "no record votes for itself",
    )
    payload_N = np.unique(sha256, return_inverse=True)[1]
    groups = [labelled[id].group for id in ids] if section.group else sha256
    group_N = np.unique(groups, return_inverse=True)[1]

    def are_related(queries: slice, rows: slice) -> Mask:
        pairs: Mask = group_N[queries, None] == group_N[rows]
        pairs |= payload_N[queries, None] == payload_N[rows]
        return pairs

    nearest: list[Neighbours] = []
    progress = Progress(log, "leaving out one by one")
    for hits in nearest_in_memory(vectors, vectors, section.k, section.metric, are_related):
        nearest.append(hits)
        progress.at(len(nearest), len(ids))
    names = [labelled[id].name for id in ids]
    return Known(ids, names, sha256, groups, vectors, nearest, section.metric)


def _rows(target: Features, known: Known, is_same: bool, k: int) -> Iterator[Row | Missing]:
    """Yield the row of each record of the features, or the reason against it, in order."""
    index_of = {id: index for index, id in enumerate(known.ids)}
    progress, first = Progress(log, "looking for the nearest"), 0
    for ids, vectors in target.blocks():
        refuse_not_finite(vectors, ids, target.name, target.column, WHY_NOT_FINITE)
        own_index = {position: index_of[id] for position, id in enumerate(ids) if id in index_of}
        if not is_same and own_index:  # records with the same id may have other payloads
            records = target.records_of(first + np.array(list(own_index)))
            own_index = {
                position: index
                for position, index in own_index.items()
                if records[first + position].sha256 == known.sha256[index]
            }
        others = np.array(
            [position for position in range(len(ids)) if position not in own_index], np.int64
        )
        nearest = nearest_in_memory(known.vectors, vectors[others], k, known.metric)
        for position, id in enumerate(ids):
            if position not in own_index:
                yield known.row(id, next(nearest), "")
            elif len((voters := known.nearest[own_index[position]]).rows):
                yield known.row(id, voters, known.labels[own_index[position]])
            else:
                reason = "all labelled records are of its group or have its sequence"
                yield Missing(id, reason)
        first += len(ids)
        progress.at(first, target.num_rows)


def _leave_one_out(known: Known) -> dict[str, Any]:
    """Return the accuracy of the labels that labelled records get from the others."""
    evaluated = [index for index, voters in enumerate(known.nearest) if len(voters.rows)]
    names = [known.labels[index] for index in evaluated]
    groups = [known.groups[index] for index in evaluated]
    transferred = [known.row("", known.nearest[index], "").label for index in evaluated]
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
    """Return Wilson's 95 % interval of the accuracy. Records of a group count as dependent: the
    number of trials is (sum of sizes)² / sum of sizes² (Kish, Survey Sampling, 1965)."""
    if not right:
        return None, None
    sizes = Counter(groups).values()
    trials = len(right) ** 2 / sum(size**2 for size in sizes)
    share, spread = sum(right) / len(right), NORMAL**2 / trials
    half = math.sqrt(spread * (share * (1 - share) + spread / 4))
    low, high = ((share + spread / 2 + sign * half) / (1 + spread) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)
