"""Read texts for language models from rows of tables, and from files with one text each.

A payload is the text in UTF-8. Limits are numbers of tokens, not of letters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from featuremill.inputs import is_table, rows
from featuremill.kit.errors import UserError
from featuremill.kit.reasons import LENGTH, Kind, is_missing
from featuremill.workload import Record, RecordFailed
from featuremill.workloads.encoder.vocabulary import IN_TEMPLATE

if TYPE_CHECKING:
    from featuremill.workloads.encoder.options import Options
    from featuremill.workloads.encoder.vocabulary import Vocabulary

__all__ = ["counted", "read"]
SUFFIX = ".txt"
EMPTY = Kind(
    "empty_text", ("empty text",), "Write the text of that row or file, or remove the record."
)
OF_TEMPLATE = Kind(
    IN_TEMPLATE,
    ("no place in the chat template",),
    "Change how the text begins or ends, or set chat: false.",
)
REASONS = (EMPTY, OF_TEMPLATE)
MOST_OF_A_BYTE = 11
"""Largest number of tokens per byte: U+FDFA has 3 bytes, and 33 in NFKC. SentencePiece may add one
token before a text."""


def read(
    inputs: Sequence[Path], options: Options, words: Vocabulary, trained: int | None
) -> Iterator[Record]:
    """Yield the texts of `inputs`, with the notes and reasons of `counted`.

    Raises:
        UserError: if a file is neither a table nor a text.
    """
    for path in inputs:
        if path.suffix != SUFFIX and not is_table(path):
            raise UserError(
                f"{path}: texts are read from tables (.csv, .tsv, .parquet) and {SUFFIX} files, "
                "one text a file; give one of these."
            )
    for path in inputs:
        records = _of_file(path) if path.suffix == SUFFIX else _of_rows(path, options)
        for record in records:
            text = record.payload.decode().strip()
            if not record.reason and (not text or is_missing(text)):
                record = record._replace(payload=b"", reason=EMPTY.reason(text))
            yield counted(record, options, words, trained)


def _of_file(path: Path) -> Iterator[Record]:
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: this is no text in UTF-8 (byte {error.start:,}); save it as that."
        ) from None
    payload = text.encode()
    yield Record(path.stem, "", payload, str(path), 1, length=len(payload))


def _of_rows(path: Path, options: Options) -> Iterator[Record]:
    for record in rows([path], options):
        if not record.reason:
            (text,) = json.loads(record.payload).values()
            payload = (text or "").encode()
            record = record._replace(payload=payload, length=len(payload))
        yield record


def counted(record: Record, options: Options, words: Vocabulary, trained: int | None) -> Record:
    """Return a record with a note if it has more tokens than `max_tokens`, or than the network was
    `trained` with; refused if `options.long` is refuse. Only learned vocabularies are counted."""
    most = options.max_tokens
    least = min((each for each in (most, trained) if each), default=None)
    if record.reason or not words.is_learned or least is None:
        return record
    if MOST_OF_A_BYTE * len(record.payload) + 1 <= least - words.num_special:
        return record
    try:
        num_tokens = len(words.tokens(record.payload))
    except RecordFailed as failed:
        return record._replace(payload=b"", reason=failed.kind.reason(str(failed)))
    notes = [record.note]
    if most and num_tokens > most:
        if options.long == "refuse":
            reason = LENGTH.reason(f"{num_tokens:,} tokens, at most {most:,}")
            return record._replace(payload=b"", reason=reason)
        notes.append(f"longer than {most} tokens, truncated")
    if trained and min(num_tokens, most or num_tokens) > trained:
        notes.append(f"longer than the network was trained with ({trained:,})")
    return record._replace(note="; ".join(filter(None, notes)))
