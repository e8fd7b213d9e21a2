"""Which result files there are: their names, what each one holds, and what it takes on disk.

A table and nothing else, without heavy imports: the config, plan's estimate and merge all read it.
The writer of a format is the module of the same name in `outputs/`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

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


FORMATS = {
    "parquet": Format("embeddings.parquet", 110),
    "parquet_dataset": Format("embeddings", 110, is_folder=True),
    "per_protein_h5": Format("per-protein.h5", 400, "pooled"),
    "per_residue_h5": Format("per-residue.h5", 400, "per_residue"),
    "npy": Format("embeddings.npy", 0, "pooled", has_sidecar=True),
    "h5ad": Format("embeddings.h5ad", 400, "pooled"),
    "safetensors": Format("embeddings.safetensors", 32, "pooled"),
    "fair_esm_pt": Format("fair-esm-pt", 4096, is_folder=True, files_a_record=1),
}
"""By the name in the config's `outputs`. A `.pt` also fills its last block of the file system."""


def sidecar_of(file: str) -> str:
    """Return the name of the file with the attributes of the result `file`."""
    return f"{file}.json"
