"""Letters of structure (3Di): beside residues, out of a file of their own or among them; or alone.

They are those of Foldseek, in small letters as SaProt and ProstT5 have them, `#` where a residue
has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from featuremill.inputs import TableOptions, residues, spelled
from featuremill.inputs.letters import NO_WHITESPACE, Cleaned, maker, show_at
from featuremill.inputs.payloads import Parts, parts_of
from featuremill.kit import reasons
from featuremill.kit.errors import UserError
from featuremill.kit.ids import Matcher
from featuremill.kit.reasons import EMPTY, Kind, kind_of
from featuremill.kit.text import clipped
from featuremill.workload import Record
from featuremill.workloads.encoder import fasta

LETTERS = "acdefghiklmnpqrstvwy"
NONE = "#"
PAIRS = re.compile("(?:[A-Z#][a-z#])+")
"""Each residue with its structure behind it: what SaProt's authors call the combined sequence."""
MOSTLY = 0.8
"""Of the letters: so many in pairs are no protein with masked stretches in small letters."""
NOT_KNOWN = "no structure of this record, # for each residue"
SMALL = "small letters read as residues, not as 3Di"
UNPAIRED = "residues and letters of structure do not take turns"
OTHER_LENGTH = Kind(
    "structure",
    ("its structure has another length", UNPAIRED),
    "The structure is of another sequence, or of a part of this one. Fix its letters, or take it "
    "out of the file: then each residue gets #.",
)
TWO = Kind(
    "two_structures",
    ("it has two structures",),
    "Letters of structure stand among its residues, and others in the file of options.structures. "
    "Take one of them out.",
)
NOT_3DI = Kind(
    "three_di",
    ("not a letter of 3Di",),
    f"Give the 3Di letters as Foldseek writes them, of {LETTERS}.",
)
REASONS = (OTHER_LENGTH, TWO, NOT_3DI)


def clean(letters: str) -> Cleaned:
    """Return letters of structure as a payload has them, `#` among them."""
    return _clean(letters, LETTERS + NONE)


def clean_alone(letters: str) -> Cleaned:
    """Return the letters of a record that is a structure; it has a letter for each residue."""
    return _clean(letters, LETTERS)


def _clean(letters: str, alphabet: str) -> Cleaned:
    written = letters.translate(NO_WHITESPACE).lower()
    if not written:
        return Cleaned(b"", reasons.EMPTY.reason())
    if strangers := written.translate(str.maketrans("", "", alphabet)):
        place = written.index(strangers[0])
        return Cleaned(b"", NOT_3DI.reason(f"{show_at(written, place)} at letter {place + 1}"))
    return Cleaned(written.encode())


def clean_pairs(letters: str) -> Cleaned:
    """Return residues, with their structure where each of them has its letter behind it."""
    written = letters.translate(NO_WHITESPACE)
    num_paired = sum(len(each) for each in PAIRS.findall(written))
    if num_paired < MOSTLY * len(written):
        return residues.clean(letters)
    if num_paired < len(written):
        told = f"{num_paired:,} of {len(written):,} letters do"
        return Cleaned(b"", OTHER_LENGTH.reason(told, UNPAIRED))
    structure = clean(written[1::2])
    found = residues.clean(written[::2].replace(NONE, "X"))
    if structure.reason or found.reason:
        return structure if structure.reason else found
    return found._replace(payload=Parts(found.payload, structure.payload).payload)


def clean_beside(letters: str) -> Cleaned:
    """Return residues, with a note where they look like the 3Di that the network has too."""
    found = residues.clean(letters)
    written = letters.translate(NO_WHITESPACE)
    if found.reason or not written.islower() or written.strip(LETTERS):
        return found
    return found._replace(note="; ".join(filter(None, (found.note, SMALL))))


class Structures(NamedTuple):
    """The letters of structure in a file, by the ids there, and the lines of these."""

    path: Path
    letters: Mapping[str, bytes]
    lines: Mapping[str, int]


def read(path: Path, options: TableOptions) -> Structures:
    """Return the letters of structure in `path`.

    Raises:
        UserError: where letters are no 3Di, or two structures of an id differ.
    """
    found: dict[str, bytes] = {}
    lines: dict[str, int] = {}
    for record in spelled([path], maker(clean), options, fasta.__name__):
        if record.reason and kind_of(record.reason) is EMPTY:  # as a record that is not there
            continue
        if record.reason:
            raise UserError(
                f"{path}:{record.line}: the structure of {clipped(record.id)!r} is none of 3Di "
                f"({record.reason}); give Foldseek's letters."
            )
        lines.setdefault(record.id, record.line)
        if found.setdefault(record.id, record.payload) != record.payload:
            raise UserError(
                f"{path}:{record.line}: {clipped(record.id)!r} has two structures; drop one."
            )
    return Structures(path, found, lines)


def added(records: Iterator[Record], structures: Structures) -> Iterator[Record]:
    """Yield `records` with their structures, by id or accession; those with one of another length
    are refused."""
    matcher = Matcher(structures.path, structures.lines, "record of the inputs")
    for record in records:
        name = matcher.name_of(record.id)
        letters = None if name is None else structures.letters[name]
        own, among, _ = parts_of(record.payload)
        if record.reason or (among and letters in (None, among)):
            yield record
        elif among:
            yield record._replace(payload=b"", reason=TWO.reason())
        elif letters is None:
            yield record._replace(note="; ".join(filter(None, (record.note, NOT_KNOWN))))
        elif len(letters) != len(own):
            told = f"{len(letters):,} letters for {len(own):,} residues"
            yield record._replace(payload=b"", reason=OTHER_LENGTH.reason(told))
        else:
            yield record._replace(payload=Parts(own, letters).payload)
    if not matcher.id_of:
        matcher.check()
