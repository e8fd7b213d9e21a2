"""Pool the vectors of groups, and write them with the status of each member.

The sums of all groups are in memory; records are read in blocks. Sums are compensated float64
(Knuth, The Art of Computer Programming, volume 2, section 4.2.2), so that their float32 values do
not depend on the order of rows.
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


class Arguments(NamedTuple):
    """The arguments of `featuremill groups`."""

    run_folder: Path
    table: Path | None
    column: str | None
    vectors: str | None
    pool: Sequence[Pool]
    output: Path
    id_column: str = ""
    """The table's column of ids; if "", it is found by its name."""


class Member(NamedTuple):
    """A record of the run or an id of the table, with its status."""

    id: str
    group: str
    status: str
    """`pooled`, or the reason against it."""


class Grouping(NamedTuple):
    """The groups, and a function from ids to groups."""

    columns: Sequence[str]
    """The columns that identify a group: the sample (for tables with samples), and the group."""
    keys: Sequence[Sequence[str]]
    """The values of these columns for each group."""
    number_of: Callable[[str], int | None]
    """Returns the number of a record's group, or None."""
    ids: Sequence[str]
    """The ids in the table; empty if groups consist of samples."""
    num_empty: int
    """The number of table rows or samples without a group."""

    def name_of(self, id: str) -> str:
        """Return the name of a record's group, or ""."""
        number = self.number_of(id)
        return "" if number is None else self.keys[number][-1]


class Sums:
    """The sums and maxima of the vectors that were added to each group."""

    def __init__(self, num_groups: int, width: int) -> None:
        self.counts_G = np.zeros(num_groups, np.int64)
        self.sums_GE = np.zeros((num_groups, width))
        self.errors_GE = np.zeros((num_groups, width))
        """The rounding errors of `sums_GE`."""
        self.largest_GE = np.full((num_groups, width), -np.inf, np.float32)

    def add(self, group: int, vector_E: npt.NDArray[np.float32]) -> None:
        """Add the vector of a record to a group."""
        self.counts_G[group] += 1
        before_E, more_E = self.sums_GE[group], vector_E.astype(np.float64)
        sum_E = before_E + more_E
        part_E = sum_E - before_E
        self.errors_GE[group] += (before_E - (sum_E - part_E)) + (more_E - part_E)
        self.sums_GE[group] = sum_E
        np.maximum(self.largest_GE[group], vector_E, out=self.largest_GE[group])

    def pooled(self, pool: Pool, chosen_G: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the pooled vectors of the groups `chosen_G`."""
        if pool == "max":
            return self.largest_GE[chosen_G]
        pooled_GE = self.sums_GE[chosen_G] + self.errors_GE[chosen_G]
        if pool == "mean":
            pooled_GE /= self.counts_G[chosen_G, None]
        return pooled_GE.astype(np.float32)


def pool(args: Arguments) -> None:
    """Write the vectors of groups, the status of each member, and the card.

    Raises:
        UserError: features, table or output are wrong, or nothing is pooled.
    """
    if args.output.suffix != ".parquet":
        raise UserError(f"{args.output}: the table is a .parquet; give such a name.")
    run = features.open(args.run_folder, args.vectors, choosing="--vectors")
    grouping = _grouping(run, args, log)
    missing_G = np.zeros(len(grouping.keys), np.int64)
    sums = Sums(len(grouping.keys), run.width)
    counts = Counter[str]()
    card, members, table = map(Path, TABLE.files(str(args.output)))
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
            raise _none_pooled(args, run, grouping)
        _write(table_path, grouping, sums, missing_G, args.pool)
        content = _card(args, run, counts)
        content["counts"] |= {
            "groups": int((sums.counts_G > 0).sum()),
            "groups_without_vector": int((sums.counts_G == 0).sum()),
            "incomplete_groups": int(((sums.counts_G > 0) & (missing_G > 0)).sum()),
            "rows_without_group": grouping.num_empty,
        }
        write_json(card, content)
    _log_counts(args, content["counts"])


def refuse_unfit(run: Listed, args: Arguments) -> None:
    """Check groups before vectors are computed.

    Raises:
        UserError: no group has a planned record, or the table is wrong.
    """
    grouping = _grouping(run, args, None)
    if not any(grouping.number_of(id) is not None for id, _ in run.digests()):
        raise _none_pooled(args, run, grouping)


def _grouping(run: Listed, args: Arguments, log: logging.Logger | None) -> Grouping:
    """Return the groups of the table or of the samples; log a warning for ids without a record."""
    if args.table is None:
        return _sample_groups(run, args.column or SAMPLE)
    if args.column is None:
        raise UserError(f"{args.table}: name its column of groups with --column.")
    label_of, num_empty = labels.read(
        args.table, args.column, None, run.id_columns, args.id_column, log=log
    )
    records = labels.NamedRecords(f"record of {run.name}", run.id_columns, log)
    label_of = labels.by_record(label_of, args.table, [run], records)
    key_of = {id: (*run.id_columns.cells(id)[:-1], label.name) for id, label in label_of.items()}
    keys = list(dict.fromkeys(key_of.values()))
    number = {key: number for number, key in enumerate(keys)}
    number_of = {id: number[key] for id, key in key_of.items()}
    columns = [*run.id_columns.keys, "group"]
    return Grouping(columns, keys, number_of.get, list(label_of), num_empty)


def _sample_groups(run: Listed, column: str) -> Grouping:
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
    """Add the vectors to `sums`; yield the status of each record and of each id in the table."""
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


def _none_pooled(args: Arguments, run: Listed, grouping: Grouping) -> UserError:
    if not grouping.ids:
        return UserError(
            f"{run.name}: no sample with features has a group in {args.column!r}; fill it in."
        )
    first_of_run = run.ids_of(np.arange(1))[0]
    return UserError(
        f"{args.table}: none of its {len(grouping.ids):,} ids has features in {run.name}: its "
        f"first is {clipped(grouping.ids[0])!r}, the run's first is {clipped(first_of_run)!r}; "
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


def _card(args: Arguments, run: Features, counts: Mapping[str, int]) -> dict[str, Any]:
    inputs = [*filter(None, [args.table]), args.run_folder / "manifest.json"]
    return {
        "featuremill": VERSION,
        "made_of": {str(path): sha256_of(path) for path in inputs},
        "table": args.table and str(args.table),
        "column": args.column or SAMPLE,
        "of": {"run": run.name, "recipe": run.recipe, "column": run.column},
        "pool": list(args.pool),
        "counts": {
            "pooled": counts[POOLED],
            "missing": counts["missing"],
            "without_group": counts[NO_GROUP],
        },
    }


def _log_counts(args: Arguments, counts: Mapping[str, int]) -> None:
    groups = counted(counts["groups"], "group", "groups")
    log.info("%s: %s of %s", args.output, groups, records(counts["pooled"]))
    if num_missing := counts["missing"]:
        _, members, _ = TABLE.files(str(args.output))
        members_have = counted(num_missing, "member has", "members have")
        log.warning("%s no vector: %s lists each with the reason.", members_have, members)
