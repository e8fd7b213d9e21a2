"""Read letters of structure (3Di): with residues, from a separate file or between them; or alone.

The letters are Foldseek's 3Di, in small letters as in SaProt and ProstT5; `#` is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.inputs import TableOptions, residues, spelled
from featuremill.inputs.letters import NO_WHITESPACE, Cleaned, Parts, maker, parts_of, show_at
from featuremill.kit import reasons
from featuremill.kit.errors import UserError
from featuremill.kit.ids import Matcher
from featuremill.kit.reasons import EMPTY, Kind, kind_of
from featuremill.kit.text import clipped
from featuremill.workload import Record
from featuremill.workloads.encoder import fasta, structure_files
from featuremill.workloads.encoder.options import StructureOptions
from featuremill.workloads.encoder.structure_files import Plddt

__all__ = ["NOT_KNOWN", "REASONS", "added", "clean_pairs", "pairs", "read"]
LETTERS = "acdefghiklmnpqrstvwy"
NONE = "#"
PAIRS = re.compile("(?:[A-Z#][a-z#])+")
"""Each residue followed by its letter of structure: SaProt's combined sequence."""
MOSTLY = 0.8
"""Share of letters in pairs from which small letters are structures, not soft-masked residues."""
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
OTHER_RESIDUES = Kind(
    "structure_residues",
    ("its structure has other residues",),
    "The structure is of another sequence, of an isoform or of a mutant. Give the structure's own "
    "sequence, or take the structure out of the file, and then each residue gets #.",
)
REASONS = (OTHER_LENGTH, TWO, NOT_3DI, OTHER_RESIDUES, structure_files.NO_PLDDT)


def clean(letters: str, alphabet: str = LETTERS + NONE) -> Cleaned:
    """Return letters of structure in the form of payloads."""
    written = letters.translate(NO_WHITESPACE).lower()
    if not written:
        return Cleaned(b"", reasons.EMPTY.reason())
    if strangers := written.translate(str.maketrans("", "", alphabet)):
        index = written.index(strangers[0])
        return Cleaned(b"", NOT_3DI.reason(f"{show_at(written, index)} at letter {index + 1}"))
    return Cleaned(written.encode())


def clean_alone(letters: str) -> Cleaned:
    """Return the letters of a record that is a structure; `#` is not allowed."""
    return clean(letters, LETTERS)


def clean_pairs(letters: str) -> Cleaned:
    """Return residues, with letters of structure if each residue is followed by its own."""
    written = letters.translate(NO_WHITESPACE)
    num_paired = sum(len(each) for each in PAIRS.findall(written))
    if num_paired < MOSTLY * len(written):
        return residues.clean(letters)
    if num_paired < len(written):
        detail = f"{num_paired:,} of {len(written):,} letters do"
        return Cleaned(b"", OTHER_LENGTH.reason(detail, UNPAIRED))
    structure = clean(written[1::2])
    cleaned = residues.clean(written[::2].replace(NONE, "X"))
    if structure.reason or cleaned.reason:
        return structure if structure.reason else cleaned
    return cleaned._replace(payload=Parts(cleaned.payload, structure.payload).payload)


def pairs(inputs: Sequence[Path], options: TableOptions) -> Iterator[Record]:
    """Yield records of residues, or of alternating residues and 3Di letters."""
    return spelled(inputs, maker(clean_pairs), options, fasta.__name__)


def clean_beside(letters: str) -> Cleaned:
    """Return residues, with a note if they look like 3Di letters, which the network has too."""
    cleaned = residues.clean(letters)
    written = letters.translate(NO_WHITESPACE)
    if cleaned.reason or not written.islower() or written.strip(LETTERS):
        return cleaned
    return cleaned._replace(note="; ".join(filter(None, (cleaned.note, SMALL))))


class Structures(NamedTuple):
    """The letters of structure in a file, and the line of each, by id."""

    path: Path
    letters: Mapping[str, bytes]
    lines: Mapping[str, int]
    residues: Mapping[str, bytes]
    """The residues of the structures, by id, if the file has them."""
    also: Mapping[str, str]
    """The id for each other name."""
    plddt: Plddt | None


def read(options: StructureOptions, id_column: str) -> Structures:
    """Return the letters of structure of the file in `options`; `id_column` is for tables.

    Raises:
        UserError: if a letter is not 3Di, or two structures of an id differ.
    """
    assert options.structures
    path = Path(options.structures)
    table = TableOptions(
        id_column=id_column if options.structure_column else "",
        sequence_column=options.structure_column,
    )
    letters_of: dict[str, bytes] = {}
    lines: dict[str, int] = {}
    residues: dict[str, bytes] = {}
    is_descriptor = structure_files.is_descriptor(path)
    if is_descriptor:
        records = _of_descriptor(path, residues)
    else:
        records = spelled([path], maker(clean), table, fasta.__name__)
    for record in records:
        if record.reason and kind_of(record.reason) is EMPTY:  # the same as a missing structure
            continue
        if record.reason:
            raise UserError(
                f"{path}:{record.line}: the structure of {clipped(record.id)!r} is none of 3Di "
                f"({record.reason}); give Foldseek's letters."
            )
        lines.setdefault(record.id, record.line)
        if letters_of.setdefault(record.id, record.payload) != record.payload:
            raise UserError(
                f"{path}:{record.line}: {clipped(record.id)!r} has two structures; drop one."
            )
    also = structure_files.also_called(
        name for name in letters_of if is_descriptor or structure_files.named(name).suffix
    )
    known = None
    if options.plddt_folder or options.plddt_column:
        texts: Mapping[str, str] = {}
        if options.plddt_column:
            texts = structure_files.plddt_of_column(path, options, table.id_column)
        known = Plddt(options, texts)
    return Structures(path, letters_of, lines, residues, also, known)


def _of_descriptor(path: Path, residues: dict[str, bytes]) -> Iterator[Record]:
    """Yield the chains of Foldseek's descriptor; add their residues to `residues`."""
    make = maker(clean)
    for chain in structure_files.chains(path):
        if len(chain.residues) != len(chain.letters):
            raise UserError(
                f"{path}:{chain.line}: {clipped(chain.name)!r} has {len(chain.residues):,} "
                f"residues and {len(chain.letters):,} letters of structure; write the file again "
                "with foldseek structureto3didescriptor."
            )
        known = residues.setdefault(chain.name, chain.residues)
        if known != chain.residues:
            raise UserError(
                f"{path}:{chain.line}: {clipped(chain.name)!r} has two structures; drop one."
            )
        yield make(chain.name, "", chain.letters, str(path), chain.line)


def difference(own: bytes, of_structure: bytes) -> str:
    """Return the first difference between the residues of a record and of its structure; "" if
    there is none. X matches any residue."""
    pairs = zip(own.decode(), of_structure.decode("utf-8", "replace"), strict=True)
    for number, (letter, other) in enumerate(pairs, 1):
        if letter != other and "X" not in (letter, other.upper()):
            return f"residue {number:,} is {letter} in the inputs and {other} in the structure"
    return ""


def added(records: Iterator[Record], structures: Structures) -> Iterator[Record]:
    """Yield `records` with their structures, by id or accession. A record whose structure does not
    fit is refused."""
    known = {name: structures.lines[id] for name, id in structures.also.items()}
    matcher = Matcher(structures.path, known | dict(structures.lines), "record of the inputs")
    for record in records:
        name = matcher.name_of(record.id)
        name = name if name is None else structures.also.get(name, name)
        letters = None if name is None else structures.letters[name]
        own, among, _ = parts_of(record.payload)
        if record.reason or (among and letters in (None, among)):
            yield record
        elif among:
            yield record._replace(payload=b"", reason=TWO.reason())
        elif letters is None:
            yield record._replace(note="; ".join(filter(None, (record.note, NOT_KNOWN))))
        elif len(letters) != len(own):
            detail = f"{len(letters):,} letters for {len(own):,} residues"
            yield record._replace(payload=b"", reason=OTHER_LENGTH.reason(detail))
        else:
            assert name is not None
            of_structure = structures.residues.get(name, own)
            reason = ""
            if detail := difference(own, of_structure):
                reason = OTHER_RESIDUES.reason(detail)
            elif structures.plddt:
                letters, reason = structures.plddt.masked(name, letters)
            payload = b"" if reason else Parts(own, letters).payload
            yield record._replace(payload=payload, reason=reason)
    if not matcher.id_of:
        matcher.check()
