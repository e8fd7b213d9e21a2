"""Which result files there are: their names, what each one holds, what it takes on disk, and for
how many records it is good.

A table and nothing else, without heavy imports: the config, plan's estimate and merge all read it.
The writer of a format is the module of the same name in `outputs/`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from featuremill.base.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["pooled", "per_residue"]
OutputName = Literal[
    "parquet",
    "parquet_dataset",
    "per_protein_h5",
    "per_residue_h5",
    "npy",
    "h5ad",
    "safetensors",
    "fair_esm_pt",
]
"""The names in `FORMATS`."""


class Format(NamedTuple):
    """A kind of result."""

    file: str
    """Its name in `results/<run>/`."""
    bytes_a_record: int
    """What a record takes beside its values, about: id, header, and the format's own."""
    kind: Kind | None = None
    """The values that it holds and cannot do without; None where it takes whatever there is."""
    is_folder: bool = False
    has_sidecar: bool = False
    """Whether the attributes stand in a file of their own, as the format has no place for them."""
    files_a_record: int = 0
    most_records: int | None = None
    """From more records than that on it stops being sensible; None where it never does, as `npy`,
    which is mapped and not read."""
    why_no_more: str = ""


_ONE_FILE = "one file of that size is hard to move and to read; parquet_dataset writes a folder."
_ONE_BY_ONE = (
    "a dataset a record takes minutes for each million of them, and such a file opens slowly; "
    "parquet_dataset is the output for so many."
)
_ONE_FILE_EACH = (
    "a file a record is slow to write, to list and to copy, and many clusters limit their number; "
    "parquet_dataset is the output for so many."
)
FORMATS = {
    "parquet": Format("embeddings.parquet", 110, most_records=5_000_000, why_no_more=_ONE_FILE),
    "parquet_dataset": Format("embeddings", 110, is_folder=True),
    "per_protein_h5": Format(
        "per-protein.h5", 400, "pooled", most_records=1_000_000, why_no_more=_ONE_BY_ONE
    ),
    "per_residue_h5": Format(
        "per-residue.h5", 400, "per_residue", most_records=1_000_000, why_no_more=_ONE_BY_ONE
    ),
    "npy": Format("embeddings.npy", 0, "pooled", has_sidecar=True),
    "h5ad": Format("embeddings.h5ad", 400, "pooled"),
    "safetensors": Format("embeddings.safetensors", 32, "pooled"),
    "fair_esm_pt": Format(
        "fair-esm-pt",
        4096,
        is_folder=True,
        files_a_record=1,
        most_records=100_000,
        why_no_more=_ONE_FILE_EACH,
    ),
}
"""By the name in the config's `outputs`. A `.pt` also fills its last block of the file system."""
ABOUT = ("id", "accession", "description", "length", "sha256")
"""Columns of a finished table that are no values."""
FAIR_ESM_KEYS = {
    "mean": "mean_representations",
    "bos": "bos_representations",
    "residues": "representations",
}
_FAIR_ESM_COLUMN = re.compile(rf"({'|'.join(FAIR_ESM_KEYS)})_layer_([0-9]+)")


def sidecar_of(file: str) -> str:
    """Return the name of the file with the attributes of the result `file`."""
    return f"{file}.json"


def files_of(path: Path) -> list[Path]:
    """Return the files of a result; in a folder, Snakemake has one of its own beside them."""
    if not path.is_dir():
        return [path]
    found = [*path.glob("part-*.parquet"), *path.rglob("*.pt")]
    return sorted(file for file in found if file.is_file())  # headers make folders of any name


def fair_esm_columns(values: pa.Schema) -> dict[str, tuple[str, int]]:
    """Return, for each column of `values`, the key and the layer that fair-esm's extract.py has it
    under.

    Raises:
        UserError: when there is a column that extract.py has no key for.
    """
    found = {field.name: _FAIR_ESM_COLUMN.fullmatch(field.name) for field in values}
    others = [name for name, match in found.items() if not match]
    if others:
        raise UserError(
            f"outputs: fair_esm_pt holds columns such as mean_layer_6, and not {others[0]!r}; "
            "it is for workload esm2: drop it."
        )
    return {
        name: (FAIR_ESM_KEYS[match[1]], int(match[2])) for name, match in found.items() if match
    }
