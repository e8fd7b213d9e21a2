"""Variants: how tables write them, how payloads hold them, and why one cannot be scored.

A payload is the protein's letters, where its structure is known with a tab and its 3Di letters;
behind them, after a line break, its distinct listed variants with a space between, whose
substitutions stand in the order of their positions. Where the rows of the table are not these texts
one for one, they follow as JSON after another line break.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from Bio.Data.IUPACData import protein_letters_3to1

from featuremill.kit.reasons import Kind
from featuremill.kit.text import clipped
from featuremill.workloads.scores.options import Options

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
BETWEEN = re.compile(r"[\s,;]+(?![^\[]*\])")
"""What stands between the variants of a cell; brackets hold the substitutions of one (HGVS)."""
OF_THREE = re.compile(r"([A-Z]{3})([0-9]+)([A-Z]{3})")
"""A substitution as HGVS writes it, such as Ala123Thr, in capitals."""
SUBSTITUTION = re.compile(r"([A-Z])([1-9][0-9]{0,8})([A-Z])")
JOINED = re.compile("[_+/|&]")
"""What some tables have between the substitutions of a variant."""
WILD_TYPES = frozenset(("WT", "_WT", "_WTM", "_SY", "WILDTYPE", "WILD-TYPE", "WILD_TYPE"))
AS_IT_WAS = re.compile(r"([A-Z]{1,3}[0-9]+)?=")
A_STOP = re.compile(r"([A-Z]{1,3}[0-9]+)?(\*|TER|STOP)")
NO_SUBSTITUTION = re.compile("DEL|INS|DUP|FS|EXT|[_-]")
NOT_ONE = Kind(
    "variant",
    ("not a substitution",),
    "Write the residue, its position from 1 and the new residue, as in A123T or Ala123Thr; put a "
    "colon between several substitutions of one variant.",
)
INDEL = Kind(
    "indel",
    ("an insertion or a deletion",),
    "Marginals are of substitutions alone. Take this variant out, or give its whole sequence as a "
    "protein and set likelihood: pseudo.",
)
NO_CHANGE = Kind(
    "no_change",
    ("the wild type, or no change of a residue",),
    "Marginals are differences from the wild type, whose own would be 0. Take the row out, or "
    "leave it without a score.",
)
STOP = Kind(
    "stop_variant",
    ("a stop in place of a residue",),
    "The network has no token for a stop. Take the row out, or leave it without a score.",
)
WILD_TYPE = Kind(
    "wild_type",
    ("another residue stands there",),
    "The variant was written for another sequence or another numbering. Fix the position, or give "
    "the sequence that it belongs to.",
)
TRUNCATED = "a variant beyond max_residues"
APART = "substitutions farther apart than a window"
BEYOND = Kind(
    "beyond",
    ("a variant beyond the end", TRUNCATED, APART),
    "Fix the position. Beyond max_residues, set long: chunk or long: full. Farther apart than a "
    "window, set long: full.",
)
REASONS = (NOT_ONE, INDEL, NO_CHANGE, STOP, WILD_TYPE, BEYOND)
LEAST_PLACES = 3
"""Fewer positions fit a shifted numbering by chance."""


class Substitution(NamedTuple):
    """A new residue at a place, counted from 0."""

    place: int
    letter: str


class Row(NamedTuple):
    """A variant as a row of a table has it."""

    text: str
    variant: str = ""
    """As payloads have it; empty where there is a reason."""
    reason: str = ""
    others: tuple[str | None, ...] = ()
    """The values of the columns that come along."""


class WrongError(Exception):
    """Says in a reason why a variant cannot be scored."""


class Changed(NamedTuple):
    """A substitution as it is written, its position counted from 1."""

    old: str
    position: int
    new: str

    def __str__(self) -> str:
        return f"{self.old}{self.position}{self.new}"


def payload_of(letters: bytes, rows: Sequence[Row]) -> bytes:
    """Return the payload of a protein with the variants of `rows`; `letters` may have a structure
    behind them."""
    listed = list(dict.fromkeys(row.variant for row in rows if row.variant))
    parts = [letters, " ".join(listed).encode()]
    if rows != [Row(variant, variant) for variant in listed]:
        numbers = {variant: number for number, variant in enumerate(listed)}
        told = [[row.text, row.reason or numbers[row.variant], *row.others] for row in rows]
        parts.append(json.dumps(told, separators=(",", ":")).encode())
    return b"\n".join(parts)


def parts_of(payload: bytes) -> tuple[bytes, list[str]]:
    """Return the letters of a payload and its distinct listed variants."""
    letters, *more = payload.split(b"\n", 2)
    return letters_of(letters), more[0].decode().split() if more else []


def letters_of(payload: bytes) -> bytes:
    """Return the letters alone of the first line of a payload."""
    return payload.partition(b"\t")[0]


def structure_of(payload: bytes) -> bytes:
    """Return the 3Di letters of a payload; b"" where no structure is known."""
    return payload.partition(b"\n")[0].partition(b"\t")[2]


def rows_of(payload: bytes) -> list[Row]:
    """Return the rows of a table that a payload has, as `payload_of` was given them."""
    _, listed = parts_of(payload)
    parts = payload.split(b"\n", 2)
    if len(parts) < 3:
        return [Row(variant, variant) for variant in listed]
    return [
        Row(text, "", told, tuple(others))
        if isinstance(told, str)
        else Row(text, listed[told], "", tuple(others))
        for text, told, *others in json.loads(parts[2])
    ]


def substitutions(variant: str) -> list[Substitution]:
    """Return the substitutions of a variant of a payload."""
    return [Substitution(int(part[1:-1]) - 1, part[-1]) for part in variant.split(":")]


def read(text: str) -> list[Changed]:
    """Return the substitutions of a variant as they are written.

    Raises:
        WrongError: it is none.
    """
    written = text.upper()
    before, _, after = written.partition(":P.")  # as NP_000537.3:p.Lys2Ala
    first = before.removeprefix("P.").strip("()[]")
    if after and not (SUBSTITUTION.fullmatch(first) or OF_THREE.fullmatch(first)):
        written = f"P.{after}"
    if "[" in written:
        written = written.replace(";", ":")
    return [_changed(part.removeprefix("P.").strip("()[]"), text) for part in written.split(":")]


def _changed(part: str, text: str) -> Changed:
    if long := OF_THREE.fullmatch(part):
        part = "".join(protein_letters_3to1.get(each.title(), each) for each in long.groups())
    match = SUBSTITUTION.fullmatch(part)
    if match and match[3] in AMINO_ACIDS:
        return Changed(match[1], int(match[2]), match[3])
    kind = NOT_ONE
    if part in WILD_TYPES or AS_IT_WAS.fullmatch(part):
        kind = NO_CHANGE
    elif A_STOP.fullmatch(part):
        kind = STOP
    elif not match and NO_SUBSTITUTION.search(part):
        is_joined = all(map(SUBSTITUTION.fullmatch, JOINED.split(part)))
        kind = NOT_ONE if is_joined else INDEL
    raise WrongError(kind.reason(repr(clipped(text))))


def checked(changes: Sequence[Changed], letters: bytes, options: Options) -> str:
    """Return a variant as payloads have it.

    Raises:
        WrongError: it is not one of this protein.
    """
    found: dict[int, Changed] = {}
    text = clipped(":".join(map(str, changes)))
    for change in changes:
        position = change.position
        if position > len(letters):
            told = f"{change}, and the protein has {len(letters)} residues"
            raise WrongError(BEYOND.reason(told))
        if change.old != (stands := chr(letters[position - 1])):
            told = f"{change}, and residue {position} of the protein is {stands}"
            raise WrongError(WILD_TYPE.reason(told))
        if position > options.seen(len(letters)):
            raise WrongError(BEYOND.reason(f"{change}, of {options.limit}", TRUNCATED))
        if position in found:
            raise WrongError(NOT_ONE.reason(f"{text} changes residue {position} twice"))
        if change.new == change.old:
            raise WrongError(NO_CHANGE.reason(repr(text)))
        found[position] = change
    if set(options.kinds) - {"wildtype"} and max(found) - min(found) >= options.width(len(letters)):
        raise WrongError(BEYOND.reason(f"{text}, of {options.limit}", APART))
    return ":".join(str(found[position]) for position in sorted(found))


def shift(changes: Sequence[Changed], letters: bytes) -> int | None:
    """Return what must be added to all positions so that each names the residue that stands there;
    None where nothing, or more than one number, does that."""
    stands = letters.decode()
    places = sorted({(change.position, change.old) for change in changes})
    if len(places) < LEAST_PLACES:
        return None
    first, old = places[0]
    fits = [
        number - first
        for number, letter in enumerate(stands, 1)
        if letter == old
        and places[-1][0] + number - first <= len(stands)
        and all(stands[place + number - first - 1] == each for place, each in places)
    ]
    return fits[0] if len(fits) == 1 else None
