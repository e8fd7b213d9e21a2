"""Insertions, deletions and whole sequences as variants: parse HGVS names, apply the edits to a
sequence, and write the names that payloads use.

An edit replaces residues with letters. Its name is the HGVS name in one-letter codes, such as
`K2del`, `K2_G4delinsA` or `K2_T3insGG`. An insertion before the first residue, or after the last,
is written as a change of that residue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import pairwise, takewhile
from typing import NamedTuple

from Bio.Data.IUPACData import protein_letters_3to1

RESIDUE = "([A-Z]|[A-Z]{3})([1-9][0-9]{0,8})"
WRITTEN = re.compile(f"{RESIDUE}(?:_{RESIDUE})?(DELINS|DEL|INS|DUP)([A-Z]*)")
"""An insertion or deletion in upper case."""


class Edit(NamedTuple):
    """Replaces residues [start, stop), counted from 0, with `letters`."""

    start: int
    stop: int
    letters: str


class Change(NamedTuple):
    """A parsed substitution, insertion or deletion; positions are counted from 1."""

    old: str
    position: int
    last: str
    end: int
    """`last` is the last residue in the name, and `end` its position; the first if it is alone."""
    kind: str
    """`del`, `ins`, `delins` or `dup`; "" for a substitution."""
    new: str

    @property
    def residues(self) -> tuple[tuple[str, int], ...]:
        """The residues in the name, with their positions."""
        return ((self.old, self.position), (self.last, self.end))

    def edit(self, letters: str, first: int) -> Edit:
        """Return the edit of a protein whose first residue has the number `first`."""
        start, stop = self.position - first, self.end - first + 1
        if self.kind == "ins":
            return Edit(start + 1, start + 1, self.new)
        if self.kind == "dup":
            return Edit(stop, stop, letters[start:stop])
        return Edit(start, stop, self.new)

    def __str__(self) -> str:
        end = f"_{self.last}{self.end}" if self.end != self.position else ""
        return f"{self.old}{self.position}{end}{self.kind}{self.new}"


def one_letter(residue: str) -> str:
    """Return the one-letter code of a three-letter code in upper case; other texts unchanged."""
    letter: str = protein_letters_3to1.get(residue.title(), residue)
    return letter


def read(part: str) -> Change | None:
    """Parse an insertion or deletion in one-letter or three-letter codes. Return None for other
    texts, and for insertions that lack the inserted residues."""
    match = WRITTEN.fullmatch(part.upper())
    if not match:
        return None
    old, position, last, end, kind, new = match.groups()
    as_written = part[len(part) - len(new) :] if new else ""
    if len(old) == 3 or not (as_written.isupper() or as_written.islower()):
        new = "".join(one_letter(new[at : at + 3]) for at in range(0, len(new), 3))
    indel = Change(
        one_letter(old),
        int(position),
        one_letter(last or old),
        int(end or position),
        kind.lower(),
        new,
    )
    named = (indel.old, indel.last)
    has_new, is_insertion = kind in ("INS", "DELINS"), kind == "INS"
    is_impossible = indel.end != indel.position + 1 if is_insertion else indel.end < indel.position
    if is_impossible or bool(new) != has_new or any(len(residue) > 1 for residue in named):
        return None
    return indel


def of_sequence(letters: str, mutated: str) -> list[Edit]:
    """Return the edits from `letters` to `mutated`: substitutions if their lengths are equal, else
    one edit between the common ends. An edit of more than half of the protein is split."""
    if len(letters) == len(mutated):
        pairs = enumerate(zip(letters, mutated, strict=True))
        return [Edit(index, index + 1, new) for index, (old, new) in pairs if old != new]
    start = _num_equal(letters, mutated)
    ends = min(len(letters), len(mutated)) - start
    num_after = min(ends, _num_equal(letters[::-1], mutated[::-1]))
    stop = len(letters) - num_after
    new = mutated[start : len(mutated) - num_after]
    if 2 * max(stop - start, len(new)) <= len(letters):
        return [Edit(start, stop, new)]
    alike = SequenceMatcher(None, letters[start:stop], new, autojunk=False)
    return [
        Edit(start + first, start + last, new[begin:end])
        for kind, first, last, begin, end in alike.get_opcodes()
        if kind != "equal"
    ]


def _num_equal(a: str, b: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def name_of(edit: Edit, letters: str) -> str:
    """Return the name of the edit in payloads."""
    start, stop, new = edit
    if start == stop == 0:
        stop, new = 1, new + letters[0]
    elif start == stop == len(letters):
        start, new = start - 1, letters[-1] + new
    if start == stop:
        return f"{letters[start - 1]}{start}_{letters[start]}{start + 1}ins{new}"
    first, last = f"{letters[start]}{start + 1}", f"{letters[stop - 1]}{stop}"
    if stop - start == len(new) == 1:
        return f"{first}{new}"
    between = f"{first}_{last}" if stop - start > 1 else first
    return f"{between}{'delins' if new else 'del'}{new}"


def is_indel(variant: str) -> bool:
    """Return whether a variant of a payload has insertions or deletions."""
    return not variant.isupper()


def edits(variant: str, letters: str) -> Iterator[Edit]:
    """Yield the edits of a variant of a payload, in order of position."""
    for part in variant.split(":"):
        indel = read(part)
        index = 0 if indel else int(part[1:-1]) - 1
        yield indel.edit(letters, 1) if indel else Edit(index, index + 1, part[-1])


def mutated(variant: str, letters: bytes) -> bytes:
    """Return the sequence of a protein with a variant of a payload."""
    was = letters.decode()
    sequence, index = "", 0
    for start, stop, new in edits(variant, was):
        sequence += was[index:start] + new
        index = stop
    return (sequence + was[index:]).encode()


def mutated_structure(variant: str, letters: bytes, structure: bytes) -> bytes:
    """Return the 3Di letters of the sequence of a variant: unchanged for kept and substituted
    residues, `#` for inserted ones; b"" if the structure is unknown."""
    if not structure:
        return b""
    was = letters.decode()
    letters_3di, index = b"", 0
    for start, stop, new in edits(variant, was):
        old = was[start:stop]
        num_before = len(new) if len(new) == len(old) else _num_equal(old, new)
        num_after = _num_equal(old[num_before:][::-1], new[num_before:][::-1])
        letters_3di += structure[index : start + num_before]
        letters_3di += b"#" * (len(new) - num_before - num_after)
        index = stop
        letters_3di += structure[stop - num_after : stop]
    return letters_3di + structure[index:]


def overlap(edits: list[Edit]) -> Edit | None:
    """Return the first of the sorted `edits` that overlaps the previous edit, or None."""
    return next((b for a, b in pairwise(edits) if b.start < a.stop or a[:2] == b[:2]), None)
