"""`featuremill verify`: compare the files of results with the digests and counts in manifest.json,
and recompute some records."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

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
from featuremill.kit.text import counted
from featuremill.steps.transfer.again import Column, Drawn, Stored, again, payloads_of

TABLES = ("parquet", "parquet_dataset")
DIFFERS = 1
MOST_NAMED = 20
"""The most problems that are listed, and the most ids per problem."""
DESCRIPTION = (
    "Check the results of a run, such as a folder from a colleague: every digest and count, and "
    "some records computed again on this machine, beside what the results hold."
)
EPILOG = (
    "Exit status: 0 the results hold, 1 something differs, 2 they cannot be checked here "
    "(docs/verify.md)."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("results", type=Path, help="the folder of a run, such as results/demo")
    parser.add_argument(
        "--recompute",
        type=int,
        default=20,
        metavar="N",
        help="records to compute again, drawn at random; 0: digests and counts alone; default: "
        "%(default)s",
    )
    parser.add_argument("--seed", type=int, help="random seed of the records to compute again")
    parser.add_argument("--ids", nargs="+", metavar="ID", help="records to compute again")
    parser.add_argument(
        "--input",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="the files with the records; default: the store in the folder, then the run's inputs",
    )
    parser.add_argument("--weights", type=Path, help="the file weights/<name>.json to use")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), help="default: the run's")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def run(arguments: argparse.Namespace) -> int:
    """Run `featuremill verify`; return 0 if there are no differences, else 1."""
    if arguments.recompute < 0:
        raise UserError(f"--recompute {arguments.recompute}: give 0 or more.")
    stored = written(arguments.results)
    problems, drawn, columns = list(stored.problems), None, list[Column]()
    if stored.records is not None and (arguments.ids or arguments.recompute):
        drawn = _draw(stored, arguments)
        payloads, others = payloads_of(stored, drawn.records, arguments.input or [])
        problems += others
        if payloads:
            columns, others = again(stored, drawn, payloads, arguments.device, arguments.weights)
            problems += others
    _print(stored, drawn, columns, problems, arguments.json)
    return DIFFERS if problems else 0


def _draw(stored: Stored, arguments: argparse.Namespace) -> Drawn:
    records = stored.records
    assert records is not None
    if arguments.ids:
        row_of = records.rows_named(arguments.ids)
        if missing := [id for id in arguments.ids if id not in row_of]:
            raise UserError(f"{records.name}: {missing[0]!r}: the results have no such id.")
        return Drawn(None, records.records_of(np.array([*row_of.values()])))
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    number = min(arguments.recompute, records.num_rows)
    rows = random.Random(seed).sample(range(records.num_rows), number)  # noqa: S311
    return Drawn(seed, records.records_of(np.array(rows, np.int64)))


def _print(
    stored: Stored,
    drawn: Drawn | None,
    columns: list[Column],
    problems: list[str],
    is_json: bool,
) -> None:
    if is_json:
        answer = {
            "version": 1,
            "holds": not problems,
            "results": str(stored.folder.root),
            "files": stored.num_files,
            "parts": stored.num_parts,
            "records": stored.delivery.counts.model_dump(mode="json"),
            "seed": drawn.seed if drawn else None,
            "recomputed": [record.id for record in drawn.records.values()] if drawn else [],
            "columns": [column._asdict() for column in columns],
            "problems": problems,
        }
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
        return
    lines = [
        f"{stored.delivery.counts.in_words}; {counted(stored.num_files, 'file')} of results and "
        f"{counted(stored.num_parts, 'part')} compared with their digests."
    ]
    if drawn and columns:
        how = "named" if drawn.seed is None else f"drawn by --seed {drawn.seed}"
        lines.append(f"{counted(len(drawn.records), 'record')} computed again, {how}:")
        lines += [f"  {column.line}" for column in columns]
    lines += [f"differs: {problem}" for problem in problems[:MOST_NAMED]]
    if len(problems) > MOST_NAMED:
        lines.append(f"… and {len(problems) - MOST_NAMED:,} more; --json has all.")
    lines.append("The results differ." if problems else "The results hold.")
    sys.stdout.write("\n".join(lines) + "\n")


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
