"""Write embeddings.safetensors: a tensor (records, width) for each pooled column, and `ids`.

`ids` has the bytes of the ids in UTF-8, each followed by a line break:
`bytes(ids).decode().splitlines()`. In a run with samples, an id is `<sample>/<id>`. The provenance
is in the header's `__metadata__`. The library would need all tensors in memory, so the file is
written here: a length, a JSON header and the numbers (README of safetensors, "Format").
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from featuremill.kit.errors import UserError
from featuremill.workload.outputs import Format, Target, kind_of, need

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = Format("embeddings.safetensors", "PyTorch, JAX, Rust", 32, "pooled")
KINDS = {
    "halffloat": "F16",
    "float": "F32",
    "double": "F64",
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}
"""The format's names of number types, by Arrow's."""
IDS = "ids"
LARGEST = 2**62
"""The assumed bytes of the ids, for the longest possible header."""


class Writer:
    """Reserves space for the header, and writes each column to its position and the ids last."""

    @classmethod
    def check(cls, values: pa.Schema) -> None:
        if IDS in values.names and kind_of(values.field(IDS).type) == "pooled":
            raise UserError(f"outputs: safetensors has a tensor {IDS!r} of its own; drop it.")

    def __init__(self, target: Target) -> None:
        self._columns = need(target.pooled(), "safetensors", "a pooled value")
        self._kinds = {name: target.values.field(name).type for name in self._columns}
        self._num_rows = target.num_rows
        self._metadata = {**target.provenance, "columns": ",".join(self._columns)}
        kinds = self._kinds.values()
        sizes = (kind.list_size * kind.value_type.bit_width // 8 for kind in kinds)
        edges = [0, *accumulate(size * target.num_rows for size in sizes)]
        self._starts = dict(zip([*self._columns, IDS], edges, strict=True))
        longest = len(self._header(LARGEST))
        # After the length; numbers begin at a multiple of 8.
        self._data = 8 + longest + -longest % 8
        self._ends = dict(self._starts)
        self._file = target.path.open("wb")

    def _header(self, ids_end: int) -> bytes:
        """Return the JSON; `ids_end` is the end of the ids, counted from the end of the header."""
        header: dict[str, Any] = {"__metadata__": self._metadata}
        ends = [*list(self._starts.values())[1:], ids_end]
        for (name, start), end in zip(self._starts.items(), ends, strict=True):
            kind = self._kinds.get(name)
            shape = [self._num_rows, kind.list_size] if kind else [end - start]
            dtype = KINDS[str(kind.value_type)] if kind else "U8"
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        return json.dumps(header, ensure_ascii=False).encode()

    def write(self, block: pa.Table) -> None:
        import numpy as np

        from featuremill.kit.arrays import matrix

        for name in self._columns:
            self._append(name, np.ascontiguousarray(matrix(block[name])).data)
        self._append(IDS, "".join(f"{id}\n" for id in block["id"].to_pylist()).encode())

    def _append(self, name: str, content: bytes | memoryview) -> None:
        self._file.seek(self._data + self._ends[name])
        self._ends[name] += self._file.write(content)

    def close(self) -> None:
        """Write the header, padded with spaces as the format allows."""
        with self._file as file:
            header = self._header(self._ends[IDS]).ljust(self._data - 8)
            file.seek(0)
            file.write(len(header).to_bytes(8, "little") + header)
