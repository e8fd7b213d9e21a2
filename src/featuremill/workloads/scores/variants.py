"""Proteins with their variants as records: what is read, and why a variant cannot be scored.

A payload is the protein's letters; behind them, after a line break, its listed variants with a
space between. In a variant, substitutions stand in the order of their positions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from Bio.Data.IUPACData import protein_letters_3to1

from featuremill.base.errors import UserError
from featuremill.base.reasons import Kind
from featuremill.base.text import clipped
from featuremill.inputs import NamedColumns, columns, format_of, names_in_table, proteins, rows
from featuremill.inputs.residues import protein
from featuremill.workload import Record
from featuremill.workloads.scores.options import Options

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
NAMES = (
    (
        "variant",
        "variants",
        "mutant",
        "mutants",
        "mutation",
        "mutations",
        "substitution",
        "substitutions",
    ),
)
"""Names of a column of variants."""
BETWEEN = re.compile(r"[\s,;]+")
OF_THREE = re.compile(r"([A-Z]{3})([0-9]+)([A-Z]{3})")
"""A substitution as HGVS writes it, such as Ala123Thr, in capitals."""
SUBSTITUTION = re.compile(r"([A-Z])([1-9][0-9]{0,8})([A-Z])")
NO_SUBSTITUTION = re.compile(r"DEL|INS|DUP|FS|TER|[*=?_-]")
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
REASONS = (NOT_ONE, INDEL, WILD_TYPE, BEYOND)


class Substitution(NamedTuple):
    """A new residue at a place, counted from 0."""

    place: int
    letter: str


class _WrongError(Exception):
    """Says in a reason why a variant cannot be scored."""


class _Listed:
    """The variants of a table, by the id or accession of their protein."""

    def __init__(self, path: Path, options: Options) -> None:
        names = names_in_table(path, "variants")
        place = columns.one(path, names, options.variant_column, NAMES, "variant")
        column = names[place]
        self._path = path
        self._has_ids = columns.has_id(names)
        id_column = names[columns.find_id(path, names)] if self._has_ids else column
        self._cells: dict[str, list[str]] = {}
        self._lines: dict[str, int] = {}
        for record in rows([path], NamedColumns(id_column=id_column, names=(column,))):
            cell = "" if record.reason else str(json.loads(record.payload)[column] or "")
            if record.reason and self._has_ids:
                raise UserError(
                    f"{path}:{record.line}: this row has no id of a protein ({record.reason}); "
                    "fix it."
                )
            if cell.strip():
                id = record.id if self._has_ids else ""
                self._cells.setdefault(id, []).append(cell)
                self._lines.setdefault(id, record.line)
        if not self._cells:
            raise UserError(f"{path}: there is no variant in the column {column!r}; fill it in.")
        self._left = set(self._cells)

    def of(self, id: str) -> list[str]:
        """Return the cells of a protein."""
        key = id if self._has_ids else ""
        if key not in self._cells:
            key = accession(id)
        self._left.discard(key)
        return self._cells.get(key, [])

    def refuse_strangers(self) -> None:
        """Raise UserError where variants are of no protein that there is."""
        if self._left:
            first = min(self._left, key=self._lines.__getitem__)
            more = f" (and {len(self._left) - 1} more ids)" if len(self._left) > 1 else ""
            raise UserError(
                f"{self._path}:{self._lines[first]}: no protein of the inputs is called "
                f"{clipped(first)!r}{more}; take its variants out, or add the protein."
            )


def records(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Stream the proteins of `inputs` with their variants; those that are cut get a note."""
    if options.variants != "listed":
        for record in proteins(inputs, options):
            yield _sized(record, options)
    elif options.variants_file is None:
        for record, cell in _rows_with_variants(inputs, options):
            yield _with_variants(record, [cell], options)
    else:
        listed = _Listed(Path(options.variants_file), options)
        for record in proteins(inputs, options):
            yield _with_variants(record, listed.of(record.id), options)
        listed.refuse_strangers()


def accession(id: str) -> str:
    """Return the accession in an id."""
    import pyarrow as pa

    from featuremill.base.accession import accessions

    found: str = accessions(pa.array([id]))[0].as_py()
    return found


def payload_of(letters: bytes, variants: Sequence[str]) -> bytes:
    """Return the payload of a protein with `variants`, each of them once."""
    return b"\n".join([letters, " ".join(dict.fromkeys(variants)).encode()])


def parts_of(payload: bytes) -> tuple[bytes, list[str]]:
    """Return the letters of a payload and its listed variants."""
    letters, _, listed = payload.partition(b"\n")
    return letters, listed.decode().split()


def substitutions(variant: str) -> list[Substitution]:
    """Return the substitutions of a variant of a payload."""
    return [Substitution(int(part[1:-1]) - 1, part[-1]) for part in variant.split(":")]


def _rows_with_variants(inputs: Sequence[Path], options: Options) -> Iterator[tuple[Record, str]]:
    """Yield the proteins of tables, each with its cell of variants."""
    for path in inputs:
        if format_of(path).module not in ("table", "parquet"):
            raise UserError(
                f"{path}: variants: listed needs a table of variants; set variants_file under "
                "options, or give a table with a column of variants."
            )
    for path in inputs:
        names = names_in_table(path, "variants")
        chosen = columns.Named(options.id_column, options.sequence_column)
        found = columns.find(path, names, chosen)
        place = columns.one(path, names, options.variant_column, NAMES, "variant")
        id, letters, cell = names[found.id], names[found.sequence], names[place]
        for row in rows([path], NamedColumns(id_column=id, names=(letters, cell))):
            values = {} if row.reason else json.loads(row.payload)
            text = str(values.get(letters) or "")
            record = protein(row.id, "", text, row.source, row.line)
            yield record, str(values.get(cell) or "")


def _with_variants(record: Record, cells: Sequence[str], options: Options) -> Record:
    """Return the record of a protein and its variants, or why one of these cannot be scored."""
    sized = _sized(record, options)
    if record.reason:
        return sized
    letters = record.payload
    texts = [text for cell in cells for text in BETWEEN.split(cell) if text]
    try:
        variants = [_checked(text, letters, options) for text in texts]
    except _WrongError as wrong:
        return sized._replace(payload=b"", reason=str(wrong))
    return sized._replace(payload=payload_of(letters, variants))


def _sized(record: Record, options: Options) -> Record:
    length = len(record.payload)
    note = record.note
    if options.width(length) < length:
        is_cut = options.long == "truncate"
        how = "truncated (option long computes all)" if is_cut else "in windows"
        cut = f"longer than {options.limit} residues, {how}"
        note = "; ".join(filter(None, [note, cut]))
    return record._replace(note=note, length=length)


def _checked(text: str, letters: bytes, options: Options) -> str:
    """Return a variant as payloads have it.

    Raises:
        _WrongError: when it is none, or not one of this protein.
    """
    found: Mapping[int, str] = {}
    for part in text.upper().split(":"):
        part = part.removeprefix("P.").strip("()")
        if long := OF_THREE.fullmatch(part):
            part = "".join(protein_letters_3to1.get(each.title(), each) for each in long.groups())
        match = SUBSTITUTION.fullmatch(part)
        if not match or match[3] not in AMINO_ACIDS:
            kind = NOT_ONE if match or not NO_SUBSTITUTION.search(part) else INDEL
            raise _WrongError(kind.reason(repr(clipped(text))))
        position = int(match[2])
        if position > len(letters):
            raise _WrongError(BEYOND.reason(f"{part}, and the protein has {len(letters)} residues"))
        if match[1] != (stands := chr(letters[position - 1])):
            raise _WrongError(
                WILD_TYPE.reason(f"{part}, and residue {position} of the protein is {stands}")
            )
        if position > options.seen(len(letters)):
            raise _WrongError(BEYOND.reason(f"{part}, of {options.limit}", TRUNCATED))
        if position in found:
            raise _WrongError(NOT_ONE.reason(f"{clipped(text)} changes residue {position} twice"))
        found = {**found, position: part}
    if set(options.kinds) - {"wildtype"} and max(found) - min(found) >= options.width(len(letters)):
        raise _WrongError(BEYOND.reason(f"{clipped(text)}, of {options.limit}", APART))
    return ":".join(found[position] for position in sorted(found))
