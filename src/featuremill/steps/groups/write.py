"""One pooling: the sums of all groups in memory, the records block by block.

Sums are in float64 and compensated (Knuth, The Art of Computer Programming, volume 2, section
4.2.2), so the order of a run's rows does not show in their float32.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill import features
from featuremill.features import Features, Listed
from featuremill.inputs import labels
from featuremill.inputs.samples import SAMPLE
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering, sha256_of, write_json
from featuremill.kit.processes import VERSION
from featuremill.kit.text import Progress, clipped, counted, listed, records
from featuremill.kit.tsv import TsvWriter
from featuremill.steps.groups.table import TABLE, Pool

if TYPE_CHECKING:
    import pyarrow as pa

POOLED, NO_GROUP, NO_RECORD = "pooled", "no group", "no record of this id"
log = logging.getLogger("featuremill.groups")


class Chosen(NamedTuple):
    """What is asked for."""

    run_folder: Path
    table: Path | None
    column: str | None
    vectors: str | None
    pool: Sequence[Pool]
    output: Path
    id_column: str = ""
    """The table's column of ids; "" to find it by its name."""


class Member(NamedTuple):
    """A record of the run, or an id of the table, and what became of it."""

    id: str
    group: str
    status: str
    """`pooled`, or why it is not."""


class Grouping(NamedTuple):
    """Which records are of which group."""

    columns: Sequence[str]
    """The columns that identify a group: the keys of ids, if a table has groups, and the group."""
    keys: Sequence[Sequence[str]]
    """The values of these columns, for each group."""
    number_of: Callable[[str], int | None]
    """Returns the number of a record's group; None where it has none."""
    ids: Sequence[str]
    """The ids that a table names; empty where the groups are samples."""
    num_empty: int
    """Rows of the table, or samples, without a group."""

    def name_of(self, id: str) -> str:
        """Return what the group of a record is called, "" where it has none."""
        number = self.number_of(id)
        return "" if number is None else self.keys[number][-1]


class Sums:
    """The vectors of all groups, as far as records were added."""

    def __init__(self, num_groups: int, width: int) -> None:
        self.counts_G = np.zeros(num_groups, np.int64)
        self.sums_GE = np.zeros((num_groups, width))
        self.errors_GE = np.zeros((num_groups, width))
        """The rounding errors of `sums_GE`."""
        self.largest_GE = np.full((num_groups, width), -np.inf, np.float32)

    def add(self, group: int, vector_E: npt.NDArray[np.float32]) -> None:
        """Add a record to its group."""
        self.counts_G[group] += 1
        before_E, more_E = self.sums_GE[group], vector_E.astype(np.float64)
        sum_E = before_E + more_E
        part_E = sum_E - before_E
        self.errors_GE[group] += (before_E - (sum_E - part_E)) + (more_E - part_E)
        self.sums_GE[group] = sum_E
        np.maximum(self.largest_GE[group], vector_E, out=self.largest_GE[group])

    def pooled(self, pool: Pool, chosen_G: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the vectors of the groups that are chosen."""
        if pool == "max":
            return self.largest_GE[chosen_G]
        pooled_GE = self.sums_GE[chosen_G] + self.errors_GE[chosen_G]
        if pool == "mean":
            pooled_GE /= self.counts_G[chosen_G, None]
        return pooled_GE.astype(np.float32)


def pool(chosen: Chosen) -> None:
    """Write the vectors of groups, the status of each member, and the card.

    Raises:
        UserError: when features, table or the output are not fit for it.
    """
    if chosen.output.suffix != ".parquet":
        raise UserError(f"{chosen.output}: the table is a .parquet; give such a name.")
    run = features.open(chosen.run_folder, chosen.vectors, choosing="--vectors")
    grouping = _grouping(run, chosen, log)
    missing_G = np.zeros(len(grouping.keys), np.int64)
    sums = Sums(len(grouping.keys), run.width)
    counts = Counter[str]()
    card, members, table = map(Path, TABLE.files(str(chosen.output)))
    with delivering(table, is_named=True) as table_path, delivering(members) as members_path:
        with members_path.open("w", encoding="utf-8", newline="") as file:
            rows = TsvWriter(file, [*run.id_columns.names, *Member._fields[1:]])
            for member in _members(run, grouping, sums):
                is_pooled = member.status == POOLED
                counts[POOLED if is_pooled else "missing" if member.group else NO_GROUP] += 1
                if not is_pooled and (number := grouping.number_of(member.id)) is not None:
                    missing_G[number] += 1
                rows.row([*run.id_columns.cells(member.id), *member[1:]])
        if not counts[POOLED]:
            raise _none_pooled(chosen, run, grouping)
        _write(table_path, grouping, sums, missing_G, chosen.pool)
        content = _card(chosen, run, counts)
        content["counts"] |= {
            "groups": int((sums.counts_G > 0).sum()),
            "groups_without_vector": int((sums.counts_G == 0).sum()),
            "incomplete_groups": int(((sums.counts_G > 0) & (missing_G > 0)).sum()),
            "rows_without_group": grouping.num_empty,
        }
        write_json(card, content)
    _say(chosen, content["counts"])


def refuse_unfit(run: Listed, chosen: Chosen) -> None:
    """Raise UserError if no group has a planned record, before any vector is computed.

    Raises:
        UserError: as `pool` does.
    """
    grouping = _grouping(run, chosen, None)
    if not any(grouping.number_of(id) is not None for id, _ in run.digests()):
        raise _none_pooled(chosen, run, grouping)


def _grouping(run: Listed, chosen: Chosen, log: logging.Logger | None) -> Grouping:
    """Return the groups of the table, or of the samples; `log` warns of ids of no record."""
    if chosen.table is None:
        return _of_sheet(run, chosen.column or SAMPLE)
    if chosen.column is None:
        raise UserError(f"{chosen.table}: name its column of groups with --column.")
    label_of, num_empty = labels.read(
        chosen.table, chosen.column, None, run.id_columns, chosen.id_column, log=log
    )
    records = labels.NamedRecords(f"record of {run.name}", run.id_columns, log)
    label_of = labels.by_record(label_of, chosen.table, [run], records)
    key_of = {id: (*run.id_columns.cells(id)[:-1], label.name) for id, label in label_of.items()}
    keys = list(dict.fromkeys(key_of.values()))
    number = {key: number for number, key in enumerate(keys)}
    number_of = {id: number[key] for id, key in key_of.items()}
    columns = [*run.id_columns.keys, "group"]
    return Grouping(columns, keys, number_of.get, list(label_of), num_empty)


def _of_sheet(run: Listed, column: str) -> Grouping:
    about = run.samples()
    if not about:
        raise UserError(
            f"{run.name}: it is a run without samples, whose sheet could have groups; name a table "
            "with --table."
        )
    if column not in about:
        raise UserError(
            f"{run.name}: its sheet of samples has no column {column!r}; it has {listed(about)}."
        )
    names = [name for name in dict.fromkeys(about[column]) if name]
    number = {name: number for number, name in enumerate(names)}
    number_of = {
        sample: number[name]
        for sample, name in zip(about[SAMPLE], about[column], strict=True)
        if name
    }
    return Grouping(
        ["group"],
        [(name,) for name in names],
        lambda whole_id: number_of.get(run.id_columns.owner(whole_id)),
        [],
        about[column].count(""),
    )


def _members(run: Features, grouping: Grouping, sums: Sums) -> Iterator[Member]:
    """Yield the status of each record and of each id of the table, and sum the vectors."""
    left = dict.fromkeys(grouping.ids)
    progress, num_read = Progress(log, "adding up"), 0
    for ids, vectors in run.blocks():
        numbers = [grouping.number_of(id) for id in ids]
        is_of_a_group = [number is not None for number in numbers]
        _refuse_not_finite(run, list(compress(ids, is_of_a_group)), vectors[is_of_a_group])
        for id, number, vector_E in zip(ids, numbers, vectors, strict=True):
            left.pop(id, None)
            if number is not None:
                sums.add(number, vector_E)
                yield Member(id, grouping.name_of(id), POOLED)
            else:
                yield Member(id, "", NO_GROUP)
        num_read += len(ids)
        progress.at(num_read, run.num_rows)
    for failure in run.failures():
        left.pop(failure.id, None)
        yield Member(
            failure.id, grouping.name_of(failure.id), f"{failure.status}: {failure.reason}"
        )
    for id in left:
        yield Member(id, grouping.name_of(id), NO_RECORD)


def _refuse_not_finite(run: Features, ids: Sequence[str], vectors: features.Matrix) -> None:
    if not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(1))[0])
        raise UserError(
            f"{run.name}: the vector of record {clipped(ids[row])!r} in {run.column} has a number "
            "that is not finite, so its group would have none; leave that record out of the table."
        )


def _none_pooled(chosen: Chosen, run: Listed, grouping: Grouping) -> UserError:
    if not grouping.ids:
        return UserError(
            f"{run.name}: no sample with features has a group in {chosen.column!r}; fill it in."
        )
    theirs = run.ids_of(np.arange(1))[0]
    return UserError(
        f"{chosen.table}: none of its {len(grouping.ids):,} ids has features in {run.name}: its "
        f"first is {clipped(grouping.ids[0])!r}, the run's first is {clipped(theirs)!r}; "
        "write the ids as the run has them."
    )


def _write(
    path: Path,
    grouping: Grouping,
    sums: Sums,
    missing_G: npt.NDArray[np.int64],
    pools: Sequence[Pool],
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    chosen_G = np.flatnonzero(sums.counts_G)
    keys = [grouping.keys[number] for number in chosen_G.tolist()]
    columns: dict[str, pa.Array] = {
        name: pa.array([key[index] for key in keys]) for index, name in enumerate(grouping.columns)
    }
    columns |= {
        "members": pa.array(sums.counts_G[chosen_G]),
        "missing": pa.array(missing_G[chosen_G]),
    }
    for pool in dict.fromkeys(pools):
        vectors_GE = sums.pooled(pool, chosen_G)
        flat = pa.array(vectors_GE.reshape(-1))
        columns[pool] = pa.FixedSizeListArray.from_arrays(flat, vectors_GE.shape[1])
    pq.write_table(pa.table(columns), path)


def _card(chosen: Chosen, run: Features, counts: Mapping[str, int]) -> dict[str, Any]:
    made_of = [*filter(None, [chosen.table]), chosen.run_folder / "manifest.json"]
    return {
        "featuremill": VERSION,
        "made_of": {str(path): sha256_of(path) for path in made_of},
        "table": chosen.table and str(chosen.table),
        "column": chosen.column or SAMPLE,
        "of": {"run": run.name, "recipe": run.recipe, "column": run.column},
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
