"""Clean the letters of proteins and of nucleotides: return a payload, or a reason for refused
records.

Reasons are from `featuremill.base.reasons`. Notes do not change before the first colon, so that
they can be counted.
"""

from __future__ import annotations

import re

from featuremill.base import reasons
from featuremill.inputs.letters import (
    NO_WHITESPACE,
    UPPER_CASE,
    WHITESPACE,
    Cleaned,
    first_other,
    maker,
    show_at,
)

ALPHABET = b"ACDEFGHIKLMNPQRSTVWYXBUZO.-"
"""The letters of protein language models: 20 amino acids, X B U Z O, and the gaps '.' and '-'."""
GAPS = "gaps (- or .) are kept and count as residues"
INSERTIONS = "small letters beside gaps, as .a3m writes insertions, are read as residues"
END_DROPPED = "* at the end dropped"
J_AS_X = "J read as X"
NUCLEOTIDES = "looks like nucleotides"
PAIRS = (
    "capital and small letters take turns, as in SaProt's combined sequence, but all are residues"
)
UNKNOWN = "no known residue"

_LETTERS = ALPHABET.decode() + "J"
FIRST = 20
"""Number of first letters that are checked for small ones; checking all doubles the time."""
_PAIRED = re.compile("(?:[A-Z][a-z]){5,}")
MIN_NUCLEOTIDES = 30
"""Shorter sequences get no note: there are peptides of A, C, G and T only."""


def clean(letters: str) -> Cleaned:
    """Return the residues in `letters`: upper case, no whitespace, no '*' at the end, J as X."""
    written = letters.encode("ascii", "replace").translate(UPPER_CASE, WHITESPACE)
    payload = written.rstrip(b"*")
    if not payload:
        return Cleaned(b"", reasons.EMPTY.reason())
    notes = [END_DROPPED] if len(payload) < len(written) else []
    if b"J" in payload:
        payload = payload.replace(b"J", b"X")
        notes.append(J_AS_X)
    if payload.translate(None, ALPHABET):
        plain = letters.translate(NO_WHITESPACE).rstrip("*")
        index = first_other(plain, _LETTERS + _LETTERS.lower())
        if plain[index] == "*":
            return Cleaned(b"", reasons.STOP.reason(f"residue {index + 1}"))
        where = f"{show_at(plain, index)} at residue {index + 1}"
        return Cleaned(b"", reasons.LETTERS.reason(where))
    if _is_nucleotides(payload):
        notes.append(NUCLEOTIDES)
    elif not payload.strip(b"X.-"):
        notes.append(UNKNOWN)
    elif b"-" in payload or b"." in payload:
        notes.append(GAPS)
        if not letters.isupper():
            notes.append(INSERTIONS)
    if not letters[:FIRST].isupper() and _PAIRED.fullmatch(letters.translate(NO_WHITESPACE)):
        notes.append(PAIRS)
    return Cleaned(payload, "", "; ".join(notes))


def _is_nucleotides(payload: bytes) -> bool:
    """Return whether nine tenths of the letters are A, C, G, T, U or N, with three of four bases.

    This holds for none of 500,000 Swiss-Prot proteins; antifreeze proteins (AATAATAATAAT…) are
    nearest.
    """
    num_others = len(payload.translate(None, b"ACGTUN"))
    if len(payload) < MIN_NUCLEOTIDES or num_others * 10 > len(payload):
        return False
    bases = (b"A" in payload, b"C" in payload, b"G" in payload, b"T" in payload or b"U" in payload)
    return sum(bases) >= 3


protein = maker(clean)

BASES = b"ACGTRYSWKMBDHVN"
"""IUPAC's alphabet of nucleotides: A, C, G, T, and ambiguity codes (Cornish-Bowden, Nucleic Acids
Res. 13, 3021, 1985). U is read as T."""
U_AS_T = "U read as T"
PROTEIN_ONLY = b"EFILPQ"
"""Letters of amino acids that are not codes of bases; a third of a protein is made of them."""
MIN_PROTEIN = 10
"""Shorter sequences are not recognised as proteins: they may be typing errors."""
_LETTERS_OF_BASES = BASES.decode() + "U"


def clean_bases(letters: str, num_before: int = 0) -> Cleaned:
    """Return the bases in `letters`: upper case, no whitespace, U as T.

    `num_before` is the number of earlier bases of the record, for positions in reasons.
    """
    payload = letters.encode("ascii", "replace").translate(UPPER_CASE, WHITESPACE)
    if not payload:
        return Cleaned(b"", reasons.EMPTY.reason())
    note = ""
    if b"U" in payload:
        payload, note = payload.replace(b"U", b"T"), U_AS_T
    if payload.translate(None, BASES):
        plain = letters.translate(NO_WHITESPACE)
        kind = reasons.PROTEIN if _is_protein(plain) else reasons.BASES
        index = first_other(plain, _LETTERS_OF_BASES + _LETTERS_OF_BASES.lower())
        where = f"{show_at(plain, index)} at base {num_before + index + 1}"
        return Cleaned(b"", kind.reason(where))
    return Cleaned(payload, "", note)


def _is_protein(letters: str) -> bool:
    """Return whether all letters are amino acids, and at least a tenth of them not bases."""
    written = letters.encode("ascii", "replace").translate(UPPER_CASE).rstrip(b"*")
    num_others = len(written) - len(written.translate(None, PROTEIN_ONLY))
    return (
        len(written) >= MIN_PROTEIN
        and num_others * 10 >= len(written)
        and not written.translate(None, ALPHABET + b"J")
    )


nucleotide = maker(clean_bases)
