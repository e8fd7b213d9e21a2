"""Which result files there are, a row each: name, what it holds, what it takes, for how many it is.

Without heavy imports: the config, plan's estimate, merge and all who read results go by this table.
The writer of a format is the module of the same name in `featuremill.merge.outputs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from featuremill.base.errors import UserError
from featuremill.store.files import digest_of_folder, sha256_of

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
FAIR_ESM_COLUMN = re.compile(r"(mean|bos|residues)_layer_([0-9]+)")
ONE_FILE = "one file of that size is hard to move and to read; parquet_dataset writes a folder."
ONE_BY_ONE = (
    "a dataset a record takes minutes for each million of them, and such a file opens slowly; "
    "parquet_dataset is the output for so many."
)
ONE_FILE_EACH = (
    "a file a record is slow to write, to list and to copy, and many clusters limit their number; "
    "parquet_dataset is the output for so many."
)


class Format(NamedTuple):
    """A kind of result."""

    file: str
    """Its name in `results/<run>/`."""
    made_for: str
    """What reads it."""
    bytes_a_record: int
    """What a record takes beside its values, about: id, header, and the format's own."""
    kind: Kind | None = None
    """The values that it holds and cannot do without; None where it takes whatever there is."""
    columns: re.Pattern[str] | None = None
    """What the name of every column has to be like; None where it takes any."""
    most_records: int | None = None
    """From more on it stops being sensible; None where it never does."""
    why_not_more: str = ""
    is_folder: bool = False
    has_sidecar: bool = False
    """Whether the attributes stand in a file of their own, as the format has no place for them."""
    files_a_record: int = 0


FORMATS = {
    "parquet": Format(
        "embeddings.parquet",
        "pandas, polars, DuckDB, R's arrow",
        110,
        most_records=5_000_000,
        why_not_more=ONE_FILE,
    ),
    "parquet_dataset": Format("embeddings", "the same, a million rows a file", 110, is_folder=True),
    "per_protein_h5": Format(
        "per-protein.h5",
        "what reads UniProt's embeddings",
        400,
        "pooled",
        most_records=1_000_000,
        why_not_more=ONE_BY_ONE,
    ),
    "per_residue_h5": Format(
        "per-residue.h5",
        "the same, a vector a residue",
        400,
        "per_residue",
        most_records=1_000_000,
        why_not_more=ONE_BY_ONE,
    ),
    "npy": Format("embeddings.npy", "NumPy, memory-mapped", 0, "pooled", has_sidecar=True),
    "h5ad": Format("embeddings.h5ad", "anndata, scanpy", 400, "pooled"),
    "safetensors": Format("embeddings.safetensors", "PyTorch, JAX, Rust", 32, "pooled"),
    "fair_esm_pt": Format(
        "fair-esm-pt",
        "scripts for fair-esm's `extract.py`",
        4096,
        columns=FAIR_ESM_COLUMN,
        most_records=100_000,
        why_not_more=ONE_FILE_EACH,
        is_folder=True,
        files_a_record=1,
    ),
}
"""By the name in the config's `outputs`. A `.pt` also fills its last block of the file system."""
FILES = {name: format.file for name, format in FORMATS.items()}
FOLDERS = frozenset(name for name, format in FORMATS.items() if format.is_folder)
"""Outputs that are a folder of files."""
FAILED = ("failed.tsv", "failed.fa")
"""What every merge writes beside its outputs: records without values, and how to try them again."""
EXPORTS = "exports.json"
"""What `featuremill export` wrote beside the results; a merge removes it with the files."""
PARTIAL = "partial"
"""The folder in `results/<run>/` with what was computed when someone asked: the same files."""
ABOUT = ("id", "accession", "description", "length", "sha256")
"""Columns of a finished table that are no values."""


def refuse_columns(outputs: Iterable[str], names: Iterable[str]) -> None:
    """Refuse outputs that have no place for values of these names.

    Raises:
        UserError: names the first.
    """
    for output in outputs:
        pattern = FORMATS[output].columns
        if pattern and (others := [name for name in names if not pattern.fullmatch(name)]):
            raise UserError(
                f"outputs: {output} holds columns such as mean_layer_6, and not {others[0]!r}; "
                "it is for workload esm2: drop it."
            )


def sidecar_of(file: str) -> str:
    """Return the name of the file with the attributes of the result `file`."""
    return f"{file}.json"


def files_of(path: Path) -> list[Path]:
    """Return the files of a result; in a folder, Snakemake has one of its own beside them."""
    if not path.is_dir():
        return [path]
    found = [*path.glob("part-*.parquet"), *path.rglob("*.pt")]
    return sorted(file for file in found if file.is_file())  # headers make folders of any name


def bytes_of(path: Path) -> int:
    """Return the size of a result, as manifest.json has it."""
    return sum(file.stat().st_size for file in files_of(path))


def digest_of_result(path: Path) -> str:
    """Return the sha256 of a result, as manifest.json has it.

    A folder's is that of what `sha256sum part-*` (or of all `.pt` files, sorted) prints in it.
    """
    if not path.is_dir():
        return sha256_of(path)
    # Not of what Snakemake has beside them.
    return digest_of_folder(
        {str(file.relative_to(path)): sha256_of(file) for file in files_of(path)}
    )
