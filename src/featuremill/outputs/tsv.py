"""Write embeddings.tsv: a row for each record, a column for each number; for spreadsheets, R and
shell tools.

Pooled vectors become columns `<column>_<n>`, with n from 0. In a run with samples, the column
`sample` is the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featuremill.workload.outputs import Format, Target, need, own_ids

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = Format(
    "embeddings.tsv",
    "R, spreadsheets, shell tools",
    60,
    "pooled",
    times_as_large=2.7,
    most_records=1_000_000,
    why_not_more="text is three times as large as parquet, and slow to read.",
    has_sidecar=True,
    also_called=("csv", "txt", "table", "text"),
)


class Writer:
    """Writes the names of the columns, then the rows."""

    def __init__(self, target: Target) -> None:
        from featuremill.kit.tsv import TsvWriter

        self._columns = need(target.pooled(), "tsv", "a pooled value")
        self._keys = target.id_columns.keys
        names = [*target.id_columns.names, "accession", "length"]
        for name in self._columns:
            width = target.values.field(name).type.list_size
            names += [f"{name}_{index}" for index in range(width)]
        self._file = target.path.open("w", encoding="utf-8", newline="\n")
        self._table = TsvWriter(self._file, names)

    def write(self, block: pa.Table) -> None:
        import pyarrow as pa

        from featuremill.kit.arrays import matrix
        from featuremill.kit.ids import accessions

        numbers = [pa.array(column) for name in self._columns for column in matrix(block[name]).T]
        ids = own_ids(block)
        known = [*(block[key] for key in self._keys), ids, accessions(ids), block["length"]]
        self._table.columns([*known, *numbers])

    def close(self) -> None:
        self._file.close()
