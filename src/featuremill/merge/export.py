"""export: write results in other formats, any time later, without computing anything again.

Reads what merge read: plan.json, records.parquet, the receipts and parts, with the same checks and
the same sums. Writes the files and, beside the results, exports.json, by which status knows them.
The next merge removes both, as they may be of older results. A file that was changed since stays.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.id_columns import KEYS
from featuremill.base.text import clipped
from featuremill.base.this_process import num_cores
from featuremill.features import loading
from featuremill.features.table import Table
from featuremill.merge import delivery
from featuremill.merge.command import count, gathered, open_parts, waiting_for_others
from featuremill.merge.delivery import Source
from featuremill.merge.gather import IDENTITY
from featuremill.merge.provenance import provenance_of
from featuremill.store import command_line, ours
from featuremill.store.delivery import Delivery, Written
from featuremill.store.files import sha256_of
from featuremill.store.formats import ABOUT, FAILED, format_of, names, sidecar_of
from featuremill.store.plan import Plan
from featuremill.store.records import samples_of, with_keys
from featuremill.store.results import Results

TABLES = ("parquet_dataset", "parquet")
"""Outputs from which rows are read by their ids."""
ROWS_AT_ONCE = 4096
log = logging.getLogger("featuremill.export")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, help="results/<run>")
    parser.add_argument(
        "--ids",
        type=Path,
        metavar="FILE",
        help="only these records: a file with an id a line; needs --output and reads the run's "
        "table",
    )
    parser.add_argument(
        "--to",
        action="extend",
        nargs="+",
        type=_format,
        required=True,
        metavar="FORMAT",
        help=f"one or several of {', '.join(names())}",
    )
    parser.add_argument("--output", type=Path, help="folder for the files; default: the run's own")
    parser.add_argument("--threads", type=int, default=num_cores())


def _format(word: str) -> str:
    if Path(word).is_dir():
        raise argparse.ArgumentTypeError(
            f"{word} is a folder and no format; the run's folder comes first: featuremill export "
            "results/RUN --to FORMAT"
        )
    try:
        format_of(word)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return word


def run(arguments: argparse.Namespace) -> None:
    threads = max(1, arguments.threads)
    pa.set_cpu_count(threads)
    folder = Results(arguments.run_folder)
    if arguments.ids:
        if arguments.output is None:
            raise UserError("export: with --ids, name a folder, too: --output some/.")
        export_of(folder, arguments.to, arguments.output, read_ids(arguments.ids))
        return
    # A store that is gone must not come back: its absence tells Snakemake to compute again.
    with waiting_for_others(folder) if folder.store.is_dir() else contextlib.nullcontext():
        export(folder, list(dict.fromkeys(arguments.to)), arguments.output, threads)


def read_ids(path: Path) -> list[str]:
    """Return the ids in a file, one a line.

    Raises:
        UserError: when it cannot be read, or an id is in it twice.
    """
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: this list of ids cannot be read ({error}).") from None
    ids = [line.strip() for line in lines if line.strip()]
    if twice := next((id for id, count in Counter(ids).items() if count > 1), ""):
        raise UserError(f"{path}: {clipped(twice)!r} is in it more than once; keep one.")
    return ids


def export_of(
    folder: Results, formats: Sequence[str], output: Path, ids: Sequence[str]
) -> dict[str, Written]:
    """Write the records with these `ids` to `output`, in their order, a sample's together; return
    each file's size and sha256. It reads the run's table, where they stand.

    Raises:
        UserError: when there is no table, an id is not in it, or a file is in the way.
    """
    results = folder.read_delivery()
    tables = [format_of(name).file for name in TABLES]
    path = next((folder.root / file for file in tables if file in results.outputs), None)
    if path is None:
        raise UserError(
            f"{folder.root}: --ids reads {' or '.join(tables)}, and these results have neither; "
            "add one to outputs in the config."
        )
    output.mkdir(parents=True, exist_ok=True)
    if output.samefile(folder.root):
        raise UserError(f"{output}: this is the run's own folder; name another --output.")
    paths = _targets(folder, results, list(dict.fromkeys(formats)), output)
    chosen = Chosen(folder, path, ids, output)
    files = delivery.write(chosen, paths, chosen.provenance, chosen.num_rows, folder.root)
    log.info("wrote %s", ", ".join(map(str, paths.values())))
    return files


class Chosen:
    """Some rows of a table of results, as an output takes them."""

    num_threads = 2
    beyond_bytes = num_residues = 0

    def __init__(self, folder: Results, path: Path, ids: Sequence[str], scratch: Path) -> None:
        self._table = Table(path)
        self.scratch = scratch
        schema = self._table.schema
        metadata = schema.metadata or {}
        if b"featuremill" not in metadata:
            raise UserError(f"{path}: featuremill did not write this table; run merge again.")
        self.provenance: dict[str, str] = json.loads(metadata[b"featuremill"])
        self.values = pa.schema([field for field in schema if field.name not in (*ABOUT, *KEYS)])
        self.id_columns = self._table.id_columns
        self.samples = samples_of(folder.records) if self.id_columns.keys else {}
        places = loading.places_of(self._table, ids)
        owners = [self.id_columns.owner(id) for id in ids]
        numbers = {owner: number for number, owner in enumerate(dict.fromkeys(owners))}
        order = np.argsort([numbers[owner] for owner in owners], kind="stable")
        self._places = places[order]
        self.num_rows = len(places)

    def pieces(self) -> Iterator[pa.Table]:
        """Yield id, description, length, sha256 and values of a few thousand rows at a time."""
        for start in range(0, len(self._places), ROWS_AT_ONCE):
            rows = loading.taken(self._table, self._places[start : start + ROWS_AT_ONCE])
            sha256 = [bytes.fromhex(text) for text in rows["sha256"].to_pylist()]
            own = {
                "sha256": pa.array(sha256, pa.binary(32)),
                "length": rows["length"].cast("int64"),
            }
            names = [*IDENTITY.names, *self.values.names]
            rows = with_keys(rows)
            columns = {name: own[name] if name in own else rows[name] for name in names}
            yield pa.table({**columns, **{key: columns[key].cast(pa.string()) for key in KEYS}})


def export(
    folder: Results, formats: Sequence[str], output: Path | None = None, num_threads: int = 2
) -> dict[str, Written]:
    """Write the results of `folder` in `formats`, to `output` or the run's own folder; return each
    file's size and sha256.

    Raises:
        UserError: when there are no results of the plan, their parts were removed, or a file is in
            the way.
        IntegrityError: when parts are not those that the results were made of.
    """
    plan = folder.read_plan_of_records()
    results = folder.find_delivery()
    if results is None or not results.is_of(plan):
        raise UserError(
            f"{folder.root}: there are no finished results of {folder.plan.name} yet; let the run "
            f"come to its end ({command_line.again(folder.root)}), or take what is computed by now "
            f"(featuremill merge {shlex.quote(str(folder.root))} --partial)."
        )
    paths = _targets(folder, results, formats, output)
    if not paths:
        return {}
    with _source(folder, plan, results, num_threads) as source:
        provenance = provenance_of(plan, results.receipts)
        files = source.write(paths, provenance, results.counts.ok)
    if output is None:
        of = sha256_of(folder.delivery)
        new = {name: {**file.as_json(), "results": of} for name, file in files.items()}
        known = {name: export.as_json() for name, export in folder.find_exports().items()}
        ours.write_json(folder.exports, known | new)
    log.info("wrote %s", ", ".join(map(str, paths.values())))
    return files


def _targets(
    folder: Results, results: Delivery, formats: Sequence[str], output: Path | None
) -> dict[str, Path]:
    """Return the path of each format, without formats that merge has written there."""
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        if output.samefile(folder.root):
            output = None
    paths = {name: (output or folder.root) / format_of(name).file for name in formats}
    for name, path in list(paths.items()):
        beside = [path.with_name(sidecar_of(path.name))] if format_of(name).has_sidecar else []
        taken = next((existing for existing in (path, *beside) if existing.exists()), None)
        if output is not None and taken:
            raise UserError(f"{taken}: it exists already; remove it, or name another --output.")
        if output is None and path.name in results.outputs:
            if not path.exists():
                raise UserError(
                    f"{path}: it belongs to the results, and is gone; featuremill status "
                    f"{folder.root} prints how to have it again."
                )
            log.info("%s is there already: it belongs to the results", path)
            del paths[name]
    return paths


@contextlib.contextmanager
def _source(folder: Results, plan: Plan, results: Delivery, num_threads: int) -> Iterator[Source]:
    """Yield the rows of the results, checked and counted as in merge."""
    own = [folder.part(plan.recipe, shard.shard) for shard in plan.shards]
    if not (plan.taken or any(part.exists() for part in own)):
        raise UserError(
            f"{folder.root}: its parts were removed, so there is nothing left to make other "
            "formats of: convert what featuremill.load reads, or add them to outputs in the config "
            f"and have the features computed again ({command_line.again(folder.root)})."
        )
    parts, problems = open_parts(folder, plan, num_threads, only_look=True)
    part_of = {part.receipt.shard: part.receipt.part for part in parts if part}
    if problems or part_of != results.parts:
        problem = "parts are gone, or others than those in the results"
        if problems:
            problem = str(problems[0]).rpartition("; ")[0]
        remedy = f"featuremill status {folder.root} --verify prints what to do"
        if not all(Path(part.path).exists() for part in plan.taken):
            remedy = f"have it computed anew ({command_line.again(folder.root, ['plan'])})"
        raise IntegrityError(f"{folder.root}: {problem}; {remedy}.")
    with gathered(folder, plan, parts, num_threads) as source:
        counts = count(source, plan, [source.scratch / name for name in FAILED])
        if counts != results.counts:
            raise IntegrityError(
                f"{folder.root}: parts and manifest.json don't agree in what is in them "
                f"({counts.as_json()}, {results.counts.as_json()}); please report this."
            )
        yield source
