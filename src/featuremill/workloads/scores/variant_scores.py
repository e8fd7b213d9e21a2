"""Write variant_scores.tsv: one row per variant, with id, variant and a column per score, from the
column `variants` of the workload scores."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from featuremill.workload.outputs import Format, Target, need

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FORMAT", "Writer"]
VARIANTS = "variants"
OF_SCORES = re.compile(r"variants|positions|log_probabilities\w*|(pseudo|one_pass)_\w+")
"""Matches the columns of the workload scores."""
FORMAT = Format(
    "variant_scores.tsv",
    "R, spreadsheets, shell tools",
    60,
    "table",
    columns=OF_SCORES,
    columns_like=VARIANTS,
    has_sidecar=True,
)


class Writer:
    """Writes the header, then the variants of each record."""

    COLUMN, OUTPUT = VARIANTS, "variant_scores"

    @classmethod
    def check(cls, values: pa.Schema) -> None:
        columns = [name for name in values.names if name == cls.COLUMN]
        need(columns, cls.OUTPUT, f"a column {cls.COLUMN}")

    def __init__(self, target: Target) -> None:
        from featuremill.kit.tsv import TsvWriter

        struct = target.values.field(self.COLUMN).type.value_type
        self._file = target.path.open("w", encoding="utf-8", newline="\n")
        self._table = TsvWriter(self._file, ["id", *(field.name for field in struct)])

    def write(self, block: pa.Table) -> None:
        import pyarrow.compute as pc

        lists = block[self.COLUMN].combine_chunks()
        ids = block["id"].combine_chunks().take(pc.list_parent_indices(lists))
        rows = pc.list_flatten(lists)
        self._table.columns([ids, *(pc.struct_field(rows, field.name) for field in rows.type)])

    def close(self) -> None:
        self._file.close()
