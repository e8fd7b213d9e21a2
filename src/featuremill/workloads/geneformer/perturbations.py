"""Write perturbations.parquet: one row per cell and perturbed gene, with cell, gene, kind, cosine
and tokens, from the column `shifts` of the workload geneformer. The blocks of a cell are adjacent.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from featuremill.workload.outputs import Format, Target, need

if TYPE_CHECKING:
    import pyarrow as pa

SHIFTS, GENE_SHIFTS, GENES = "shifts", "gene_shifts", "genes"
"""Columns of the workload: the shifts of cells, the shifts of cells with the cosines of their
genes, and the names of genes."""
FORMAT = Format(
    "perturbations.parquet",
    "pandas, polars, DuckDB, R's arrow",
    60,
    "table",
    columns=re.compile(f"{SHIFTS}|{GENE_SHIFTS}|{GENES}"),
    columns_like=SHIFTS,
)
BETWEEN = "_block_"
"""The separator between a cell's name and the number of a block (from 1) in an id."""


class Writer:
    """Writes a row group for each block of records."""

    @classmethod
    def check(cls, values: pa.Schema) -> None:
        column_of(values, "perturbations")

    def __init__(self, target: Target) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        shift = fields_of(target.values, "perturbations")
        metadata = {"featuremill": json.dumps(target.provenance, sort_keys=True)}
        self._schema = pa.schema([pa.field("cell", pa.string()), *shift], metadata=metadata)
        self._file = pa.parquet.ParquetWriter(target.path, self._schema, compression="zstd")

    def write(self, block: pa.Table) -> None:
        self._file.write_table(long_table(block).cast(self._schema))

    def close(self) -> None:
        self._file.close()


def column_of(values: pa.Schema, output: str) -> str:
    """Return the name of the column with shifts.

    Raises:
        UserError: there is none.
    """
    return need([name for name in (SHIFTS, GENE_SHIFTS) if name in values.names], output, SHIFTS)[0]


def fields_of(values: pa.Schema, output: str) -> list[pa.Field]:
    """Return the fields of a shift, without the list of its genes' cosines."""
    import pyarrow as pa

    shift = values.field(column_of(values, output)).type.value_type
    return [field for field in shift if not pa.types.is_list(field.type)]


def long_table(block: pa.Table) -> pa.Table:
    """Return one row per shift of a block's records: its cell, then its fields."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column_of(block.schema, "perturbations")
    rows = block.select(["id", column]).combine_chunks()
    cells = pc.replace_substring_regex(rows["id"], rf"{BETWEEN}\d+$", "")
    parents = pc.list_parent_indices(rows[column])
    shifts = pc.list_flatten(rows[column])
    columns = {"cell": cells.take(parents)} | {
        field.name: pc.struct_field(shifts, field.name)
        for field in fields_of(block.schema, "perturbations")
    }
    return pa.table(columns)


def write_table(table: pa.Table, target: Target) -> None:
    """Write a whole table to `target`, with the provenance in its metadata."""
    import pyarrow.parquet

    metadata = {"featuremill": json.dumps(target.provenance, sort_keys=True)}
    table = table.replace_schema_metadata(metadata)
    pyarrow.parquet.write_table(table, target.path, compression="zstd")


def numbers_of(known: dict[str, int], texts: Any) -> Any:
    """Return the number of each of the dictionary-encoded `texts`; number those that are new."""
    import numpy as np

    numbers = [known.setdefault(text, len(known)) for text in texts.dictionary.to_pylist()]
    return np.array(numbers, np.int64)[texts.indices.to_numpy()]
