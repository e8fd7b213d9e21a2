"""How many bytes values take."""

from __future__ import annotations

import pyarrow as pa

# Until all look for them there.
from featuremill.base.words import counted as counted
from featuremill.base.words import human_bytes as human_bytes


def expected_bytes(schema: pa.Schema, num_rows: int, total_length: int) -> int:
    """Return the bytes of the values: exact for fixed sizes, an element a residue in lists."""
    return sum(_bytes_of(field.type, num_rows, total_length) for field in schema)


def _bytes_of(kind: pa.DataType, count: int, total_length: int) -> int:
    if pa.types.is_fixed_size_list(kind):
        return _bytes_of(kind.value_type, count * kind.list_size, total_length * kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _bytes_of(kind.value_type, total_length, total_length)
    if pa.types.is_primitive(kind):
        return count * int(kind.bit_width) // 8
    return 0
