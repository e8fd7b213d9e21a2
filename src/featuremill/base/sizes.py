"""How many bytes values take, and how to say numbers."""

from __future__ import annotations

import pyarrow as pa


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


def counted(number: int, noun: str, nouns: str = "") -> str:
    """Return `number` with its noun: 1 shard, 2,000 shards; `nouns` where an s is not enough."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {nouns or noun + 's'}"


def human_bytes(size: float) -> str:
    """Return `size` bytes in the largest unit that leaves a number of at least one."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
