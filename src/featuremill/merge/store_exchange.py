"""store export and import: parts as Parquet with a card, and vectors that others published.

What featuremill exported is imported under its own recipe. Anything else gets the recipe of what
its importer declares, with the workload `imported`: no computed value ever has it.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from featuremill.base.accession import accessions
from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.progress import Progress
from featuremill.base.this_process import VERSION
from featuremill.base.words import counted
from featuremill.store import shared
from featuremill.store.files import read_json, sha256_of, write_json
from featuremill.store.journal import part_schema
from featuremill.store.journal_log import digest_of_file
from featuremill.store.parts import Part, checked
from featuremill.store.plan import Settings
from featuremill.store.receipt import Receipt, UsedDevice
from featuremill.store.shared_index import NUM_BUCKETS, chosen, joined, keep_index, levels_of
from featuremill.workload import Device, Record, find_workload
from featuremill.workload.recipe import recipe_of, settings_of
from featuremill.workload.weights import model_told

CARD = "card.json"
WORKLOAD = "imported"
PART_BYTES = 64 * 2**20
"""Of vectors that are imported; they are held in memory until their part is written."""
BLOCK_BYTES = 8 * 2**20
"""Of rows that are read and written together, so that no reader has to hold a whole part."""
NO_DEVICE = Device("cpu", "", "none", has_bf16=False)
log = logging.getLogger("featuremill.store")
Vector = npt.NDArray[np.floating[Any]]


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
    told = next(filter(None, (read_json(shelf.folder / shared.RECIPE) for shelf in shelves)), {})
    settings = Settings.model_validate({key: told[key] for key in told if key != "seal"})
    to.mkdir(parents=True)
    files: dict[str, Any] = {}
    num_records = 0
    columns: list[str] = []
    shown = Progress(log, f"exporting {recipe[:8]}", "parts")
    good = _good_parts(shelves)
    for count, (path, rows) in enumerate(_rows_to_give(shelves, good), 1):
        part, receipt = good[path.stem], good[path.stem].receipt
        columns = part.values.names
        name = f"{path.stem}.parquet"
        schema = pa.schema([part_schema(part.values).field("sha256"), *part.values])
        with pq.ParquetWriter(to / name, schema, compression="zstd") as file:
            for block in _blocks(_these(part, rows), schema):
                file.write_table(block)
        files[name] = {"sha256": sha256_of(to / name), "receipt": receipt.as_json()}
        num_records += len(rows)
        shown.at(count)
    card = {
        "version": 1,
        "recipe": recipe,
        "model": model_told(settings) or settings.workload,
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


def _these(part: Part, rows: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
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
    """Return the parts by name; damaged ones are left out, with a warning."""
    found: dict[str, Part] = {}
    for shelf in shelves:
        for name, path in shelf.parts().items():
            if name in found:
                continue
            try:
                receipt = Receipt.read(path.with_suffix(".json"))
                found[name] = checked(path, [receipt], receipt.rows)
            except (IntegrityError, UserError, OSError) as problem:
                log.warning("%s", problem)
    return found


def _rows_to_give(
    shelves: Sequence[shared.Shelf], good: Mapping[str, Part]
) -> Iterator[tuple[Path, npt.NDArray[np.int64]]]:
    """Yield the `good` parts with those of their rows that no earlier one gives."""
    paths = {name: part.path for name, part in good.items()}
    numbers = {name: number for number, name in enumerate(paths)}
    with tempfile.TemporaryDirectory() as scratch:
        levels = [
            level
            for number, shelf in enumerate(shelves)
            for level in levels_of(shelf, Path(scratch, str(number)))
        ]
        among = [
            np.array([numbers.get(name, -1) for name in one.parts], np.int32) for one in levels
        ]
        given: list[list[npt.NDArray[np.int32]]] = [[] for _ in numbers]
        for bucket in range(NUM_BUCKETS):
            sha256, part, row = joined(
                [
                    chosen(level.bucket(bucket), usable)
                    for level, usable in zip(levels, among, strict=True)
                ]
            )
            is_first = np.ones(len(sha256), bool)
            is_first[1:] = sha256[1:] != sha256[:-1]
            part, row = part[is_first], row[is_first]
            for number in np.unique(part).tolist():
                given[number].append(row[part == number])
    for path, rows in zip(paths.values(), given, strict=True):
        if rows:
            yield path, np.sort(np.concatenate(rows)).astype(np.int64)


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
        receipts = {name: Receipt.model_validate(told["receipt"]) for name, told in files.items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        recipe = ""
    if not recipe or recipe_of(settings) != recipe:
        raise UserError(f"{source / CARD}: it is not as featuremill wrote it; copy it again.")
    num_records = 0
    for name, receipt in receipts.items():
        if Path(name).name != name or sha256_of(source / name) != files[name]["sha256"]:
            raise UserError(f"{source / name}: it is not as {CARD} lists it; copy it again.")
        with pq.ParquetFile(source / name, pre_buffer=False) as file:
            schema = file.schema_arrow
            num_records += file.metadata.num_rows
            groups = map(file.read_row_group, range(file.num_row_groups))
            batches = itertools.chain.from_iterable(group.to_batches() for group in groups)
            _publish(store, recipe, settings, batches, schema, receipt)
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
    """Publish a part with these rows of (sha256, values …), made as the `receipt` says."""
    values = pa.schema(list(schema)[1:]).remove_metadata()
    num_rows = 0
    with tempfile.TemporaryDirectory(dir=shared.own_folder(store), prefix=".import.") as folder:
        path = Path(folder, "part")
        with pa.ipc.new_stream(str(path), part_schema(values)) as file:
            for block in _blocks(batches, schema):
                num = block.num_rows
                sha256 = block["sha256"].cast(pa.binary(32))
                columns = [sha256, pa.repeat("ok", num), pa.nulls(num, pa.string())]
                table = pa.table([*columns, *block.columns[1:]], schema=part_schema(values))
                file.write_table(table.combine_chunks())
                num_rows += num
        told = {"part": digest_of_file(path), "rows": num_rows, "ok": num_rows, "failed": 0}
        shared.publish(store, recipe, settings.as_json(), path, receipt.model_copy(update=told))


class Published(NamedTuple):
    """Vectors by the names that their file has for proteins."""

    keys: dict[str, Any]
    """By each name of a protein."""
    of: Callable[[Any], Vector]
    """Returns the vector of a key."""
    about: str = ""
    """What the file tells of them besides."""


class _Import:
    """Vectors of one kind on their way into a store, some thousand together."""

    def __init__(self, store: Path, source: Path, declared: str) -> None:
        self.num_taken = 0
        self._store, self._source, self._declared = store, source, declared
        self._workload = find_workload(WORKLOAD)
        self._first: Vector | None = None
        self._seen: set[bytes] = set()
        self._held: list[tuple[bytes, Vector]] = []

    @property
    def options(self) -> Any:
        """The options of the workload that go with these vectors."""
        assert self._first is not None
        told = {"width": len(self._first), "dtype": self._first.dtype.name}
        return self._workload.Options(declared=self._declared, **told)

    @property
    def settings(self) -> Settings:
        """What the vectors are declared to be."""
        return settings_of(WORKLOAD, self._workload, self.options, NO_DEVICE, None)

    def add(self, id: str, payload: bytes, vector: Vector) -> None:
        """Take the vector of a protein, the first one of each sequence."""
        first = self._first = vector if self._first is None else self._first
        if (vector.shape, vector.dtype) != (first.shape, first.dtype):
            raise UserError(
                f"{self._source}: the vector of {id} has {len(vector)} numbers in {vector.dtype}, "
                f"and the first one {len(first)} in {first.dtype}; import each kind by itself."
            )
        if not np.isfinite(vector).all():
            raise UserError(f"{self._source}: the vector of {id} is not finite; leave it out.")
        sha256 = hashlib.sha256(payload).digest()
        if sha256 not in self._seen:
            self._seen.add(sha256)
            self._held.append((sha256, vector))
            self.num_taken += 1
        if len(self._held) * vector.nbytes >= PART_BYTES:
            self.write()

    def write(self) -> None:
        """Publish what is held."""
        if not self._held:
            return
        keys, vectors = zip(*self._held, strict=True)
        self._held = []
        settings = self.settings
        (field,) = self._workload.schema(self.options, None)
        flat = pa.array(np.concatenate(vectors))
        columns = [
            pa.array(keys, pa.binary(32)),
            pa.FixedSizeListArray.from_arrays(flat, type=field.type),
        ]
        name = f"declared by {self._declared}, not computed here"
        receipt = Receipt(
            rows=0,
            ok=0,
            failed=0,
            cost=len(keys),
            seconds={"total": 0.0},
            version=Receipt.NEWEST,
            shard=self._source.name,
            recipe=recipe_of(settings),
            part="",
            devices=[UsedDevice(kind="cpu", uuid="", name=name)],
        )
        batch = pa.record_batch(columns, ["sha256", field.name])
        _publish(self._store, receipt.recipe, settings, [batch], batch.schema, receipt)


def _take_published(
    store: Path, source: Path, fasta: Path, declared: str, layer: int | None
) -> None:
    is_hdf5 = source.is_file() and h5py.is_hdf5(source)
    published = _of_hdf5(source) if is_hdf5 else _of_fair_esm(source, layer)
    importing = _Import(store, source, declared + published.about)
    num_without = 0
    for record, names in _records_of(fasta):
        key = next((published.keys[name] for name in names if name in published.keys), None)
        if record.reason or key is None:
            num_without += 1
        else:
            importing.add(record.id, record.payload, published.of(key))
    if not importing.num_taken:
        raise UserError(
            f"{source}: it has vectors of none of the proteins in {fasta}; check that both have "
            "the same ids or accessions."
        )
    importing.write()
    settings = importing.settings
    keep_index(store, recipe_of(settings))
    without = f"; {num_without:,} records of {fasta} have none" if num_without else ""
    log.info("%s: %s imported%s", source, counted(importing.num_taken, "vector"), without)
    config = {"workload": WORKLOAD, "options": importing.options.model_dump(exclude_defaults=True)}
    log.info("in a config:\n%s", yaml.safe_dump({**config, "store": str(store)}, sort_keys=False))


def _records_of(fasta: Path) -> Iterator[tuple[Record, list[str]]]:
    """Yield each record with the names by which a file of vectors may call it."""
    workload = find_workload(WORKLOAD)
    records = workload.records([fasta], workload.Options(declared="of names alone", width=1))
    while some := list(itertools.islice(records, 10_000)):
        found = accessions(pa.array([record.id for record in some])).to_pylist()
        for record, accession in zip(some, found, strict=True):
            header = f"{record.id} {record.description}".strip()
            yield record, [header, record.id, accession]


def _of_hdf5(path: Path) -> Published:
    """Read UniProt's per-protein.h5, bio_embeddings' HDF5, or our own: a dataset a protein, named
    by its accession, or by a number with the id in `original_id`."""
    file = h5py.File(path, "r")
    keys: dict[str, str] = {}
    for key in file:
        if not isinstance(file[key], h5py.Dataset):
            raise UserError(
                f"{path}: {key} is a group; give a file with one dataset for each protein."
            )
        id = file[key].attrs.get("original_id")  # then the dataset's name may be a mere number
        if id is None:
            names = {key.replace("%2F", "/").replace("%25", "%")}
        else:
            id = id.decode() if isinstance(id, bytes) else str(id)
            names = {id, accessions(pa.array([id]))[0].as_py()}
        for name in names:
            if keys.setdefault(name, key) != key:
                raise UserError(
                    f"{path}: the datasets {keys[name]} and {key} are both of {name!r}; drop one."
                )

    def vector(key: str) -> Vector:
        found = file[key][()]
        if getattr(found, "ndim", 0) != 1 or found.dtype.kind != "f":
            raise UserError(
                f"{path}: dataset {key} is not one vector of numbers but has the shape "
                f"{np.shape(found)}; vectors a residue cannot be imported."
            )
        return np.asarray(found, np.float16 if found.dtype == np.float16 else np.float32)

    return Published(keys, vector)


def _of_fair_esm(path: Path, layer: int | None) -> Published:
    """Read `mean_representations` of fair-esm's .pt files: of one, or of all in a folder."""
    import torch

    files = sorted(path.rglob("*.pt")) if path.is_dir() else [path]
    if not files or not all(file.suffix == ".pt" and file.is_file() for file in files):
        raise UserError(
            f"{path}: it is none of: a data set of `featuremill store export`, an HDF5 file with a "
            "dataset for each protein, a .pt file of fair-esm or a folder of them; check the path."
        )

    def read(file: Path) -> Any:
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise UserError(f"{file}: torch cannot read it ({error}); leave it out.") from None

    keys: dict[str, Path] = {}
    for file in files:
        content = read(file)
        if not isinstance(content, dict) or not isinstance(content.get("label"), str):
            raise UserError(f"{file}: it is no file of fair-esm's extract.py; leave it out.")
        if (other := keys.setdefault(content["label"], file)) != file:
            raise UserError(f"{other} and {file} are both of {content['label']!r}; leave one out.")
        if layer is None:  # the last one of the first file
            layer = max(content.get("mean_representations", {}), default=0)

    def vector(file: Path) -> Vector:
        means = read(file).get("mean_representations", {})
        if layer not in means:
            known = ", ".join(map(str, sorted(means))) or "none"
            raise UserError(f"{file}: it has no mean of layer {layer}; it has {known}.")
        return np.asarray(means[layer].float().numpy(), np.float32)

    return Published(keys, vector, f", layer {layer}")
