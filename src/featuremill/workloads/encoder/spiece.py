"""Read the tokens of a SentencePiece model (spiece.model) without the library sentencepiece.

The file is a protocol buffer. Its repeated field 1 is a message for each token, whose field 1 is
the token's text (sentencepiece_model.proto of google/sentencepiece).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from featuremill.kit.errors import UserError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types: https://protobuf.dev/programming-guides/encoding/"""


def read(path: Path) -> list[str]:
    """Return the tokens in `path`, in the order of their ids.

    Raises:
        UserError: if the file is not a SentencePiece model.
    """
    try:
        pieces = [value for field, value in _fields(path.read_bytes()) if field == 1]
        tokens = [
            next(text for field, text in _fields(piece) if field == 1).decode("utf-8")
            for piece in pieces
        ]
    except (ValueError, IndexError, StopIteration):
        tokens = []
    if not tokens:
        raise UserError(f"{path}: this is no SentencePiece model; download it again.")
    return tokens


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and content of each length-delimited field of `message`."""
    offset = 0
    while offset < len(message):
        key, offset = _varint(message, offset)
        kind = key & 7
        if kind == VARINT:
            _, offset = _varint(message, offset)
        elif kind in (FIXED64, FIXED32):
            offset += 8 if kind == FIXED64 else 4
        elif kind == BYTES:
            length, offset = _varint(message, offset)
            if offset + length > len(message):
                raise ValueError("cut short")
            yield key >> 3, message[offset : offset + length]
            offset += length
        else:
            raise ValueError("no protocol buffer")


def _varint(message: bytes, offset: int) -> tuple[int, int]:
    """Return the varint at `offset`, and the offset after it."""
    number = shift = 0
    while True:
        byte = message[offset]
        offset += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, offset
        shift += 7
