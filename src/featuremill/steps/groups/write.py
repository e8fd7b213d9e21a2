"""One pooling: the sums of all groups in memory, the records block by block.

Sums are in float64, one record after the other in the order of the run, so their bits do not depend
on how the run is read.
"""

from __future__ import annotations

import csv
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill import features
from featuremill.base.errors import UserError
from featuremill.base.progress import Progress
from featuremill.base.text import clipped, one_line
from featuremill.base.this_process import VERSION
from featuremill.base.words import counted, records
from featuremill.features import Features
from featuremill.inputs import labels
from featuremill.steps.groups import TABLE, Pool
from featuremill.store.files import replacing, sha256_of, write_json

if TYPE_CHECKING:
    import pyarrow as pa

POOLED, NO_GROUP, NO_RECORD = "pooled", "no group", "no record of this id"
log = logging.getLogger("featuremill.groups")


class Chosen(NamedTuple):
    """What is asked for."""

    run_folder: Path
    table: Path
    column: str
    vectors: str | None
    pool: Sequence[Pool]
    output: Path


class Member(NamedTuple):
    """A record of the run, or an id of the table, and what became of it."""

    id: str
    group: str
    status: str
    """`pooled`, or why it is not."""


class Sums:
    """The vectors of all groups, as far as records were added."""

    def __init__(self, num_groups: int, width: int) -> None:
        self.counts_G = np.zeros(num_groups, np.int64)
        self.sums_GE = np.zeros((num_groups, width))
        self.largest_GE = np.full((num_groups, width), -np.inf, np.float32)

    def add(self, group: int, vector_E: npt.NDArray[np.float32]) -> None:
        """Add a record to its group."""
        self.counts_G[group] += 1
        self.sums_GE[group] += vector_E
        np.maximum(self.largest_GE[group], vector_E, out=self.largest_GE[group])

    def pooled(self, pool: Pool, chosen_G: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the vectors of the groups that are chosen."""
        if pool == "max":
            return self.largest_GE[chosen_G]
        pooled_GE = self.sums_GE[chosen_G]
        if pool == "mean":
            pooled_GE /= self.counts_G[chosen_G, None]
        return pooled_GE.astype(np.float32)


def pool(chosen: Chosen) -> None:
    """Write the vectors of groups, what became of each member, and what they were made of.

    Raises:
        UserError: when features, table or the output are not fit for it.
    """
    if chosen.output.suffix != ".parquet":
        raise UserError(f"{chosen.output}: the table is a .parquet; give such a name.")
    of = features.open(chosen.run_folder, chosen.vectors, choosing="--vectors")
    group_of, num_empty = labels.read(chosen.table, chosen.column, None)
    names = dict.fromkeys(label.name for label in group_of.values())
    number_of = {name: number for number, name in enumerate(names)}
    missing_G = np.zeros(len(number_of), np.int64)
    sums = Sums(len(number_of), of.width)
    counts = Counter[str]()
    card, members, table = map(Path, TABLE.files(str(chosen.output)))
    with replacing(table) as table_path, replacing(members) as members_path:
        with members_path.open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file, delimiter="\t", lineterminator="\n")
            rows.writerow(Member._fields)
            for member in _members(of, group_of, number_of, sums):
                is_pooled = member.status == POOLED
                counts[POOLED if is_pooled else "missing" if member.group else NO_GROUP] += 1
                if member.group and not is_pooled:
                    missing_G[number_of[member.group]] += 1
                rows.writerow(one_line(cell) for cell in member)
        _refuse_none(chosen, of, group_of, counts)
        _write(table_path, list(number_of), sums, missing_G, chosen.pool)
        told = _card(chosen, of, counts)
        told["counts"] |= {
            "groups": int((sums.counts_G > 0).sum()),
            "groups_without_vector": int((sums.counts_G == 0).sum()),
            "incomplete_groups": int(((sums.counts_G > 0) & (missing_G > 0)).sum()),
            "rows_without_group": num_empty,
        }
        write_json(card, told)
    _say(chosen, told["counts"])


def _members(
    of: Features,
    group_of: Mapping[str, labels.Label],
    number_of: Mapping[str, int],
    sums: Sums,
) -> Iterator[Member]:
    """Yield what becomes of each record and of each id of the table, and add up the vectors."""
    left = dict.fromkeys(group_of)
    progress, num_read = Progress(log, "adding up"), 0
    for ids, vectors in of.blocks():
        is_of_a_group = [id in group_of for id in ids]
        _refuse_not_finite(of, list(compress(ids, is_of_a_group)), vectors[is_of_a_group])
        for id, vector_E in zip(ids, vectors, strict=True):
            left.pop(id, None)
            if id in group_of:
                name = group_of[id].name
                sums.add(number_of[name], vector_E)
                yield Member(id, name, POOLED)
            else:
                yield Member(id, "", NO_GROUP)
        num_read += len(ids)
        progress.at(num_read, of.num_rows)
    for failure in of.failures():
        left.pop(failure.id, None)
        name = group_of[failure.id].name if failure.id in group_of else ""
        yield Member(failure.id, name, f"{failure.status}: {failure.reason}")
    for id in left:
        yield Member(id, group_of[id].name, NO_RECORD)


def _refuse_not_finite(of: Features, ids: Sequence[str], vectors: features.Matrix) -> None:
    if not np.isfinite(vectors).all():
        place = int(np.flatnonzero(~np.isfinite(vectors).all(1))[0])
        raise UserError(
            f"{of.name}: the vector of record {clipped(ids[place])!r} in {of.column} has a number "
            "that is not finite, so its group would have none; leave that record out of the table."
        )


def _refuse_none(
    chosen: Chosen, of: Features, group_of: Mapping[str, labels.Label], counts: Counter[str]
) -> None:
    if not counts[POOLED]:
        theirs = of.ids_of(np.arange(1))[0]
        raise UserError(
            f"{chosen.table}: none of its {len(group_of):,} ids has features in {of.name}: its "
            f"first is {clipped(next(iter(group_of)))!r}, the run's first is {clipped(theirs)!r}; "
            "write the ids as the run has them."
        )


def _write(
    path: Path,
    names: Sequence[str],
    sums: Sums,
    missing_G: npt.NDArray[np.int64],
    pools: Sequence[Pool],
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    chosen_G = np.flatnonzero(sums.counts_G)
    columns: dict[str, pa.Array] = {
        "group": pa.array([names[number] for number in chosen_G.tolist()]),
        "members": pa.array(sums.counts_G[chosen_G]),
        "missing": pa.array(missing_G[chosen_G]),
    }
    for pool in dict.fromkeys(pools):
        vectors_GE = sums.pooled(pool, chosen_G)
        flat = pa.array(vectors_GE.reshape(-1))
        columns[pool] = pa.FixedSizeListArray.from_arrays(flat, vectors_GE.shape[1])
    pq.write_table(pa.table(columns), path)


def _card(chosen: Chosen, of: Features, counts: Mapping[str, int]) -> dict[str, Any]:
    made_of = [chosen.table, chosen.run_folder / "manifest.json"]
    return {
        "featuremill": VERSION,
        "made_of": {str(path): sha256_of(path) for path in made_of},
        "table": str(chosen.table),
        "column": chosen.column,
        "of": {"run": of.name, "recipe": of.recipe, "column": of.column},
        "pool": list(chosen.pool),
        "counts": {
            "pooled": counts[POOLED],
            "missing": counts["missing"],
            "without_group": counts[NO_GROUP],
        },
    }


def _say(chosen: Chosen, counts: Mapping[str, int]) -> None:
    groups = counted(counts["groups"], "group", "groups")
    log.info("%s: %s of %s", chosen.output, groups, records(counts["pooled"]))
    if num_missing := counts["missing"]:
        _, members, _ = TABLE.files(str(chosen.output))
        says = counted(num_missing, "member has", "members have")
        log.warning("%s no vector: %s lists each with the reason.", says, members)
