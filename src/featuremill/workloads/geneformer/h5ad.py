"""Read counts of cells from an .h5ad, block by block, in bounded memory; write an AnnData object.

Files are read with h5py, by AnnData's specification: dense, CSR and CSC matrices, and data frames
as groups (0.1.0 and 0.2.0, with categorical and nullable texts) or as the tables of AnnData before
0.7. An object is written by its own class, so this module does not import anndata.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.inputs import source
from featuremill.inputs.columns import listed
from featuremill.kit.errors import UserError
from featuremill.kit.text import one_line

if TYPE_CHECKING:
    import h5py

BLOCK_VALUES = 4_000_000
"""Approximate numbers in a block."""
PASS_VALUES = 64_000_000
"""Numbers of a CSC matrix in memory at once; a larger matrix is read several times."""
GENE_COLUMNS = ("ensembl_id", "gene_ids")
"""Usual names of the column of Ensembl ids in var: Geneformer's, and scanpy's for 10x files."""
ENSEMBL = re.compile(r"(ENS[A-Z]*G\d{11})(\.\d+)?", re.IGNORECASE)
"""A gene's id, and its version."""


class Block(NamedTuple):
    """Consecutive cells."""

    first: int
    names: list[str]
    edges: npt.NDArray[np.int64]
    """The start of each cell's counts in `values`, and the end of the last."""
    columns: npt.NDArray[Any]
    """The index of each count's gene."""
    values: npt.NDArray[Any]
    """The counts that are not 0."""


class Cells:
    def __init__(self, file: h5py.File, path: Path, counts: str, gene_column: str) -> None:
        self._path, self._counts = path, counts
        matrix, frame = ("raw/X", "raw/var") if counts == "raw" else (counts, "var")
        for name in ("obs", frame, matrix):
            if name not in file:
                layers = [f"layers/{layer}" for layer in file.get("layers", ())]
                matrices = ", ".join([*(n for n in ("X", "raw") if n in file), *layers])
                raise UserError(
                    f"{path}: there is no {name} in it; set counts under options to where the "
                    f"counts are ({matrices or 'it has no matrix'})."
                )
        self._matrix, self._obs = file[matrix], file["obs"]
        self.column, self.genes = self._genes(file[frame], gene_column)
        """The source of the genes' ids, for messages, and the ids without versions, in capitals."""
        shape = self._shape()
        num_cells = len(self._obs[_index_of(self._obs)])
        if shape != (num_cells, len(self.genes)):
            raise UserError(
                f"{path}: {counts} is {shape[0]:,} x {shape[1]:,}, and there are {num_cells:,} "
                f"cells and {len(self.genes):,} genes; write the file again."
            )

    def _genes(self, var: Any, chosen: str) -> tuple[str, list[str]]:
        columns = var.dtype.names if _is_table(var) else var
        names = [str(name) for name in columns if name not in (_index_of(var), "__categories")]
        if chosen and chosen not in names:
            remedy = f"set it to one of {listed(names)}" if names else "leave it out"
            raise UserError(
                f"{self._path}: options.gene_column: var has no column {chosen!r}; {remedy}."
            )
        column = chosen or next((name for name in GENE_COLUMNS if name in names), "")
        ids = [id.strip() for id in _texts(var, column or _index_of(var))]
        source = f"column {column} of var" if column else "the names of the genes"
        return source, [match[1].upper() if (match := ENSEMBL.fullmatch(id)) else id for id in ids]

    def _shape(self) -> tuple[int, int]:
        stated = self._matrix.attrs.get("shape", self._matrix.attrs.get("h5sparse_shape"))
        shape = self._matrix.shape if stated is None else stated
        if len(shape) != 2:
            raise UserError(f"{self._path}: {self._counts} is no matrix; write the file again.")
        return int(shape[0]), int(shape[1])

    def num_repeats(self) -> int:
        """Return the number of cells that have the name of an earlier one."""
        names = _texts(self._obs, _index_of(self._obs))
        return len(names) - len(set(names))

    def blocks(self) -> Iterator[Block]:
        kind = _text(self._matrix.attrs.get("encoding-type", "array"))
        kind = _text(self._matrix.attrs.get("h5sparse_format", kind))[:3]
        parts = {"csr": self._by_rows, "csc": self._by_columns}.get(kind, self._dense)()
        index, num_genes = _index_of(self._obs), len(self.genes)
        for first, edges, columns, values in parts:
            if len(columns) and not 0 <= columns.min() <= columns.max() < num_genes:
                raise ValueError(f"{self._counts} names a gene that is not there")
            cells = slice(first, first + len(edges) - 1)
            yield Block(first, _texts(self._obs, index, cells), edges, columns, values)

    def _by_rows(self) -> Iterator[tuple[int, Any, Any, Any]]:
        edges = self._matrix["indptr"][:].astype(np.int64)
        first, last = 0, len(edges) - 1
        while first < last:
            end = int(np.searchsorted(edges, edges[first] + BLOCK_VALUES, side="right")) - 1
            end = min(max(end, first + 1), last)
            part = slice(edges[first], edges[end])
            columns, values = (self._matrix[name][part] for name in ("indices", "data"))
            yield first, edges[first : end + 1] - edges[first], columns, values
            first = end

    def _by_columns(self) -> Iterator[tuple[int, Any, Any, Any]]:
        """Transpose the matrix, in blocks of as many cells as fit in memory."""
        num_cells, _ = self._shape()
        edges = self._matrix["indptr"][:].astype(np.int64)
        size = max(1, num_cells * PASS_VALUES // max(PASS_VALUES, int(edges[-1])))
        for first in range(0, num_cells, size):
            kept = [_NOTHING]
            for start in range(0, int(edges[-1]), BLOCK_VALUES):
                part = slice(start, min(start + BLOCK_VALUES, int(edges[-1])))
                rows, values = (self._matrix[name][part] for name in ("indices", "data"))
                if not 0 <= rows.min() <= rows.max() < num_cells:
                    raise ValueError(f"{self._counts} names a cell that is not there")
                inside = np.flatnonzero((rows >= first) & (rows < first + size))
                columns = np.searchsorted(edges, inside + start, side="right") - 1
                kept.append((rows[inside] - first, columns.astype(np.int32), values[inside]))
            rows, columns, values = map(np.concatenate, zip(*kept, strict=True))
            order = np.argsort(rows, kind="stable")
            counts = np.bincount(rows, minlength=min(size, num_cells - first))
            bounds = np.concatenate(([0], np.cumsum(counts)))
            yield first, bounds, columns[order], values[order]

    def _dense(self) -> Iterator[tuple[int, Any, Any, Any]]:
        num_cells, num_genes = self._shape()
        size = max(1, BLOCK_VALUES // max(1, num_genes))
        for first in range(0, num_cells, size):
            matrix = self._matrix[first : first + size]
            rows, columns = np.nonzero(matrix)
            counts = np.bincount(rows, minlength=len(matrix))
            yield first, np.concatenate(([0], np.cumsum(counts))), columns, matrix[rows, columns]


_NOTHING = tuple(np.empty(0, kind) for kind in (np.int32, np.int32, np.int8))


@contextmanager
def opened(path: Path, counts: str, gene_column: str) -> Iterator[Cells]:
    """Yield the counts of the file `path`; `counts` and `gene_column` are options.

    Raises:
        UserError: the file is no .h5ad, is damaged, or lacks what the options name.
    """
    import h5py

    from featuremill.kit.hdf5 import open_whole

    source.check(path)
    if not h5py.is_hdf5(path):
        raise UserError(f"{path}: this is no HDF5 file, and cells are read from .h5ad; write that.")
    try:
        with open_whole(path) as file:
            yield Cells(file, path, counts, gene_column)
    except UserError:
        raise
    except (OSError, KeyError, ValueError, TypeError, IndexError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: this .h5ad cannot be read ({one_line(str(error)).strip()[:120]}); copy or "
            "download it again, or write it with today's anndata."
        ) from None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _is_table(frame: Any) -> bool:
    return getattr(frame, "dtype", None) is not None


def _index_of(frame: Any) -> str:
    if _is_table(frame):
        return str("index" if "index" in frame.dtype.names else frame.dtype.names[0])
    return _text(frame.attrs.get("_index", "_index"))


def _texts(frame: Any, name: str, rows: slice = slice(None)) -> list[str]:
    """Return the values of a data frame's column as text; "" for missing values."""
    if _is_table(frame):
        return [_text(value) for value in frame[rows][name]]
    column = frame[name]
    categories = column.attrs.get("categories")  # in 0.1.0 a reference to them
    if categories is not None:
        from featuremill.kit.hdf5 import refuse_elsewhere

        referred = refuse_elsewhere(Path(frame.file.filename), frame.file[categories])
        return _named(column[rows], _plain(referred[:]))
    if _is_table(column):
        return _plain(column[rows])
    if "categories" in column:
        return _named(column["codes"][rows], _texts(column, "categories"))
    missing = column["mask"][rows].tolist() if "mask" in column else []
    values = _texts(column, "values", rows)
    return ["" if is_missing else value for value, is_missing in zip(values, missing, strict=True)]


def _plain(values: Any) -> list[str]:
    return [_text(value) for value in values.tolist()]


def _named(codes: Any, categories: list[str]) -> list[str]:
    return [categories[code] if code >= 0 else "" for code in codes.tolist()]


def write(cells: Any, path: Path) -> Path:
    """Write a copy of an AnnData with what `Cells` reads; the object itself is unchanged."""
    raw = cells.raw
    own_raw = None if raw is None else {"X": raw.X, "var": _in_plain_types(raw.var)}
    obs, var = _in_plain_types(cells.obs), _in_plain_types(cells.var)
    try:
        copy = type(cells)(cells.X, obs, var, layers=cells.layers, raw=own_raw)
        copy.write_h5ad(path, convert_strings_to_categoricals=False)
    except Exception as error:
        problem = one_line(f"{type(error).__name__}: {error}")[:200].rstrip(".")
        raise UserError(
            f"inputs: anndata cannot write this AnnData ({problem}); give the path of an .h5ad."
        ) from None
    return path


def _in_plain_types(frame: Any) -> Any:
    """Return a DataFrame with texts and categories as Python's strings, as anndata 0.12 cannot
    write those of pandas 3; a missing value becomes ""."""
    names, columns = frame.index.astype(object), {}
    for name, column in frame.items():
        if column.dtype.kind not in "iufb":
            values = zip(column.tolist(), column.isna().tolist(), strict=True)
            texts = ["" if is_missing else str(value) for value, is_missing in values]
            column = type(column)(texts, index=column.index, dtype=object)
        columns[str(name)] = column.set_axis(names)
    return type(frame)(columns, index=names)
