"""A finished table as a source of rows, where the parts that it was made of are gone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from featuremill.base.errors import UserError
from featuremill.merge.outputs import IDENTITY
from featuremill.store import command_line
from featuremill.store.formats import ABOUT, files_of


class TableSource:
    """The rows of embeddings.parquet or embeddings/, row group by row group."""

    scratch = None

    def __init__(self, path: Path, num_threads: int) -> None:
        """Open it.

        Raises:
            UserError: when it lacks columns, as those of early versions do.
        """
        self.num_threads = num_threads
        self._files = files_of(path)
        schema = pq.read_schema(self._files[0])
        if missing := set(ABOUT) - set(schema.names):
            raise UserError(
                f"{path}: it has no column {sorted(missing)[0]!r}, so it is of an earlier version; "
                f"move it away and have it written anew ({command_line.again(path.parent)})."
            )
        # As they were: reading adds numbers of columns as metadata, which a writer would keep.
        values = [field for field in schema if field.name not in ABOUT]
        self.values = pa.schema([pa.field(field.name, _plain(field.type)) for field in values])

    @property
    def num_rows(self) -> int:
        return sum(pq.read_metadata(file).num_rows for file in self._files)

    @cached_property
    def num_residues(self) -> int:
        total = 0
        for path in self._files:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(columns=["length"]):
                    total += pc.sum(batch["length"]).as_py()
        return total

    def pieces(self) -> Iterator[pa.Table]:
        """Yield the rows as merge handed them to the table's writer."""
        for path in self._files:
            with pq.ParquetFile(path) as file:
                for number in range(file.num_row_groups):
                    group = file.read_row_group(number)
                    yield pa.table(
                        [
                            *(group[name] for name in ("id", "description")),
                            group["length"].cast(pa.int64()),
                            _digests(group["sha256"]),
                            *(group[field.name].cast(field.type) for field in self.values),
                        ],
                        schema=pa.schema([*IDENTITY, *self.values]),
                    )


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type of (nested) lists without the metadata of what is in them."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type), kind.list_size)
    return pa.list_(_plain(kind.value_type)) if pa.types.is_list(kind) else kind


def _digests(text: pa.ChunkedArray) -> pa.Array:
    digits = "".join(text.to_pylist())
    content = pa.py_buffer(bytes.fromhex(digits))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), len(text), [None, content])
