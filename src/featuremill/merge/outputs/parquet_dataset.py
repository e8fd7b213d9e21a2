"""embeddings/: what embeddings.parquet holds, cut into files of a million rows each.

pandas, pyarrow.dataset, polars and duckdb read the folder (or `embeddings/*.parquet`) as one table;
sorted by name, the files have the rows in input order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featuremill.merge.outputs import parquet
from featuremill.workload.outputs import Format, Target

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = Format(
    "embeddings", "the same, a million rows a file", 110, is_folder=True, holds=("part-*.parquet",)
)
ROWS_A_FILE = 1_000_000


class Writer:
    """Cuts blocks at the borders of files."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._num_files = 0
        self._begin()

    def _begin(self) -> None:
        path = self._target.path / f"part-{self._num_files:05d}.parquet"
        self._file = parquet.Writer(self._target._replace(path=path))
        self._num_files += 1
        self._room = ROWS_A_FILE

    def write(self, block: pa.Table) -> None:
        """Append a block, which becomes a row group of each file that it touches."""
        while block.num_rows:
            if not self._room:
                self._file.close()
                self._begin()
            piece, block = block.slice(0, self._room), block.slice(self._room)
            self._file.write(piece)
            self._room -= piece.num_rows

    def close(self) -> None:
        """Finish the last file."""
        self._file.close()
