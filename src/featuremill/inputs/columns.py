"""Find the columns of ids, sequences and descriptions in a table, by name or by choice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.base.errors import UserError

IDS = (
    ("id",),
    ("accession", "acc", "entry", "identifier", "uniprot", "uniprot_id", "protein_id", "seq_id",
     "sequence_id"),
    ("name", "header", "locus_tag", "label"),
)  # fmt: skip
"""Names of id columns by rank, the first rank preferred; two columns of a rank are ambiguous."""
SEQUENCES = (
    # `sequence_aa` is AIRR's, where `sequence` is nucleotides, so both are ambiguous.
    ("sequence", "seq", "protein_sequence", "protein_seq", "aa_sequence", "aa_seq",
     "amino_acid_sequence", "sequence_aa"),
    ("aa", "protein", "residues", "peptide"),
)  # fmt: skip
NUCLEOTIDES = (
    ("sequence", "seq", "nucleotide_sequence", "dna_sequence", "rna_sequence", "nt_sequence",
     "dna_seq", "rna_seq", "nt_seq"),
    ("nucleotides", "dna", "rna", "cds", "read"),
)  # fmt: skip
"""Names of a column of nucleotides; `SEQUENCES` are those of proteins."""
DESCRIPTIONS = (("description",), ("protein_names", "protein_name", "product"))


class Named(NamedTuple):
    """The names of columns that the user chose; "" means to find the column."""

    id: str = ""
    sequence: str = ""


class Columns(NamedTuple):
    """The indices of the columns, from 0."""

    id: int
    sequence: int
    description: int | None


def find(
    path: Path, names: Sequence[str], chosen: Named, sequences: Sequence[Sequence[str]] = SEQUENCES
) -> Columns:
    """Return the indices of the id, sequence and description columns in `names`."""
    id = find_column(path, names, chosen.id, IDS, "id")
    sequence = find_column(path, names, chosen.sequence, sequences, "sequence")
    if id == sequence:
        raise UserError(
            f"{path}: {names[id]!r} cannot be both the id and the sequence column; set id_column "
            "and sequence_column under options to two of them."
        )
    described = [index for index in _matches(names, DESCRIPTIONS) if index not in (id, sequence)]
    return Columns(id, sequence, described[0] if len(described) == 1 else None)


def has_id(names: Sequence[str]) -> bool:
    return bool(_matches(names, IDS))


def find_id(path: Path, names: Sequence[str], remedy: str = "call the right one 'id'") -> int:
    """Return the index of the id column in `names`; the `remedy` ends an error message."""
    indices = _matches(names, IDS)
    if not indices:
        raise UserError(f"{path}: no column of ids is found (columns: {listed(names)}); {remedy}.")
    if len(indices) > 1:
        matches = listed([names[index] for index in indices])
        raise UserError(
            f"{path}: {matches} may each be the id column; {remedy}, and rename or drop the others."
        )
    return indices[0]


def first_of(names: Sequence[str], ranks: Sequence[Sequence[str]]) -> str:
    """Return the name of the column by `ranks`; "" if there is none, or more than one."""
    indices = _matches(names, ranks)
    return names[indices[0]] if len(indices) == 1 else ""


def find_named(path: Path, names: Sequence[str], wanted: str) -> int:
    """Return the index of the column `wanted` in `names`, or raise UserError."""
    if wanted not in names:
        raise UserError(f"{path}: there is no column {wanted!r}; it has {listed(names)}.")
    return names.index(wanted)


def find_column(
    path: Path, names: Sequence[str], chosen: str, ranks: Sequence[Sequence[str]], wanted: str
) -> int:
    """Return the index of the column `chosen`, else of the only one whose name is in `ranks`."""
    key = f"{wanted}_column"
    if chosen:
        if chosen not in names:
            raise UserError(
                f"{path}: there is no column {chosen!r}; set {key} under options to one of "
                f"{listed(names)}."
            )
        return names.index(chosen)
    indices = _matches(names, ranks)
    if len(indices) != 1:
        candidates = listed([names[index] for index in indices])
        problem = (
            f"{candidates} may each be the {wanted} column"
            if indices
            else f"no column of {wanted}s is found (columns: {listed(names)})"
        )
        raise UserError(
            f"{path}: {problem}; set {key} under options to the right one (featuremill init takes "
            f"--{key.replace('_', '-')})."
        )
    return indices[0]


def _matches(names: Sequence[str], ranks: Sequence[Sequence[str]]) -> list[int]:
    # Some writers have "#" before the first name.
    plain = [re.sub(r"[\s_.-]+", "_", name.lstrip("# ").strip().lower()) for name in names]
    for rank in ranks:
        if indices := [index for index, name in enumerate(plain) if name in rank]:
            return indices
    return []


def listed(names: Sequence[str]) -> str:
    """Return the first twenty names of columns for a message, shortened."""
    shown = [repr(name if len(name) <= 40 else f"{name[:37]}...") for name in names[:20]]
    return ", ".join([*shown, *(["..."] if len(names) > 20 else [])]) or "none"
