"""Read the files of a vocabulary in an encoder's folder: tokenizer.json, vocab.txt or spiece.model.

A spiece.model of SentencePiece is read without its library. It is a protocol buffer, whose repeated
field 1 is a message for each token; field 1 of that is the token's text (sentencepiece_model.proto
of google/sentencepiece).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.kit.errors import UserError
from featuremill.workload.hugging_face import json_of

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types: https://protobuf.dev/programming-guides/encoding/"""


class Files(NamedTuple):
    """The content of a folder's vocabulary files."""

    ids: Mapping[str, int]
    around: tuple[Sequence[str], Sequence[str]] | None = None
    """The special tokens before and after a sequence; None if no file defines them."""
    tokenizer: Path | None = None
    has_end: bool = True
    """Whether sequences end with a special token: false if eos_token is null."""


def read(folder: Path, known: Sequence[str]) -> Files:
    """Return the content of the vocabulary files in `folder`; the `known` tokens without any."""
    fast, plain, pieces = (
        folder / name for name in ("tokenizer.json", "vocab.txt", "spiece.model")
    )
    if fast.is_file():
        return _read_fast(fast)
    if plain.is_file():
        tokens = [line.strip() for line in plain.read_text("utf-8").splitlines()]
    elif pieces.is_file():
        tokens = _pieces(pieces)
    elif known:
        tokens = list(known)
    else:
        raise UserError(
            f"{folder}: there is no vocabulary in this folder; it needs a tokenizer.json, a "
            "vocab.txt or a spiece.model."
        )
    ids = {token: id for id, token in reversed(list(enumerate(tokens)))}
    added, settings = folder / "added_tokens.json", folder / "tokenizer_config.json"
    if added.is_file():
        ids |= {token: int(id) for token, id in json_of(added).items()}
    config = json_of(settings) if settings.is_file() else {}
    return Files(ids, has_end=config.get("eos_token", "") is not None)


def _read_fast(path: Path) -> Files:
    """Return the content of a tokenizer.json; this does not need the library tokenizers."""
    content = json_of(path)
    try:
        words = content["model"]["vocab"]
        if isinstance(words, list):  # Unigram: pairs of token and score, in the order of ids
            words = {word: id for id, (word, _) in enumerate(words)}
        added = {token["content"]: token["id"] for token in content.get("added_tokens") or ()}
        ids = dict(words) | added
        around = _template(content.get("post_processor") or {})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}: this is not what the library tokenizers writes ({type(error).__name__}: "
            f"{error}); save it anew."
        ) from None
    return Files(ids, around, path)


def _template(processor: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the special tokens that a tokenizer.json adds before and after a sequence."""
    kind = processor.get("type")
    if kind == "Sequence":
        each = map(_template, processor["processors"])
        return next((ends for ends in each if any(ends)), ([], []))
    if kind in ("BertProcessing", "RobertaProcessing"):
        return [processor["cls"][0]], [processor["sep"][0]]
    if kind != "TemplateProcessing":
        return [], []
    parts = processor["single"]
    index = next(number for number, part in enumerate(parts) if "Sequence" in part)
    names = [part["SpecialToken"]["id"] for part in parts if "SpecialToken" in part]
    return names[:index], names[index:]


def _pieces(path: Path) -> list[str]:
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
