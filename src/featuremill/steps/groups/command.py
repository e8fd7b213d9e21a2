"""`featuremill groups`: pool the vectors of groups, and write them with the status of each member.

The sums of all groups are in memory; records are read in blocks. Sums are compensated float64
(Knuth, The Art of Computer Programming, volume 2, section 4.2.2), so that their float32 values do
not depend on the order of rows.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill import features
from featuremill.features import Features, Listed
from featuremill.inputs import labels
from featuremill.inputs.samples import SAMPLE
from featuremill.kit.arrays import refuse_not_finite
from featuremill.kit.errors import UserError
from featuremill.kit.files import delivering, sha256_of, write_json
from featuremill.kit.processes import VERSION
from featuremill.kit.tables import add_options, without_features
from featuremill.kit.text import Progress, counted, listed, records
from featuremill.kit.tsv import TsvWriter
from featuremill.steps.groups.section import KEYS, POOLS, TABLE, Groups, Pool

if TYPE_CHECKING:
    import pyarrow as pa

POOLED, NO_GROUP, NO_RECORD = "pooled", "no group", "no record of this id"
log = logging.getLogger("featuremill.groups")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_folder", type=Path, help="results/<run> with the records to pool")
    add(
        "--table", type=Path, help="CSV, TSV or Parquet with ids (and samples, where a run has any)"
    )
    add_options(parser, Groups, *KEYS)
    add("--pool", nargs="+", choices=POOLS, default=["mean"], help="one or several (default mean)")
    add(
        "--output",
        type=Path,
        required=True,
        metavar="FILE.parquet",
        help="beside it go .members.tsv and .json",
    )


def run(arguments: argparse.Namespace) -> None:
    options = {key: getattr(arguments, key) for key in (*KEYS, "pool")}
    table = arguments.table and str(arguments.table)
    section = Groups.model_construct(table=table, **options)
    pool(arguments.run_folder, section, arguments.output)


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
    """Returns the number of a record's group."""
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


def pool(run_folder: Path, section: Groups, output: Path) -> None:
    """Write the vectors of groups, the status of each member, and the card.

    Raises:
        UserError: features, table or output are wrong, or nothing is pooled.
    """
    if output.suffix != ".parquet":
        raise UserError(f"{output}: the table is a .parquet; give such a name.")
    run = features.open(run_folder, section.vectors, choosing="--vectors")
    grouping = _grouping(run, section, log)
    missing_G = np.zeros(len(grouping.keys), np.int64)
    sums = Sums(len(grouping.keys), run.width)
    counts = Counter[str]()
    card, members, table = map(Path, TABLE.files(str(output)))
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
            raise _none_pooled(section, run, grouping)
        _write(table_path, grouping, sums, missing_G, section.pool)
        is_pooled_G = sums.counts_G > 0
        inputs = [*map(Path, filter(None, [section.table])), run_folder / "manifest.json"]
        content: dict[str, Any] = {
            "featuremill": VERSION,
            "made_of": {str(path): sha256_of(path) for path in inputs},
            "table": section.table,
            "column": section.column or SAMPLE,
            "of": {"run": run.name, "recipe": run.recipe, "column": run.column},
            "pool": list(section.pool),
            "counts": {
                "pooled": counts[POOLED],
                "missing": counts["missing"],
                "without_group": counts[NO_GROUP],
                "groups": int(is_pooled_G.sum()),
                "groups_without_vector": int((~is_pooled_G).sum()),
                "incomplete_groups": int((is_pooled_G & (missing_G > 0)).sum()),
                "rows_without_group": grouping.num_empty,
            },
        }
        write_json(card, content)
    groups = counted(content["counts"]["groups"], "group", "groups")
    log.info("%s: %s of %s", output, groups, records(counts[POOLED]))
    if num_missing := counts["missing"]:
        members_have = counted(num_missing, "member has", "members have")
        log.warning("%s no vector: %s lists each with the reason.", members_have, members)


def refuse_unfit(run: Listed, section: Groups) -> None:
    """Check groups before vectors are computed.

    Raises:
        UserError: no group has a planned record, or the table is wrong.
    """
    grouping = _grouping(run, section, None)
    if not any(grouping.number_of(id) is not None for id, _ in run.digests()):
        raise _none_pooled(section, run, grouping)


def _grouping(run: Listed, section: Groups, log: logging.Logger | None) -> Grouping:
    """Return the groups of the table or of the samples; log a warning for ids without a record."""
    if section.table is None:
        return _sample_groups(run, section.column or SAMPLE)
    if section.column is None:
        raise UserError(f"{section.table}: name its column of groups with --column.")
    table, id_column = Path(section.table), section.id_column or ""
    label_of, num_empty = labels.read(
        table, section.column, None, run.id_columns, id_column, log=log
    )
    records = labels.NamedRecords(f"record of {run.name}", run.id_columns, log)
    label_of = labels.by_record(label_of, table, [run], records)
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
        in_groups = [row for row, number in enumerate(numbers) if number is not None]
        why = "so its group would have none; leave that record out of the table."
        names = [ids[row] for row in in_groups]
        refuse_not_finite(vectors[in_groups], names, run.name, run.column, why)
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


def _none_pooled(section: Groups, run: Listed, grouping: Grouping) -> UserError:
    if not grouping.ids:
        return UserError(
            f"{run.name}: no sample with features has a group in {section.column!r}; fill it in."
        )
    return without_features(section.table, grouping.ids, [run])


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
