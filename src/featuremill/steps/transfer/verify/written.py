"""The files of results beside the digests and counts that were written with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from featuremill.features.records import Record, Records
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


class Rows(Records):
    """The rows of a table of results, by record."""

    def records_at(self, rows: Sequence[int]) -> dict[int, Record]:
        """Return what `rows` are, in this order."""
        found = self.records_of(np.array(rows, np.int64))
        return {row: found[row] for row in rows}


class Stored(NamedTuple):
    """Results, and what is wrong with their files."""

    folder: Results
    delivery: Delivery
    records: Rows | None
    """The rows of the table; None where there is none that can be read."""
    num_files: int
    """Results that were compared with manifest.json."""
    num_parts: int
    """Parts in the store that were compared with manifest.json."""
    problems: list[str]


def written(root: Path) -> Stored:
    """Compare all that is in the folder `root` with its manifest.json.

    Raises:
        UserError: there are no results.
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
            records = Rows(folder, Table(table))
            problems += _counted(folder, delivery, records)
        except (pa.ArrowInvalid, IntegrityError, OSError) as error:
            problems.append(f"{table}: it cannot be read: {error}")
    return Stored(folder, delivery, records, len(files), len(here), problems)


def _counted(folder: Results, delivery: Delivery, records: Rows) -> Iterator[str]:
    """Yield what the counts and digests of manifest.json, records.parquet and the table differ
    in."""
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
    digests: dict[str, str] = {}
    for batch in read_records(folder.records, ["sample", "id", "sha256", "status"]):
        states.update(batch["status"].to_pylist())
        pairs = zip(whole_ids(batch).to_pylist(), batch["sha256"].to_pylist(), strict=True)
        digests |= {id: sha256.hex() for id, sha256 in pairs if sha256 is not None}
    if sum(states.values()) != counts.input or states["refused"] != counts.refused:
        yield f"{folder.records}: it has {dict(states)}, and manifest.json counts {counts.told}"
    seen: set[str] = set()
    for id, sha256 in records.digests():
        if id in seen:
            yield f"{records.table.path}: {id!r} has several rows"
        seen.add(id)
        if digests.get(id) != sha256:
            yield f"{records.table.path}: {id!r} has the sequence of another record"
