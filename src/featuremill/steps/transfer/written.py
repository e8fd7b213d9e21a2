"""Compare the files of results with the digests and counts in manifest.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from featuremill.features.records import Records
from featuremill.features.table import Table
from featuremill.kit.errors import IntegrityError, UserError
from featuremill.kit.files import sha256_of
from featuremill.kit.runs import (
    Delivery,
    Results,
    digest_of_part,
    outputs_of,
    read_records,
    whole_ids,
)

TABLES = ("parquet", "parquet_dataset")
MOST_NAMED = 20
"""The most ids that are listed per problem."""


class Stored(NamedTuple):
    """Results, and the problems of their files."""

    folder: Results
    delivery: Delivery
    records: Records | None
    """The rows of the table; None if there is no readable table."""
    num_files: int
    """The number of results that were compared with manifest.json."""
    num_parts: int
    """The number of parts in the store that were compared with manifest.json."""
    problems: list[str]


def written(root: Path) -> Stored:
    """Compare the files in the folder `root` with its manifest.json.

    Raises:
        UserError: the folder has no results.
    """
    folder = Results(root)
    delivery = folder.find_delivery()
    if delivery is None:
        what = "it cannot be read" if folder.delivery.exists() else "there is no such file"
        raise UserError(f"{folder.delivery}: {what}; name the folder of a run that is done.")
    problems: list[str] = []
    files = {name: root / name for name in delivery.outputs}
    for name, path in files.items():
        if not path.exists():
            problems.append(f"{path}: this file of the results is not here")
        elif not delivery.outputs[name].is_at(path):
            problems.append(f"{path}: its bytes are not those that manifest.json names")
    parts = {shard: folder.part(delivery.recipe, shard) for shard in delivery.parts}
    here = {shard: path for shard, path in parts.items() if path.is_file()}
    for shard, path in here.items():
        if digest_of_part(path) != delivery.parts[shard]:
            problems.append(f"{path}: its bytes are not those that manifest.json names")
    names = {output: files[name] for name, output in outputs_of(delivery.outputs).items()}
    table = next((names[output] for output in TABLES if output in names), None)
    records = None
    if table is not None and table.exists():
        try:
            records = Records(folder, Table(table))
            problems += _differences(folder, delivery, records)
        except (pa.ArrowInvalid, IntegrityError, OSError) as error:
            problems.append(f"{table}: it cannot be read: {error}")
    return Stored(folder, delivery, records, len(files), len(here), problems)


def _differences(folder: Results, delivery: Delivery, records: Records) -> Iterator[str]:
    """Yield the differences between manifest.json, records.parquet and the table."""
    counts = delivery.counts
    if records.num_rows != counts.ok:
        yield (
            f"{records.table.path}: it has {records.num_rows:,} rows, and manifest.json counts "
            f"{counts.ok:,}"
        )
    if not folder.records.exists():
        return
    if delivery.records_sha256 not in (None, sha256_of(folder.records)):
        yield f"{folder.records}: its bytes are not those that manifest.json names"
    states: Counter[str] = Counter()
    keys = [np.empty((2, 0), np.uint64)]
    for batch in read_records(folder.records, ["sample", "id", "sha256", "status"]):
        states.update(batch["status"].to_pylist())
        digests = (sha256.hex() if sha256 else "0" for sha256 in batch["sha256"].to_pylist())
        keys.append(_keys(zip(whole_ids(batch).to_pylist(), digests, strict=True), len(batch)))
    if sum(states.values()) != counts.input or states["refused"] != counts.refused:
        yield f"{folder.records}: it has {dict(states)}, and manifest.json counts {counts.in_words}"
    planned, rows = np.concatenate(keys, axis=1), _keys(records.digests(), records.num_rows)
    planned = planned[:, np.argsort(planned[0], kind="stable")]
    places = np.searchsorted(planned[0], rows[0]).clip(max=max(0, planned.shape[1] - 1))
    is_other = (planned[:, places] != rows).any(axis=0) if planned.size else rows[0] >= 0
    others = np.flatnonzero(is_other)
    yield from _named(records, others, "has the sequence of another record")
    order = np.argsort(rows[0], kind="stable")
    twins = order[1:][rows[0][order][1:] == rows[0][order][:-1]]
    yield from _named(records, twins, "has several rows")


def _keys(rows: Iterable[tuple[str, str]], num_rows: int) -> npt.NDArray[np.uint64]:
    """Return a hash of each id and the first eight bytes of each digest, shape (2, rows)."""
    keys = (
        number
        for id, sha256 in rows
        for number in (xxh3_64_intdigest(id.encode()), int(sha256[:16], 16))
    )
    return np.fromiter(keys, np.uint64, 2 * num_rows).reshape(num_rows, 2).T


def _named(records: Records, rows: npt.NDArray[Any], what: str) -> Iterator[str]:
    for id in records.ids_of(rows[:MOST_NAMED].astype(np.int64)) if len(rows) else ():
        yield f"{records.table.path}: {id!r} {what}"
    if len(rows) > MOST_NAMED:
        yield f"{records.table.path}: so it is with {len(rows) - MOST_NAMED:,} more"
