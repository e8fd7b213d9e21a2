"""What makes a protein: letters become a payload, or a reason why they cannot.

The alphabet is ESM-2's: the 20 amino acids, X B U Z O, and the gaps '.' and '-'. Reasons are
those of `featuremill.base.reasons`; notes are stable up to the first colon as well, to be counted.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from featuremill.base import reasons
from featuremill.base.errors import UserError
from featuremill.base.text import CONTROL
from featuremill.inputs.source import has_nul
from featuremill.workload import Record

ALPHABET = b"ACDEFGHIKLMNPQRSTVWYXBUZO.-"
UPPER_CASE = bytes.maketrans(b"abcdefghijklmnopqrstuvwxyz", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
WHITESPACE = b" \t\n\r\x0b\x0c"

GAPS = "gaps (- or .) are kept and count as residues"
END_DROPPED = "* at the end dropped"
J_AS_X = "J read as X"
NUCLEOTIDES = "looks like nucleotides"
UNKNOWN = "no known residue"
LATIN_1 = "header read as Latin-1"

_LETTERS = ALPHABET.decode() + "J"
_STRANGER = re.compile(f"[^{re.escape(_LETTERS + _LETTERS.lower())}]")
_NO_WHITESPACE = str.maketrans("", "", WHITESPACE.decode())
MIN_NUCLEOTIDES = 30
"""Shorter sequences are not judged: there are real peptides of A, C, G and T alone."""


class Cleaned(NamedTuple):
    """Letters as ESM-2 reads them; the payload is empty where there is a reason."""

    payload: bytes
    reason: str = ""
    note: str = ""


def protein(
    id: str, description: str, letters: str, source: str, line: int, note: str = ""
) -> Record:
    """Return the record of these letters, refused where they are no protein.

    Raises UserError for NUL bytes and for a '>' among the letters: they hide lost or merged
    records, which no single refused record would account for.
    """
    payload, reason, mended = clean(letters)
    if "\0" in letters or "\0" in id or "\0" in description:
        raise has_nul(source, line)
    if reason and ">" in letters:
        raise UserError(
            f"{source}:{line}: there is a '>' inside this record's sequence, so two records have "
            "run into one; put a line break before it."
        )
    if not id:
        payload, reason = b"", reasons.ID.reason()
    elif not id.isprintable() and (control := CONTROL.search(id)):
        shown = f"U+{ord(control.group()):04X}"
        payload, reason = b"", reasons.ID.reason(shown, reasons.UNPRINTABLE_ID)
    notes = "; ".join(filter(None, (note, mended))) if note or mended else ""
    return Record(id, description, payload, source, line, reason, notes)


def clean(letters: str) -> Cleaned:
    """Return the residues in `letters`: upper case, no white space, no '*' at the end, J as X."""
    written = letters.encode("ascii", "replace").translate(UPPER_CASE, WHITESPACE)
    payload = written.rstrip(b"*")
    if not payload:
        return Cleaned(b"", reasons.EMPTY.reason())
    notes = [END_DROPPED] if len(payload) < len(written) else []
    if b"J" in payload:
        payload = payload.replace(b"J", b"X")
        notes.append(J_AS_X)
    if payload.translate(None, ALPHABET):
        return Cleaned(b"", _reason(letters))
    if _is_nucleotides(payload):
        notes.append(NUCLEOTIDES)
    elif not payload.strip(b"X.-"):
        notes.append(UNKNOWN)
    elif b"-" in payload or b"." in payload:
        notes.append(GAPS)
    return Cleaned(payload, "", "; ".join(notes))


def _is_nucleotides(payload: bytes) -> bool:
    """Say whether nine tenths of the letters are A, C, G, T, U or N, and three of four bases occur.

    None of 500,000 Swiss-Prot proteins is: antifreeze proteins (AATAATAATAAT…) come nearest.
    """
    if len(payload) < MIN_NUCLEOTIDES or len(payload.translate(None, b"ACGTUN")) * 10 > len(
        payload
    ):
        return False
    bases = (b"A" in payload, b"C" in payload, b"G" in payload, b"T" in payload or b"U" in payload)
    return sum(bases) >= 3


def _reason(letters: str) -> str:
    """Name the first letter that is no residue, and its place among the residues."""
    residues = letters.translate(_NO_WHITESPACE).rstrip("*")
    stranger = _STRANGER.search(residues)
    assert stranger, residues
    letter, number = stranger.group(), stranger.start() + 1
    if letter == "*":
        return reasons.STOP.reason(f"residue {number}")
    return reasons.LETTERS.reason(f"{_show(letter)} at residue {number}")


def _show(letter: str) -> str:
    """Return how to print `letter`; bytes that are no UTF-8 were decoded as surrogates."""
    if "\ud800" <= letter <= "\udfff":
        return f"byte 0x{ord(letter) & 0xFF:02X}"
    return f"'{letter}'" if letter.isprintable() else f"U+{ord(letter):04X}"
