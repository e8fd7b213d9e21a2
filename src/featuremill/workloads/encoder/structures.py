"""Letters of structure (3Di) beside residues, out of a file of their own.

They are those of Foldseek, in small letters as SaProt has them, `#` where a residue has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from featuremill.base import reasons
from featuremill.base.errors import UserError
from featuremill.base.reasons import EMPTY, Kind, kind_of
from featuremill.base.text import clipped
from featuremill.inputs import TableOptions, spelled
from featuremill.inputs.letters import NO_WHITESPACE, Cleaned, maker, show
from featuremill.inputs.payloads import Parts
from featuremill.workload import Record

ALPHABET = "acdefghiklmnpqrstvwy#"
NOT_KNOWN = "no structure of this record, # for each residue"
OTHER_LENGTH = Kind(
    "structure",
    ("its structure has another length",),
    "The structure is of another sequence, or of a part of this one. Fix its letters, or take it "
    "out of the file: then each residue gets #.",
)


def clean(letters: str) -> Cleaned:
    """Return letters of structure as a payload has them."""
    written = letters.translate(NO_WHITESPACE).lower()
    if not written:
        return Cleaned(b"", reasons.EMPTY.reason())
    if strangers := written.translate(str.maketrans("", "", ALPHABET)):
        place = written.index(strangers[0]) + 1
        return Cleaned(b"", reasons.LETTERS.reason(f"{show(strangers[0])} at letter {place}"))
    return Cleaned(written.encode())


def read(path: Path, options: TableOptions) -> Mapping[str, bytes]:
    """Return the letters of structure in `path`, by id.

    Raises:
        UserError: where letters are no 3Di, or two structures of an id differ.
    """
    found: dict[str, bytes] = {}
    for record in spelled([path], maker(clean), options):
        if record.reason and kind_of(record.reason) is EMPTY:  # as a record that is not there
            continue
        if record.reason:
            raise UserError(
                f"{path}:{record.line}: the structure of {clipped(record.id)!r} is none of 3Di "
                f"({record.reason}); give Foldseek's letters."
            )
        if found.setdefault(record.id, record.payload) != record.payload:
            raise UserError(
                f"{path}:{record.line}: {clipped(record.id)!r} has two structures; drop one."
            )
    return found


def added(
    records: Iterator[Record], structures: Mapping[str, bytes], path: str
) -> Iterator[Record]:
    """Yield `records` with their structures; those with one of another length are refused."""
    num_found = 0
    for record in records:
        letters = structures.get(record.id)
        num_found += letters is not None
        if record.reason:
            yield record
        elif letters is None:
            yield record._replace(note="; ".join(filter(None, (record.note, NOT_KNOWN))))
        elif len(letters) != len(record.payload):
            told = f"{len(letters):,} letters for {len(record.payload):,} residues"
            yield record._replace(payload=b"", reason=OTHER_LENGTH.reason(told))
        else:
            payload = Parts(record.payload, letters).payload
            yield record._replace(payload=payload, length=len(record.payload))
    if not num_found:
        raise UserError(
            f"{path}: none of its ids is one of the inputs; give structures under the same ids."
        )
