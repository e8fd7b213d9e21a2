"""Which columns of a table hold the id, the sequence and the description."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.errors import UserError

IDS = (
    ("id",),
    (
        "accession",
        "acc",
        "entry",
        "identifier",
        "uniprot",
        "uniprot_id",
        "protein_id",
        "seq_id",
        "sequence_id",
    ),
    ("name", "header", "locus_tag", "label"),
)
"""Names of an id column, the surest first; two of one rank are ambiguous."""
SEQUENCES = (
    (
        "sequence",
        "seq",
        "protein_sequence",
        "protein_seq",
        "aa_sequence",
        "aa_seq",
        "amino_acid_sequence",
    ),
    ("aa", "protein", "residues", "peptide"),
)
DESCRIPTIONS = (("description",), ("protein_names", "protein_name", "product"))


class Columns(NamedTuple):
    """Places of the columns, from 0."""

    id: int
    sequence: int
    description: int | None


def find(path: Path, names: Sequence[str]) -> Columns:
    """Return where the columns stand in `names`, in any case; UserError where that is not clear."""
    id = _find(path, names, IDS, "id")
    sequence = _find(path, names, SEQUENCES, "sequence")
    if id is None or sequence is None:
        missing = "sequence" if id is not None else "id"
        raise UserError(
            f"{path}: no column is the {missing} column among {_list(names)}; "
            "call the two that count 'id' and 'sequence'."
        )
    described = [place for place in _matches(names, DESCRIPTIONS) if place not in (id, sequence)]
    return Columns(id, sequence, described[0] if len(described) == 1 else None)


def find_id(path: Path, names: Sequence[str]) -> int:
    """Return where the id stands in `names`; UserError where that is not clear."""
    place = _find(path, names, IDS, "id")
    if place is None:
        raise UserError(
            f"{path}: no column is the id column among {_list(names)}; call the right one 'id'."
        )
    return place


def find_named(path: Path, names: Sequence[str], wanted: str) -> int:
    """Return where the column that is called `wanted` stands in `names`, or raise UserError."""
    if wanted not in names:
        raise UserError(f"{path}: there is no column {wanted!r}; it has {_list(names)}.")
    return names.index(wanted)


def _find(
    path: Path, names: Sequence[str], ranks: Sequence[Sequence[str]], wanted: str
) -> int | None:
    places = _matches(names, ranks)
    if len(places) > 1:
        found = _list([names[place] for place in places])
        raise UserError(
            f"{path}: {found} may each be the {wanted} column; call the right one '{wanted}' and "
            "rename or drop the others."
        )
    return places[0] if places else None


def _matches(names: Sequence[str], ranks: Sequence[Sequence[str]]) -> list[int]:
    plain = [re.sub(r"[\s_.-]+", "_", name.strip().lower()) for name in names]
    for rank in ranks:
        if places := [place for place, name in enumerate(plain) if name in rank]:
            return places
    return []


def _list(names: Sequence[str]) -> str:
    shown = [repr(name if len(name) <= 40 else f"{name[:37]}...") for name in names[:20]]
    return ", ".join([*shown, *(["..."] if len(names) > 20 else [])]) or "none"
