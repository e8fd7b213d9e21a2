"""embeddings.tsv: a row a record, a column a number; for spreadsheets, R and shell tools.

Pooled vectors become columns `<column>_<n>`, n from 0. Numbers have the digits that give the same
float32 when they are read again. Of a sheet of samples, the column sample is in front.
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
    times_as_large=3.0,
    most_records=1_000_000,
    why_not_more="text is three times as large as parquet, and slow to read.",
    has_sidecar=True,
    also_called=("csv", "txt", "table", "text"),
)


class Writer:
    """Writes the names of the columns, then row after row."""

    def __init__(self, target: Target) -> None:
        import pyarrow as pa
        import pyarrow.csv

        self._columns = need(target.pooled(), "tsv", "a pooled value")
        self._keys = target.id_columns.keys
        kinds = {name: target.values.field(name).type for name in self._columns}
        self._schema = pa.schema(
            [(name, pa.string()) for name in (*target.id_columns.names, "accession")]
            + [("length", pa.int64())]
            + [
                (f"{name}_{place}", kind.value_type)
                for name, kind in kinds.items()
                for place in range(kind.list_size)
            ]
        )
        options = pa.csv.WriteOptions(delimiter="\t", quoting_style="needed", quoting_header="none")
        self._file = pa.csv.CSVWriter(target.path, self._schema, write_options=options)

    def write(self, block: pa.Table) -> None:
        """Append the block's rows."""
        import pyarrow as pa

        from featuremill.kit.arrays import matrix
        from featuremill.kit.ids import accessions

        rows = [pa.array(column) for name in self._columns for column in matrix(block[name]).T]
        ids = own_ids(block)
        known = [*(block[key] for key in self._keys), ids, accessions(ids), block["length"]]
        self._file.write_table(
            pa.table([*known, *rows], names=self._schema.names).cast(self._schema)
        )

    def close(self) -> None:
        self._file.close()
