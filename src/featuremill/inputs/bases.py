"""Clean the letters of nucleotides: return a payload, or a reason for refused records.

The alphabet is IUPAC's: A, C, G, T, and the ambiguity codes R Y S W K M B D H V N (Cornish-Bowden,
Nucleic Acids Res. 13, 3021, 1985). U is read as T; gaps are refused.
"""

from __future__ import annotations

from featuremill.base import reasons
from featuremill.inputs import residues
from featuremill.inputs.letters import (
    NO_WHITESPACE,
    UPPER_CASE,
    WHITESPACE,
    Cleaned,
    first_other,
    maker,
    show_at,
)

ALPHABET = b"ACGTRYSWKMBDHVN"
U_AS_T = "U read as T"
PROTEIN_ONLY = b"EFILPQ"
"""Letters of amino acids that are not codes of bases; a third of a protein is made of them."""
MIN_PROTEIN = 10
"""Shorter sequences are not recognised as proteins: they may be typing errors."""
_LETTERS = ALPHABET.decode() + "U"


def clean(letters: str, num_before: int = 0) -> Cleaned:
    """Return the bases in `letters`: upper case, no whitespace, U as T.

    `num_before` is the number of earlier bases of the record, for positions in reasons.
    """
    payload = letters.encode("ascii", "replace").translate(UPPER_CASE, WHITESPACE)
    if not payload:
        return Cleaned(b"", reasons.EMPTY.reason())
    note = ""
    if b"U" in payload:
        payload, note = payload.replace(b"U", b"T"), U_AS_T
    if payload.translate(None, ALPHABET):
        return Cleaned(b"", _reason(letters, num_before))
    return Cleaned(payload, "", note)


def _reason(letters: str, num_before: int) -> str:
    """Return the reason for the first letter that is not a base, with its position."""
    plain = letters.translate(NO_WHITESPACE)
    kind = reasons.PROTEIN if _is_protein(plain) else reasons.BASES
    index = first_other(plain, _LETTERS + _LETTERS.lower())
    return kind.reason(f"{show_at(plain, index)} at base {num_before + index + 1}")


def _is_protein(letters: str) -> bool:
    """Return whether all letters are amino acids, and at least a tenth of them not bases."""
    written = letters.encode("ascii", "replace").translate(UPPER_CASE).rstrip(b"*")
    num_others = len(written) - len(written.translate(None, PROTEIN_ONLY))
    return (
        len(written) >= MIN_PROTEIN
        and num_others * 10 >= len(written)
        and not written.translate(None, residues.ALPHABET + b"J")
    )


nucleotide = maker(clean)
