"""Write embeddings.parquet: id, accession, description, length, sha256 (hex) and all columns of
values; in a run with samples also sample."""

from __future__ import annotations

import binascii
import json
from typing import TYPE_CHECKING

from featuremill.workload.outputs import Format, Target, own_ids

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = Format(
    "embeddings.parquet",
    "pandas, polars, DuckDB, R's arrow",
    110,
    most_records=5_000_000,
    why_not_more="one file of that size is hard to move and to read; parquet_dataset writes a "
    "folder.",
    also_called=("arrow", "feather", "pandas"),
)
HEX_DIGITS = 64


class Writer:
    """Writes each block as a row group. Vectors are not compressed, as that saves hardly any."""

    def __init__(self, target: Target, *, has_statistics: bool = True) -> None:
        """Without `has_statistics`, the values have no minimum and maximum in the footer."""
        import pyarrow as pa
        import pyarrow.parquet

        metadata = {"featuremill": json.dumps(target.provenance, sort_keys=True)}
        about = {name: pa.int32() if name == "length" else pa.string() for name in target.about}
        self._schema = pa.schema([*pa.schema(about), *target.values], metadata=metadata)
        self._file = pa.parquet.ParquetWriter(
            target.path,
            self._schema,
            compression=dict.fromkeys(target.about, "zstd")
            | dict.fromkeys(target.values.names, "none"),
            use_dictionary=[*target.id_columns.keys] or False,
            write_statistics=has_statistics or [*target.about],
        )

    def write(self, block: pa.Table) -> None:
        import pyarrow as pa

        from featuremill.kit.ids import accessions

        ids = own_ids(block)
        columns = {name: block[name] for name in block.column_names} | {
            "id": ids,
            "accession": accessions(ids),
            "length": block["length"].cast(pa.int32()),
            "sha256": hexadecimal(block["sha256"]),
        }
        ordered = [columns[name] for name in self._schema.names]
        self._file.write_table(pa.table(ordered, schema=self._schema))

    def close(self) -> None:
        self._file.close()


def hexadecimal(sha256: pa.ChunkedArray) -> pa.Array:
    """Return digests of 32 bytes as texts of 64 hex digits."""
    import numpy as np
    import pyarrow as pa

    from featuremill.kit.arrays import digests

    binary = digests(sha256)
    edges = np.arange(len(binary) + 1, dtype=np.int32) * HEX_DIGITS
    text = binascii.hexlify(binary.tobytes())
    return pa.StringArray.from_buffers(len(binary), pa.py_buffer(edges), pa.py_buffer(text))
