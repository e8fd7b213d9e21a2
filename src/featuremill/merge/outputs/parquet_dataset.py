"""embeddings/: what embeddings.parquet holds, cut into files of a million rows each.

pandas, pyarrow.dataset, polars and duckdb read the folder (or `embeddings/*.parquet`) as one table;
sorted by name, the files have the rows in input order.
"""

from __future__ import annotations

import queue
import threading

import pyarrow as pa

from featuremill.merge.outputs import Target, parquet

ROWS_A_FILE = 1_000_000
FILES_AT_ONCE = 2
"""Files that are written at the same time; their blocks are in memory."""


class Writer:
    """Cuts blocks at the borders of files; each file is written on a thread of its own."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._open: list[_File] = []
        self._num_files = 0
        self._room = ROWS_A_FILE
        self._begin()

    def write(self, block: pa.Table) -> None:
        """Append a block, which becomes a row group of each file that it touches."""
        while block.num_rows:
            if not self._room:
                self._open[-1].finish()
                self._begin()
            piece, block = block.slice(0, self._room), block.slice(self._room)
            self._open[-1].add(piece)
            self._room -= piece.num_rows

    def close(self) -> None:
        """Finish every file."""
        for file in self._open:
            file.finish()
        for file in self._open:
            file.join()

    def _begin(self) -> None:
        if len(self._open) == FILES_AT_ONCE:
            self._open.pop(0).join()
        path = self._target.path / f"part-{self._num_files:05d}.parquet"
        self._open.append(_File(self._target._replace(path=path)))
        self._num_files += 1
        self._room = ROWS_A_FILE


class _File:
    """One file and the thread that writes it."""

    def __init__(self, target: Target) -> None:
        self._blocks: queue.Queue[pa.Table | None] = queue.Queue(1)
        self._error: BaseException | None = None
        self._finished = False
        self._thread = threading.Thread(target=self._write, args=(target,))
        self._thread.start()

    def add(self, block: pa.Table) -> None:
        self._blocks.put(block)

    def finish(self) -> None:
        if not self._finished:
            self._finished = True
            self._blocks.put(None)

    def join(self) -> None:
        self._thread.join()
        if self._error:
            raise self._error

    def _write(self, target: Target) -> None:
        is_whole = False
        try:
            writer = parquet.Writer(target)
            while (block := self._blocks.get()) is not None:
                writer.write(block)
            is_whole = True
            writer.close()
        except BaseException as error:
            self._error = error
            while not is_whole and self._blocks.get() is not None:
                pass  # whoever adds blocks must not wait for ever
