"""perturbations.parquet: a row for each cell and perturbed gene: cell, gene, kind, cosine, tokens.

It is the long table of `shifts` of the workload geneformer. The blocks of a cell are adjacent.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from featuremill.workload.outputs import Format, Target, need

if TYPE_CHECKING:
    import pyarrow as pa

SHIFTS = "shifts"
"""The workload's column."""
FORMAT = Format(
    "perturbations.parquet",
    "pandas, polars, DuckDB, R's arrow",
    60,
    "table",
    columns=re.compile(SHIFTS),
    columns_like=SHIFTS,
)
BETWEEN = "_block_"
"""Separates the cell's name and the number of a block in an id."""


class Writer:
    """Writes a row group for each block of records."""

    def __init__(self, target: Target) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        need([name for name in target.values.names if name == SHIFTS], "perturbations", SHIFTS)
        shift = target.values.field(SHIFTS).type.value_type
        metadata = {"featuremill": json.dumps(target.provenance, sort_keys=True)}
        self._schema = pa.schema([pa.field("cell", pa.string()), *shift], metadata=metadata)
        self._file = pa.parquet.ParquetWriter(target.path, self._schema, compression="zstd")

    def write(self, block: pa.Table) -> None:
        """Append the shifts of a block's records."""
        self._file.write_table(long_table(block).cast(self._schema))

    def close(self) -> None:
        """Write the footer."""
        self._file.close()


def long_table(block: pa.Table) -> pa.Table:
    """Return a row for each shift of a block's records: its cell, then its fields."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = block.select(["id", SHIFTS]).combine_chunks()
    cells = pc.replace_substring_regex(rows["id"], rf"{BETWEEN}\d+$", "")
    parents = pc.list_parent_indices(rows[SHIFTS])
    shifts = pc.list_flatten(rows[SHIFTS])
    columns = {"cell": cells.take(parents)} | {
        field.name: pc.struct_field(shifts, field.name) for field in shifts.type
    }
    return pa.table(columns)
