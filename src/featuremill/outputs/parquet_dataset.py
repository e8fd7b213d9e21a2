"""Write embeddings/: the content of embeddings.parquet, in files of a million rows each.

pandas, pyarrow.dataset, polars and duckdb read the folder (or `embeddings/*.parquet`) as one table;
sorted by name, the files have the rows in the order of the input. A run with samples has a folder
`sample=<name>` for each sample, which readers convert to the column `sample`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featuremill.kit.ids import ID_ALONE, KEYS
from featuremill.outputs import parquet
from featuremill.workload.outputs import Format, Target, by_owner

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = Format(
    "embeddings",
    "the same, a million rows a file",
    110,
    is_folder=True,
    holds=("part-*.parquet", "/".join([*(f"{key}=*" for key in KEYS), "part-*.parquet"])),
    part_name="part-{:05d}.parquet",
)
ROWS_A_FILE = 1_000_000


class PartWriter(parquet.Writer):
    """Writes one of the files; it has no column `sample`, which is the name of its folder."""

    def __init__(self, target: Target) -> None:
        super().__init__(target._replace(id_columns=ID_ALONE), has_statistics=False)


class Writer:
    """Divides blocks among files."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._folder = target.path
        self._num_files = self._room = 0
        self._file: parquet.Writer | None = None

    def _begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / FORMAT.part_name.format(self._num_files)
        self._file = parquet.Writer(self._target._replace(path=path, id_columns=ID_ALONE))
        self._num_files += 1
        self._room = ROWS_A_FILE

    def write(self, block: pa.Table) -> None:
        for keys, rows in by_owner(block):
            folder = self._target.path.joinpath(*map("=".join, keys.items()))
            if folder != self._folder:
                self._finish()
                self._folder, self._num_files, self._room = folder, 0, 0
            while rows.num_rows:
                if not self._room:
                    self._finish()
                    self._begin()
                assert self._file
                piece, rows = rows.slice(0, self._room), rows.slice(self._room)
                self._file.write(piece)
                self._room -= piece.num_rows

    def close(self) -> None:
        if not self._num_files:  # without records, there is one empty file
            self._begin()
        self._finish()

    def _finish(self) -> None:
        if self._file:
            self._file.close()
            self._file = None
