"""What makes nucleotides: letters become a payload, or a reason why they cannot.

The alphabet is that of IUPAC: A, C, G, T, and R Y S W K M B D H V N for what is not known better
(Cornish-Bowden, Nucleic Acids Res. 13, 3021, 1985). U is read as T; gaps are no bases.
"""

from __future__ import annotations

import re

from featuremill.base import reasons
from featuremill.inputs import residues
from featuremill.inputs.letters import (
    NO_WHITESPACE,
    UPPER_CASE,
    WHITESPACE,
    Cleaned,
    maker,
    show_at,
)

ALPHABET = b"ACGTRYSWKMBDHVN"
U_AS_T = "U read as T"
PROTEIN_ONLY = b"EFILPQ"
"""Amino acids whose letters are no bases; a third of a protein is made of them."""
MIN_PROTEIN = 10
"""Shorter sequences are not judged: a typing error is not a protein."""
_LETTERS = ALPHABET.decode() + "U"
_STRANGER = re.compile(f"[^{_LETTERS}{_LETTERS.lower()}]")


def clean(letters: str, num_before: int = 0) -> Cleaned:
    """Return the bases in `letters`: upper case, no white space, U as T.

    `num_before` bases of the same record went before; a reason counts them.
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
    """Return the reason for the first letter that is no base, with its position."""
    plain = letters.translate(NO_WHITESPACE)
    stranger = _STRANGER.search(plain)
    assert stranger, plain
    kind = reasons.PROTEIN if _is_protein(plain) else reasons.BASES
    index = stranger.start()
    return kind.reason(f"{show_at(plain, index)} at base {num_before + index + 1}")


def _is_protein(letters: str) -> bool:
    """Say whether a tenth of the letters stand for amino acids alone, and none for nothing."""
    written = letters.encode("ascii", "replace").translate(UPPER_CASE).rstrip(b"*")
    num_others = len(written) - len(written.translate(None, PROTEIN_ONLY))
    return (
        len(written) >= MIN_PROTEIN
        and num_others * 10 >= len(written)
        and not written.translate(None, residues.ALPHABET + b"J")
    )


nucleotide = maker(clean)
