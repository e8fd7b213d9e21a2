"""How many rows a journal's committed batches hold, from their Arrow headers alone.

A reader of Arrow would read the values as well, or map a file that its writer may cut at any
moment. The layout of a message is that of Arrow's "Encapsulated message format"; the length of a
record batch is the first field of the header (field 2) of the flatbuffer `Message`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

HEADER = 2
"""Number of the field `header` in `Message`."""
LENGTH = 0
"""Number of the field `length` in `RecordBatch`."""
PREFIX = struct.Struct("<II")
"""Before each message: 0xffffffff, and the bytes of its flatbuffer."""


def count_rows(journal: Path, ends: Sequence[int]) -> int:
    """Return the rows of the batches that end at the offsets `ends` of the journal's data file.

    Counts up to what cannot be read, as the file may be moved or cut meanwhile.
    """
    total = 0
    try:
        with journal.open("rb") as data:
            _, size = PREFIX.unpack(data.read(PREFIX.size))
            start = PREFIX.size + size  # the schema is the first message, and has no body
            for end in ends:
                data.seek(start)
                _, size = PREFIX.unpack(data.read(PREFIX.size))
                total += _length(data.read(size))
                start = end
    except (OSError, struct.error):
        pass
    return total


def _length(message: bytes) -> int:
    (table,) = struct.unpack_from("<I", message)
    place = _field(message, table, HEADER)
    batch = place + int(struct.unpack_from("<I", message, place)[0])
    place = _field(message, batch, LENGTH)
    # A flatbuffer leaves out what is 0.
    return int(struct.unpack_from("<q", message, place)[0]) if place != batch else 0


def _field(message: bytes, table: int, number: int) -> int:
    """Return where the field stands; the table's own place for one that was left out."""
    (back,) = struct.unpack_from("<i", message, table)
    (size,) = struct.unpack_from("<H", message, table - back)
    entry = 4 + 2 * number
    if entry >= size:
        return table
    return table + int(struct.unpack_from("<H", message, table - back + entry)[0])
