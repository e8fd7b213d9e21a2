"""Takes records' ids and sequences, and who and where this is, out of texts for a bug report."""

from __future__ import annotations

import getpass
import hashlib
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

PIECES = re.compile(r"[^\s'\"`,;:|/\\()\[\]{}=<>]+")
"""What ids are compared by: an id such as sp|P12345|X_HUMAN is in a text when its pieces are."""
QUOTED = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
FASTA_HEADER = re.compile(r"^\s*>.*$", re.MULTILINE)
SEQUENCE = re.compile(r"(?<![A-Za-z0-9_])(?:[A-Z*-]{12,}|[a-z]{25,})(?![A-Za-z0-9_])")
MIN_PIECE_LENGTH, MIN_NUMBER_LENGTH = 3, 5
"""Shorter ones say nothing about a record and stand in every log."""
MAX_IDS = 5_000_000
"""With more, checking would take minutes; then texts that might name a record stay out."""


class TooManyIdsError(Exception):
    """There are too many records to check texts against."""


def words_of(texts: Iterable[str]) -> set[str]:
    """Return all pieces of the texts."""
    return {_bare(piece) for text in texts for piece in PIECES.findall(text)}


def named_records(manifests: Iterable[Path], words: set[str]) -> set[str]:
    """Return those of `words` that are, or are part of, an id or a sequence of a manifest.

    Raises:
        TooManyIdsError: when the manifests hold more than can be checked.
    """
    digests = {hashlib.sha256(w.upper().encode()).digest(): w for w in words if w.isalpha()}
    found: set[str] = set()
    for number, (id, digest) in enumerate(_records(manifests)):
        if number >= MAX_IDS:
            raise TooManyIdsError
        found.update(words.intersection(map(_bare, PIECES.findall(id))))
        if digest in digests:
            found.add(digests[digest])
    return {word for word in found if _tells_something(word)}


def _records(manifests: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    import pyarrow.parquet as pq

    for manifest in manifests:
        with pq.ParquetFile(manifest) as file:
            for batch in file.iter_batches(columns=["id", "sha256"]):
                rows = batch.to_pydict()
                yield from zip(rows["id"], rows["sha256"], strict=True)


def _bare(piece: str) -> str:
    return piece.strip(".!?")


def _tells_something(word: str) -> bool:
    return len(word) >= (MIN_NUMBER_LENGTH if word.isdigit() else MIN_PIECE_LENGTH)


def without_records(text: str, named: set[str]) -> str:
    """Return a log's text without ids, sequences and anything in quotes."""
    text = FASTA_HEADER.sub("> [header]", text)
    text = SEQUENCE.sub("[sequence]", QUOTED.sub("'…'", text))
    return PIECES.sub(lambda found: _masked(found[0], named), text)


def values_without_records(value: Any, named: set[str]) -> Any:
    """Return a JSON value whose strings name no record; keys that are one word stay."""
    if isinstance(value, str):
        return PIECES.sub(lambda found: _masked(found[0], named), value)
    if isinstance(value, Mapping):
        return {
            values_without_records(key, named) if " " in key else key: values_without_records(
                inner, named
            )
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [values_without_records(inner, named) for inner in value]
    return value


def _masked(piece: str, named: set[str]) -> str:
    bare = _bare(piece)
    return piece.replace(bare, "[id]") if bare in named else piece


def without_people(text: str) -> str:
    """Return the text without the user's name, home folder and this machine's name."""
    text = text.replace(str(Path.home()), "~") if str(Path.home()) != "/" else text
    for word, stand_in in ((_user(), "[user]"), (platform.node(), "[host]")):
        if len(word) >= MIN_PIECE_LENGTH:
            text = re.sub(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", stand_in, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
