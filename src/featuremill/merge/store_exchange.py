"""store export and import: parts as Parquet with a card, and vectors that others published.

What featuremill exported is imported under its own recipe. Anything else gets the recipe of what
its importer declares, with a workload that only takes vectors: no computed value ever has it.
"""

from __future__ import annotations

import datetime
import itertools
import logging
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from featuremill.base.arrays import not_finite
from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.progress import Progress
from featuremill.base.this_process import VERSION
from featuremill.base.words import counted
from featuremill.store import shared
from featuremill.store.files import read_json, sha256_of, write_json
from featuremill.store.journal import part_schema
from featuremill.store.journal_log import digest_of_file
from featuremill.store.parts import Part, checked, read_columns
from featuremill.store.plan import Settings
from featuremill.store.receipt import Receipt, UsedDevice
from featuremill.store.shared_index import NUM_BUCKETS, chosen, keep_index, levels_of_parts
from featuremill.workload import Device, find_workload, optional, workloads
from featuremill.workload.recipe import recipe_of, settings_of
from featuremill.workload.weights import model_name_of

CARD = "card.json"
BLOCK_BYTES = 8 * 2**20
"""The bytes of rows that are read and written together, so that no reader has to hold a whole
part."""
NO_DEVICE = Device("cpu", "", "none", has_bf16=False)
log = logging.getLogger("featuremill.store")


# ---- export ----


def export(store: Path, to: Path, recipe: str, licence: str) -> None:
    """Write what `store` has of each recipe that begins so as a data set below `to`, each payload
    once.

    Raises:
        UserError: when there is no such recipe, or the folder of one is there already.
    """
    recipes = sorted({shelf.folder.name for shelf in shared.all_shelves(store) if shelf.parts()})
    wanted = [name for name in recipes if name.startswith(recipe)]
    if not wanted:
        known = ", ".join(name[:8] for name in recipes) or "none"
        raise UserError(f"{store}: it has no parts of a recipe {recipe!r}; it has {known}.")
    for name in wanted:
        if (to / name).exists():
            raise UserError(f"{to / name}: it exists already; remove it, or name another folder.")
        _export_one(store, to / name, name, licence)


def _export_one(store: Path, to: Path, recipe: str, licence: str) -> None:
    shelves = shared.shelves(store, recipe)
    content = next(filter(None, (read_json(shelf.folder / shared.RECIPE) for shelf in shelves)), {})
    settings = Settings.model_validate({key: content[key] for key in content if key != "seal"})
    to.mkdir(parents=True)
    files: dict[str, Any] = {}
    num_records = 0
    columns: list[str] = []
    shown = Progress(log, f"exporting {recipe[:8]}", "parts")
    good = _good_parts(shelves)
    for count, (part, rows) in enumerate(_rows_to_give(good), 1):
        columns = part.values.names
        name = f"{part.path.stem}.parquet"
        schema = pa.schema([part_schema(part.values).field("sha256"), *part.values])
        with pq.ParquetWriter(to / name, schema, compression="zstd") as file:
            for block in _blocks(_rows_of(part, rows), schema):
                file.write_table(block)
        files[name] = {"sha256": sha256_of(to / name), "receipt": part.receipt.as_json()}
        num_records += len(rows)
        shown.at(count)
    card = {
        "version": 1,
        "recipe": recipe,
        "model": model_name_of(settings) or settings.workload,
        "settings": settings.as_json(),
        "licence_of_weights": licence or None,
        "records": num_records,
        "key": "sha256 of the record's payload: for a protein, of its cleaned sequence",
        "columns": columns,
        "featuremill_version": VERSION,
        "exported": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "files": files,
    }
    write_json(to / CARD, card)
    log.info("%s: %s of %s", to, counted(num_records, "record"), card["model"])
    if not licence:
        log.warning("the card names no licence of the weights; --licence adds it.")


def _rows_of(part: Part, rows: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """Yield sha256 and values of these rows of the part's shard, in the order of the part."""
    wanted = np.sort(part.row_numbers()[rows])
    first = 0
    for batch in part.batches():
        start, end = np.searchsorted(wanted, [first, first + batch.num_rows])
        few = batch.select(["sha256", *part.values.names])
        yield few.take(pa.array(wanted[start:end] - first))
        first += batch.num_rows


def _blocks(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of `batches` in pieces of about `BLOCK_BYTES`."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        num_rows = max(1, BLOCK_BYTES * batch.num_rows // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, num_rows):
            held.append(batch.slice(start, num_rows))
            if sum(piece.nbytes for piece in held) >= BLOCK_BYTES:
                yield pa.Table.from_batches(held, schema)
                held = []
    if held:
        yield pa.Table.from_batches(held, schema)


def _good_parts(shelves: Sequence[shared.Shelf]) -> dict[str, Part]:
    """Return the undamaged parts by name; warn about the others."""
    parts: dict[str, Part] = {}
    for shelf in shelves:
        for name, path in shelf.parts().items():
            if name in parts:
                continue
            try:
                receipt = Receipt.read(path.with_suffix(".json"))
                parts[name] = checked(path, [receipt], receipt.rows)
            except (IntegrityError, UserError, OSError) as problem:
                log.warning("%s", problem)
    return parts


def _rows_to_give(good: Mapping[str, Part]) -> Iterator[tuple[Part, npt.NDArray[np.int64]]]:
    """Yield the `good` parts, each with the rows that no earlier part has."""
    paths = {name: part.path for name, part in good.items()}
    numbers = {name: number for number, name in enumerate(paths)}
    with tempfile.TemporaryDirectory() as scratch:
        # All parts are read anyway, so no index that any user may have written is needed.
        levels = levels_of_parts(paths, Path(scratch))
        numbered = [(level, level.numbered(numbers)) for level in levels]
        rows_of: list[list[npt.NDArray[np.int32]]] = [[] for _ in numbers]
        for bucket in range(NUM_BUCKETS if levels else 0):
            sha256, part, row = chosen(numbered, bucket)
            is_first = np.ones(len(sha256), bool)
            is_first[1:] = sha256[1:] != sha256[:-1]
            part, row = part[is_first], row[is_first]
            for number in np.unique(part).tolist():
                rows_of[number].append(row[part == number])
    for each, rows in zip(good.values(), rows_of, strict=True):
        if rows:
            yield each, np.sort(np.concatenate(rows)).astype(np.int64)


# ---- import ----


def take(store: Path, source: Path, fasta: Path | None, declared: str, layer: int | None) -> None:
    """Import the data set or the published vectors at `source` into `store`.

    Raises:
        UserError: when it is none, or `fasta` or `declared` are lacking.
    """
    shared.open_layers([str(store)])
    if (source / CARD).is_file():
        _take_export(store, source)
        return
    if fasta is None or not declared:
        raise UserError(
            f"{source}: give --fasta, the sequences of these vectors, and --declared, who "
            "published them and of which model: nothing else is known of them."
        )
    _take_published(store, source, fasta, declared, layer)


def _take_export(store: Path, source: Path) -> None:
    card = read_json(source / CARD) or {}
    try:
        recipe, files = card["recipe"], card["files"]
        settings = Settings.model_validate(card["settings"])
        receipts = {name: Receipt.model_validate(entry["receipt"]) for name, entry in files.items()}
        sha256 = {name: entry["sha256"] for name, entry in files.items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        recipe = ""
    if not recipe or recipe_of(settings) != recipe:
        raise UserError(f"{source / CARD}: it is not as featuremill wrote it; copy it again.")
    if other := next((name for name in receipts if receipts[name].recipe != recipe), ""):
        raise UserError(
            f"{source / CARD}: its recipe is not that of {other}, whose values would never be "
            "used; export it again."
        )
    num_records = 0
    for name, receipt in receipts.items():
        is_here = Path(name).name == name and (source / name).is_file()
        if not is_here or sha256_of(source / name) != sha256[name]:
            raise UserError(f"{source / name}: it is not as {CARD} lists it; copy it again.")
        try:
            with pq.ParquetFile(source / name, pre_buffer=False) as file:
                schema = file.schema_arrow
                if schema.names[:1] != ["sha256"]:
                    raise UserError(f"{source / name}: it has no column sha256; export it again.")
                num_records += file.metadata.num_rows
                groups = map(file.read_row_group, range(file.num_row_groups))
                batches = itertools.chain.from_iterable(group.to_batches() for group in groups)
                _publish(store, recipe, settings, batches, schema, receipt)
        except (pa.ArrowException, IntegrityError) as problem:
            what = f"it is no part that featuremill wrote ({problem})"
            raise UserError(f"{source / name}: {what}; export it again.") from None
    keep_index(store, recipe)
    log.info("%s: %s of %s imported", source, counted(num_records, "record"), card.get("model"))


def _publish(
    store: Path,
    recipe: str,
    settings: Settings,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    receipt: Receipt,
) -> None:
    """Publish a part with these rows of (sha256, values …), made as the `receipt` says.

    Raises:
        IntegrityError: when a value is missing or not finite, or a payload is there twice.
    """
    values = pa.schema(list(schema)[1:]).remove_metadata()
    num_rows = 0
    with tempfile.TemporaryDirectory(dir=shared.own_folder(store), prefix=".import.") as folder:
        path = Path(folder, "part")
        with pa.ipc.new_stream(str(path), part_schema(values)) as file:
            for block in _blocks(batches, schema):
                num = block.num_rows
                if any(not_finite(batch).any() for batch in block.to_batches()):
                    raise IntegrityError("a value is missing or not finite")
                sha256 = block["sha256"].cast(pa.binary(32))
                columns = [sha256, pa.repeat("ok", num), pa.nulls(num, pa.string())]
                table = pa.table([*columns, *block.columns[1:]], schema=part_schema(values))
                file.write_table(table.combine_chunks())
                num_rows += num
        if len(np.unique(read_columns(path)[0])) != num_rows:
            raise IntegrityError("a payload is there twice")
        update = {"part": digest_of_file(path), "rows": num_rows, "ok": num_rows, "failed": 0}
        shared.publish(store, recipe, settings.as_json(), path, receipt.model_copy(update=update))


def _take_published(
    store: Path, source: Path, fasta: Path, declared: str, layer: int | None
) -> None:
    name, lots = _published(source, fasta, declared, layer)
    num_without, num_taken, options = 0, 0, None
    for options, table, without in lots:
        settings = settings_of(name, find_workload(name), options, NO_DEVICE, None)
        device = f"declared by {options.declared}, not computed here"
        receipt = Receipt(
            rows=0,
            ok=0,
            failed=0,
            cost=table.num_rows,
            seconds={"total": 0.0},
            version=Receipt.NEWEST,
            shard=source.name,
            recipe=recipe_of(settings),
            part="",
            devices=[UsedDevice(kind="cpu", uuid="", name=device)],
        )
        _publish(store, receipt.recipe, settings, table.to_batches(), table.schema, receipt)
        num_taken, num_without = num_taken + table.num_rows, without
    if options is None:
        raise UserError(
            f"{source}: it has vectors of none of the proteins in {fasta}; check that both have "
            "the same ids or accessions."
        )
    keep_index(store, receipt.recipe)
    more = f"; {num_without:,} records of {fasta} have none" if num_without else ""
    log.info("%s: %s imported%s", source, counted(num_taken, "vector"), more)
    config = {"workload": name, "options": options.model_dump(exclude_defaults=True)}
    log.info("in a config:")
    yaml.safe_dump({**config, "store": str(store)}, sys.stdout, sort_keys=False)


def _published(
    source: Path, fasta: Path, declared: str, layer: int | None
) -> tuple[str, Iterator[tuple[Any, pa.Table, int]]]:
    """Return the workload that takes vectors of others, by name, and what it takes."""
    for name in workloads():
        lots = optional(find_workload(name), "published")(source, fasta, declared, layer)
        if lots is not None:
            return name, lots
    raise UserError(f"{source}: no workload here takes vectors of others; install one.")
