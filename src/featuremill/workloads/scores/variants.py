"""Parse and check variants, write them to payloads, and define the reasons of refused variants.

The first line of a payload has the protein's letters and, if the structure is known, a tab and the
3Di letters. The second line has the distinct listed variants, separated by spaces; the changes of a
variant are in order of position. If the table's rows differ from these names, the third line has
the rows as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from featuremill.kit.reasons import Kind
from featuremill.kit.text import clipped
from featuremill.workloads.scores import edits
from featuremill.workloads.scores.edits import Change, Edit
from featuremill.workloads.scores.options import Options

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
BETWEEN = re.compile(r"[\s,;]+(?![^\[]*\])")
"""The separator of variants in a cell; not inside the brackets of an HGVS variant."""
THREE_LETTER = re.compile(r"([A-Z]{3})([0-9]+)([A-Z]{3})")
"""A substitution in three-letter codes (HGVS) in upper case, such as ALA123THR."""
SUBSTITUTION = re.compile(r"([A-Z])([1-9][0-9]{0,8})([A-Z])")
JOINED = re.compile("[_+/|&]")
"""Separators between the substitutions of a variant that are not supported."""
NAMED = re.compile(r"(.*?):(p\..*)", re.IGNORECASE)
"""A change with the name of its sequence, such as NP_000537.3:p.Lys2Ala."""
PREFIX = re.compile(r"p\.", re.IGNORECASE)
WILD_TYPES = frozenset(("WT", "_WT", "_WTM", "_SY", "WILDTYPE", "WILD-TYPE", "WILD_TYPE"))
NO_CHANGE_PART = re.compile(r"([A-Z]{1,3}[0-9]+)?=")
STOP_CHANGE = re.compile(r"([A-Z]{1,3}[0-9]+)?(\*|TER|STOP)")
SHIFT_START = re.compile(r"(?:[A-Z]{1,3}|\*)?[0-9]+(?:[A-Z]{1,3}|\*)??(?:FS|EXT)")
"""The beginning of a frameshift or extension in upper case."""
NO_SUBSTITUTION = re.compile("DEL|INS|DUP|FS|EXT|[_-]")
NOT_WHOLE = "not the sequence of a variant"
NOT_ONE = Kind(
    "variant",
    ("not a substitution", NOT_WHOLE),
    "Write the residue, its position from 1 and the new residue, as in A123T or Ala123Thr; put a "
    "colon between several substitutions of one variant. Where a column has whole sequences, name "
    "it both in variant_column and in mutated_sequence_column.",
)
INDEL = Kind(
    "indel",
    ("an insertion or a deletion",),
    "Other marginals than pseudo are of substitutions alone. Add pseudo to marginals (it takes a "
    "pass for each residue of the variant), or leave it without a score.",
)
SHIFT = Kind(
    "frameshift",
    ("a frameshift or an extension, which names no sequence",),
    "Leave it without a score, or list the sequences that your variants make in a table without "
    "their names, in a column mutated_sequence.",
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
    "The variant was written for another sequence or another numbering. Set first_residue to the "
    "number that the table gives the first residue, fix the position, or give the sequence that it "
    "belongs to.",
)
TRUNCATED = "a variant beyond max_residues"
BEFORE = "a variant before the first residue"
APART = "substitutions farther apart than a window"
BEYOND = Kind(
    "beyond",
    ("a variant beyond the end", TRUNCATED, APART, BEFORE),
    "Fix the position, or first_residue where positions are counted from elsewhere. Beyond "
    "max_residues, set long: chunk or long: full. Farther apart than a window, set long: full.",
)
REASONS = (NOT_ONE, INDEL, SHIFT, NO_CHANGE, STOP, WILD_TYPE, BEYOND)
LEAST_POSITIONS = 3
"""The least number of positions to infer a shifted numbering; fewer can fit by chance."""


class Substitution(NamedTuple):
    """A substitution in a payload; the index `residue` is counted from 0."""

    residue: int
    letter: str


class Row(NamedTuple):
    text: str
    variant: str = ""
    """The variant in the notation of payloads, or "" if there is a reason."""
    reason: str = ""
    others: tuple[str | None, ...] = ()


class WrongError(Exception):
    """A variant cannot be scored; the message is the reason."""


def payload_of(letters: bytes, rows: Sequence[Row]) -> bytes:
    """Return the payload of a protein with `rows`; `letters` may include a structure."""
    listed = list(dict.fromkeys(row.variant for row in rows if row.variant))
    parts = [letters, " ".join(listed).encode()]
    if rows != [Row(variant, variant) for variant in listed]:
        numbers = {variant: number for number, variant in enumerate(listed)}
        cells = [[row.text, row.reason or numbers[row.variant], *row.others] for row in rows]
        parts.append(json.dumps(cells, separators=(",", ":")).encode())
    return b"\n".join(parts)


def parts_of(payload: bytes) -> tuple[bytes, list[str]]:
    """Return the protein's letters and the distinct listed variants of a payload."""
    letters, *more = payload.split(b"\n", 2)
    return letters_of(letters), more[0].decode().split() if more else []


def letters_of(payload: bytes) -> bytes:
    """Return the letters without the structure; `payload` is a payload's first line."""
    return payload.partition(b"\t")[0]


def structure_of(payload: bytes) -> bytes:
    """Return the 3Di letters of a payload; b"" if the structure is unknown."""
    return payload.partition(b"\n")[0].partition(b"\t")[2]


def rows_of(payload: bytes) -> list[Row]:
    """Return the rows of a payload, as passed to `payload_of`."""
    _, listed = parts_of(payload)
    parts = payload.split(b"\n", 2)
    if len(parts) < 3:
        return [Row(variant, variant) for variant in listed]
    return [
        Row(text, "", reason_or_number, tuple(others))
        if isinstance(reason_or_number, str)
        else Row(text, listed[reason_or_number], "", tuple(others))
        for text, reason_or_number, *others in json.loads(parts[2])
    ]


def substitutions(variant: str) -> list[Substitution]:
    """Return the substitutions of a variant of a payload without insertions and deletions."""
    return [Substitution(int(part[1:-1]) - 1, part[-1]) for part in variant.split(":")]


def read(text: str) -> list[Change]:
    """Parse a variant into its changes.

    Raises:
        WrongError: the text is not a variant.
    """
    named = NAMED.fullmatch(text)
    written = named[2] if named and not _is_change(_bare(named[1])) else text
    if "[" in written:
        written = written.replace(";", ":")
    return [_changed(_bare(part), text) for part in written.split(":")]


def _bare(part: str) -> str:
    return PREFIX.sub("", part, count=1).strip("()[]") if PREFIX.match(part) else part.strip("()[]")


def _is_change(part: str) -> bool:
    upper = part.upper()
    is_one = SUBSTITUTION.fullmatch(upper) or THREE_LETTER.fullmatch(upper)
    return bool(is_one or edits.read(part))


def _changed(written: str, text: str) -> Change:
    part = written.upper()
    if long := THREE_LETTER.fullmatch(part):
        part = "".join(map(edits.one_letter, long.groups()))
    match = SUBSTITUTION.fullmatch(part)
    if match and match[3] in AMINO_ACIDS:
        position = int(match[2])
        return Change(match[1], position, match[1], position, "", match[3])
    if indel := edits.read(written):
        return indel
    kind = NOT_ONE
    if part in WILD_TYPES or NO_CHANGE_PART.fullmatch(part):
        kind = NO_CHANGE
    elif STOP_CHANGE.fullmatch(part):
        kind = STOP
    elif SHIFT_START.match(part):
        kind = SHIFT
    elif not match and NO_SUBSTITUTION.search(part):
        is_joined = all(map(SUBSTITUTION.fullmatch, JOINED.split(part)))
        kind = NOT_ONE if is_joined else INDEL
    raise WrongError(kind.reason(repr(clipped(text))))


def checked(
    changes: Sequence[Change], text: str, letters: bytes, options: Options, first: int
) -> str:
    """Return a variant in the notation of payloads; `first` is the number of the protein's first
    residue in `text`.

    Raises:
        WrongError: the changes do not fit the protein or the options.
    """
    _refuse_indels(any(change.kind for change in changes), text, options)
    was = letters.decode()
    for change in changes:
        for old, position in change.residues:
            index = position - first
            if not 0 <= index < len(letters):
                detail = f"{len(letters)} residues"
                if first != 1:
                    detail = f"residues {first} to {first + len(letters) - 1}"
                head = (BEFORE,) if index < 0 else ()
                raise WrongError(BEYOND.reason(f"{change}, and the protein has {detail}", *head))
            if old != (old_letter := was[index]):
                detail = f"{change}, and residue {index + 1} of the protein is {old_letter}"
                raise WrongError(WILD_TYPE.reason(detail))
            if index >= options.seen(len(letters)):
                raise WrongError(BEYOND.reason(f"{change}, of {options.limit}", TRUNCATED))
    edited = [change.edit(was, first) for change in changes]
    return _as_payload(edited, ":".join(map(str, changes)), was, options)


def of_sequence(text: str, letters: bytes, options: Options) -> str:
    """Return the variant whose whole sequence is `text`, in the notation of payloads.

    Raises:
        WrongError: `text` is not the sequence of a variant of this protein.
    """
    sequence, was = text.upper().removesuffix("*"), letters.decode()
    if sequence in WILD_TYPES or sequence == was:
        raise WrongError(NO_CHANGE.reason(repr(clipped(text))))
    if "*" in sequence:
        raise WrongError(STOP.reason(repr(clipped(text))))
    changes = edits.of_sequence(was, sequence)
    num_changed = sum(max(stop - start, len(new)) for start, stop, new in changes)
    if 2 * num_changed > len(letters):
        detail = f"{clipped(text)!r} differs from the protein at more than half of its residues"
        raise WrongError(NOT_ONE.reason(detail, NOT_WHOLE))
    _refuse_indels(len(sequence) != len(was), clipped(text), options)
    last = min(max(changes[-1].start, changes[-1].stop - 1), len(letters) - 1)
    if last >= options.seen(len(letters)):
        detail = f"a change of residue {last + 1}, of {options.limit}"
        raise WrongError(BEYOND.reason(detail, TRUNCATED))
    return _as_payload(changes, text, was, options)


def _refuse_indels(has_indel: bool, text: str, options: Options) -> None:
    if has_indel and "pseudo" not in options.kinds:
        raise WrongError(INDEL.reason(repr(clipped(text))))


def _as_payload(changes: Sequence[Edit], text: str, was: str, options: Options) -> str:
    """Return the name of the variant with these `changes` of the sequence `was`.

    Raises:
        WrongError: the changes overlap or cannot be scored with these options.
    """
    ordered, text = sorted(changes), clipped(text)
    if not all(set(new) <= set(AMINO_ACIDS) for _, _, new in ordered):
        raise WrongError(NOT_ONE.reason(f"{text} has other letters than those of 20 amino acids"))
    name = ":".join(edits.name_of(edit, was) for edit in ordered)
    if twice := edits.overlap(list(edits.edits(name, was))):
        raise WrongError(NOT_ONE.reason(f"{text} changes residue {twice.start + 1} twice"))
    if any(was[start:stop] == new for start, stop, new in ordered):
        raise WrongError(NO_CHANGE.reason(repr(text)))
    num_left = options.seen(len(was)) - sum(stop - start - len(new) for start, stop, new in ordered)
    if num_left < 1:
        raise WrongError(INDEL.reason(f"{text} leaves no residue"))
    together = {"masked", "mutant"} & set(options.kinds) and not edits.is_indel(name)
    if together and ordered[-1].start - ordered[0].start >= options.width(len(was)):
        raise WrongError(BEYOND.reason(f"{text}, of {options.limit}", APART))
    return name


def first_residue(changes: Sequence[Change], letters: bytes) -> int | None:
    """Return the first residue's number with which all changes fit, if there is just one."""
    protein = letters.decode()
    residues = sorted({(at, old) for change in changes for old, at in change.residues})
    if len(residues) < LEAST_POSITIONS:
        return None
    first, old = residues[0]
    fits = [
        number - first
        for number, letter in enumerate(protein, 1)
        if letter == old
        and residues[-1][0] + number - first <= len(protein)
        and all(protein[at + number - first - 1] == each for at, each in residues)
    ]
    return 1 - fits[0] if len(fits) == 1 else None
