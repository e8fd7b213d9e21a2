"""The workload `imported`: vectors that others computed and published, read from a store.

`featuremill store import` writes them to the store under the recipe of these options, which no
computed vector has. Nothing is computed: a record without an imported vector fails.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from featuremill.inputs import TableOptions, proteins
from featuremill.kit.errors import UserError
from featuremill.kit.ids import accessions
from featuremill.kit.reasons import Kind
from featuremill.workload import RecordFailed

VERSION = "1"
COST_UNIT = LENGTH_UNIT = "residues"
BYTES_ARE_LENGTHS = True
REASONS = (
    Kind(
        "absent",
        ("not among the imported vectors",),
        "Import a file that has this protein, or raise max_failed and do without it.",
    ),
)
ROWS_AT_ONCE = 50_000
Vector = npt.NDArray[np.floating[Any]]


class Options(TableOptions):
    """The config `options`, which `featuremill store import` prints."""

    declared: str = Field(min_length=1)
    """Who published the vectors, and of which model, in words: all that is known of them."""
    width: int = Field(ge=1)
    """Numbers in a vector."""
    dtype: Literal["float16", "float32"] = "float32"
    """Their type, as published."""


def records(files: Any, options: Options) -> Any:
    return proteins(files, options)


def cost(payload: bytes, options: Options) -> int:
    return len(payload)


def weights(options: Options) -> None:
    """Return None, as there are no weights."""


def resolve(options: Options, device: Any, weights: None) -> Options:
    return options


def schema(options: Options, weights: None) -> pa.Schema:
    kind = pa.float16() if options.dtype == "float16" else pa.float32()
    return pa.schema({"imported": pa.list_(kind, options.width)})


def batch_cost(options: Options, device: Any) -> int:
    return 1_000_000


def load(options: Options, devices: Any, weights: None) -> Options:
    """Return the options, as the reason of a failed record names the publisher."""
    return options


def prepare(model: Options, payloads: Any, batch_cost: int) -> Any:
    return payloads


def run(model: Options, batch: Any) -> Any:
    """Raise RecordFailed, as imported vectors cannot be computed."""
    raise RecordFailed("absent", f"declared by {model.declared}")


def collect(model: Options, result: Any) -> Any:
    """Return `result`; never called, as `run` returns nothing."""
    return result


def published(source: Path, fasta: Path, declared: str, layer: int | None) -> Iterator[Any]:
    """Yield options, a table of vectors and the number of proteins without one, for each lot of the
    published vectors in `source`."""
    file = read(source, layer)
    for first, table, num_without in _lots_of(file, source, fasta):
        facts = {"width": len(first), "dtype": first.dtype.name, "declared": declared + file.about}
        yield Options.model_validate(facts), table, num_without


class Published(NamedTuple):
    """The vectors of a file, by the names of their proteins."""

    keys: dict[str, Any]
    """The key for each name of a protein."""
    vector_of: Callable[[Any], Vector]
    """Returns the vector of a key."""
    about: str = ""


class Lot(NamedTuple):
    """Some vectors of one length and type."""

    first: Vector
    """The first vector of all lots."""
    table: pa.Table
    """The sha256 of the payload, and the vector, of each distinct sequence."""
    num_without: int


def read(source: Path, layer: int | None) -> Published:
    """Return the vectors in an HDF5 file, or in a file or folder of fair-esm's files.

    Raises:
        UserError: `source` is none of these.
    """
    import h5py

    is_hdf5 = source.is_file() and h5py.is_hdf5(source)
    return _of_hdf5(source) if is_hdf5 else _of_fair_esm(source, layer)


def _lots_of(published: Published, source: Path, fasta: Path) -> Iterator[Lot]:
    """Yield the vectors of the proteins in `fasta`, in lots of `ROWS_AT_ONCE`; nothing if no
    protein has a vector.

    Raises:
        UserError: vectors have different lengths or types, one is not finite, or one belongs to two
            proteins.
    """
    wanted, num_without = _wanted(published.keys, source, fasta)
    first: Vector | None = None
    vectors: dict[bytes, Vector] = {}
    for sha256, (key, id) in wanted.items():
        vector = published.vector_of(key)
        first = vector if first is None else first
        if (vector.shape, vector.dtype) != (first.shape, first.dtype):
            raise UserError(
                f"{source}: the vector of {id} has {len(vector)} numbers in {vector.dtype}, "
                f"and the first one {len(first)} in {first.dtype}; import each kind by itself."
            )
        if not len(vector) or not np.isfinite(vector).all():
            problem = f"is not finite in {vector.dtype}" if len(vector) else "has no numbers"
            raise UserError(f"{source}: the vector of {id} {problem}; leave it out.")
        if len(vectors) == ROWS_AT_ONCE:
            yield Lot(first, _table(vectors), num_without)
            vectors = {}
        vectors[sha256] = vector
    if first is not None:
        yield Lot(first, _table(vectors), num_without)


def _wanted(
    keys: dict[str, Any], source: Path, fasta: Path
) -> tuple[dict[bytes, tuple[Any, str]], int]:
    """Return the key of each sequence in `fasta` with the id of its first record, by the sequence's
    sha256, and the number of records without a key.

    Raises:
        UserError: records of different sequences have the same key.
    """
    wanted: dict[bytes, tuple[Any, str]] = {}
    sequence_of: dict[Any, bytes] = {}
    num_without = 0
    records = proteins([fasta])
    while some := list(itertools.islice(records, 10_000)):
        known_as = accessions(pa.array([record.id for record in some])).to_pylist()
        for record, accession in zip(some, known_as, strict=True):
            names = (f"{record.id} {record.description}".strip(), record.id, accession)
            name = next((name for name in names if name in keys), None)
            if record.reason or name is None:
                num_without += 1
                continue
            sha256 = hashlib.sha256(record.payload).digest()
            if (known := sequence_of.setdefault(keys[name], sha256)) != sha256:
                other = wanted[known][1]
                raise UserError(
                    f"{source}: its vector of {name!r} could be that of {other} or of {record.id} "
                    f"in {fasta}, which have different sequences; leave one of them out."
                )
            wanted.setdefault(sha256, (keys[name], record.id))
    return wanted, num_without


def _table(vectors: dict[bytes, Vector]) -> pa.Table:
    flat = pa.array(np.concatenate(list(vectors.values())))
    values = pa.FixedSizeListArray.from_arrays(flat, len(flat) // len(vectors))
    return pa.table([pa.array(vectors, pa.binary(32)), values], ["sha256", "imported"])


def _of_hdf5(path: Path) -> Published:
    """Read UniProt's per-protein.h5, the HDF5 of bio_embeddings, or our own: one dataset per
    protein. Its name is the accession, or a number if the attribute `original_id` has the id."""
    import h5py

    from featuremill.kit.hdf5 import open_whole

    try:
        file = open_whole(path)
    except OSError as error:
        raise UserError(f"{path}: HDF5 cannot read it ({error}); copy it again.") from None
    keys: dict[str, str] = {}
    for key in file:
        if not isinstance(file[key], h5py.Dataset):
            raise UserError(
                f"{path}: {key} is a group; give a file with one dataset for each protein."
            )
        id = file[key].attrs.get("original_id")
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
        numbers = file[key][()]
        if getattr(numbers, "ndim", 0) != 1 or numbers.dtype.kind != "f":
            raise UserError(
                f"{path}: dataset {key} is not one vector of numbers but has the shape "
                f"{np.shape(numbers)}; vectors a residue cannot be imported."
            )
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused as not finite
            return np.asarray(numbers, np.float16 if numbers.dtype == np.float16 else np.float32)

    return Published(keys, vector)


def _of_fair_esm(path: Path, layer: int | None) -> Published:
    """Read `mean_representations` of fair-esm's .pt file, or of all such files in a folder."""
    files = sorted(path.rglob("*.pt")) if path.is_dir() else [path]
    if not files or not all(file.suffix == ".pt" and file.is_file() for file in files):
        raise UserError(
            f"{path}: it is none of: a data set of `featuremill store export`, an HDF5 file with a "
            "dataset for each protein, a .pt file of fair-esm or a folder of them; check the path."
        )

    import torch

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
