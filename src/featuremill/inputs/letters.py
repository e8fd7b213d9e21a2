"""Make records of letters, of any alphabet, with checks of ids, NUL bytes and merged records.

Letters alone are the payload of a sequence. With a structure, its letters follow after a line
break; with a region, the structure (or nothing) and the region's first and last residue, from 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from featuremill.base import reasons
from featuremill.base.errors import UserError
from featuremill.base.text import CONTROL
from featuremill.inputs.source import has_nul
from featuremill.workload import Record

UPPER_CASE = bytes.maketrans(b"abcdefghijklmnopqrstuvwxyz", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
WHITESPACE = b" \t\n\r\x0b\x0c"
NO_WHITESPACE = str.maketrans("", "", WHITESPACE.decode())
SPECIAL_TOKEN = re.compile("(?i)<(?:na|mask|unk|pad|cls|eos|bos|sep|null_[0-9]+|[+-][^<>]*)>")
"""Special tokens that users of language models write; also pandas' missing value."""
MOST_OF_A_WORD = 12
"""Longest sequence that may be a word for a missing value."""
WORD_AS_ID = "the id is a word for a missing value"
LATIN_1 = "header read as Latin-1"


class Cleaned(NamedTuple):
    """Cleaned letters as payload; it is empty if there is a reason."""

    payload: bytes
    reason: str = ""
    note: str = ""


class Make(Protocol):
    def __call__(
        self, id: str, description: str, letters: str, source: str, line: int, note: str = ""
    ) -> Record:
        """Return the record of these letters; it is refused if a letter is not of the alphabet.

        Raises UserError for NUL bytes, and for a '>' among the letters that does not end a special
        token: they indicate lost or merged records.
        """


def maker(clean: Callable[[str], Cleaned]) -> Make:
    """Return a function that makes records of letters cleaned by `clean`."""

    def make(
        id: str, description: str, letters: str, source: str, line: int, note: str = ""
    ) -> Record:
        payload, reason, fixed = clean(letters)
        if len(letters) < MOST_OF_A_WORD:
            word = letters.translate(NO_WHITESPACE)
            if reasons.is_missing_sequence(word):
                payload, reason, fixed = b"", reasons.ABSENT.reason(word), ""
        if "\0" in letters or "\0" in id or "\0" in description:
            raise has_nul(source, line, letters if "\0" in letters else "\0 in a header")
        if reason and ">" in letters and ">" in SPECIAL_TOKEN.sub("", letters):
            raise UserError(
                f"{source}:{line}: there is a '>' inside this record's sequence, so two records "
                "have run into one; put a line break before it."
            )
        if (not id or not id.isprintable()) and (wrong := wrong_id(id)):
            payload, reason = b"", wrong
        notes = "; ".join(filter(None, (note, fixed))) if note or fixed else ""
        return Record(id, description, payload, source, line, reason, notes)

    return make


def wrong_id(id: str) -> str:
    """Return the reason if `id` is not valid; "" if it is."""
    if not id:
        return reasons.ID.reason()
    if not id.isprintable() and (control := CONTROL.search(id)):
        return reasons.ID.reason(f"U+{ord(control.group()):04X}", reasons.UNPRINTABLE_ID)
    return ""


def doubtful_id(id: str) -> str:
    """Return a note if the id in a table is a word for a missing value; else ""."""
    return f"{WORD_AS_ID}: {id}" if reasons.is_missing(id) else ""


def first_other(letters: str, alphabet: str) -> int:
    """Return the index of the first of `letters` that is not in the alphabet, or -1."""
    others = letters.translate(str.maketrans("", "", alphabet))
    return letters.index(others[0]) if others else -1


def show_at(letters: str, index: int) -> str:
    """Return the letter at `index` for a message, or the whole special token that starts there."""
    token = SPECIAL_TOKEN.match(letters, index)
    return f"'{token.group()}'" if token else show(letters[index])


def show(letter: str) -> str:
    """Return the printable form of `letter`; a surrogate is a byte that is not UTF-8."""
    if "\ud800" <= letter <= "\udfff":
        return f"byte 0x{ord(letter) & 0xFF:02X}"
    return f"'{letter}'" if letter.isprintable() else f"U+{ord(letter):04X}"


class Parts(NamedTuple):
    """The parts of a payload."""

    letters: bytes
    structure: bytes = b""
    region: tuple[int, int] | None = None
    """The first and the last residue of the region, from 1."""

    @property
    def tokens(self) -> tuple[int, int]:
        """The region as the bounds of a slice of letters, from 0."""
        assert self.region
        return self.region[0] - 1, self.region[1]

    @property
    def payload(self) -> bytes:
        fields = [self.letters]
        if self.structure or self.region:
            fields.append(self.structure)
        if self.region:
            fields.append("-".join(map(str, self.region)).encode())
        return b"\n".join(fields)


def parts_of(payload: bytes) -> Parts:
    letters, *more = payload.split(b"\n")
    structure = more[0] if more else b""
    if len(more) < 2:
        return Parts(letters, structure)
    first, last = map(int, more[1].split(b"-"))
    return Parts(letters, structure, (first, last))


def alike(parts: Sequence[Parts]) -> list[list[int]]:
    """Return groups of record indices that share one computed sequence: regions of the same
    sequence together, any other record alone."""
    groups: dict[object, list[int]] = {}
    for index, each in enumerate(parts):
        groups.setdefault(each[:2] if each.region else index, []).append(index)
    return list(groups.values())
