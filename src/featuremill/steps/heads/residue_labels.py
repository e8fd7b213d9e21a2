"""Labels of residues: a letter for each, in a column of a table or in a FASTA file."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from featuremill import features, inputs
from featuremill.inputs import labels, source
from featuremill.inputs.labels import Label
from featuremill.kit.errors import UserError
from featuremill.kit.files import sha256_of
from featuremill.kit.text import clipped
from featuremill.steps.heads.card import TableUsed
from featuremill.steps.heads.labels import Labels

UNLABELLED = -1
"""The number of a residue without a label."""
Numbers = npt.NDArray[np.int8]
log = logging.getLogger("featuremill.head")


def is_fasta(path: Path) -> bool:
    """Return whether `path` has labels in the form of sequences."""
    return not inputs.is_table(path)


def read(
    path: Path,
    column: str,
    group: str | None,
    id_column: str,
    planned: features.Planned,
    log: logging.Logger | None = log,
) -> Labels:
    """Return the labels in `path` by the ids of the records of `planned`; what is of none stays
    under its own name. `log` warns of those.

    Raises:
        UserError: the file has no such labels.
    """
    used = TableUsed(file=str(path), sha256=sha256_of(path), column=column, group=group)
    if is_fasta(path):
        _refuse_columns(path, column, group, bool(planned.id_columns.keys))
        found, num_empty = dict(_of_fasta(path)), 0
        if not found:
            raise UserError(f"{path}: there is no label in it; give a letter for each residue.")
    else:
        if not column:
            raise UserError(f"{path}: name the column of its labels with --column.")
        found, num_empty = labels.read(path, column, group, planned.id_columns, id_column)
    told = labels.NamedRecords(f"record of {planned.name}", planned.id_columns, log)
    return Labels(labels.by_record(found, path, [planned], told), num_empty, used)


def _refuse_columns(path: Path, column: str, group: str | None, has_keys: bool) -> None:
    for option, name in (("--column", column), ("--group", group)):
        if name:
            raise UserError(
                f"{path}: this is FASTA, which has no column {name!r} ({option}); give labels in a "
                "table for that."
            )
    if has_keys:
        raise UserError(
            f"{path}: this is FASTA, which does not say whose a record is; give labels in a table "
            "with a column sample."
        )


def _of_fasta(path: Path) -> Iterator[tuple[str, Label]]:
    """Yield the id and the letters of each record."""
    lines: dict[str, int] = {}
    id, letters = "", list[str]()
    with labels.refusing_damage(path), source.open_text(path, errors="surrogateescape") as text:
        meter = source.meter_of(text)
        for number, line in enumerate(text, 1):
            line = line.rstrip("\r\n").lstrip("\ufeff")
            if line.startswith(">"):
                if id:
                    yield id, Label("".join(letters), id, lines[id])
                meter.num_open = 0
                id, letters = (line[1:].split(None, 1) or [""])[0], []
                if not id:
                    raise UserError(f"{path}:{number}: this record has no id; give it one.")
                if id in lines:
                    raise UserError(
                        f"{path}:{number}: {clipped(id)!r} has labels in line {lines[id]} already; "
                        "leave one of them."
                    )
                lines[id] = number
            elif id:
                letters.append(line)
            elif line.strip():
                raise UserError(
                    f"{path}:{number}: labels of residues are read from FASTA, which begins with "
                    ">, or from a table (.csv, .tsv, .parquet); give one of these."
                )
    if id:
        yield id, Label("".join(letters), id, lines[id])


def classes_of(found: Mapping[str, Label], ids: Sequence[str], mask: str, file: str) -> list[str]:
    """Return the letters of the labels of `ids`, but for those of the mask.

    Raises:
        UserError: one of them is no letter.
    """
    letters = {letter for id in ids for letter in set(found[id].name)} - {*mask}
    strange = next((one for one in sorted(letters) if not one.isprintable() or one.isspace()), None)
    if strange is not None:
        id = next(id for id in ids if strange in found[id].name)
        raise UserError(
            f"{file}:{found[id].line}: the labels of {clipped(id)!r} have {strange!r}; write a "
            "printable letter for each residue (such as C for what DSSP leaves blank)."
        )
    return sorted(letters)


def numbers_of(label: str, classes: Sequence[str]) -> Numbers:
    """Return the number of each residue's class; UNLABELLED for other letters."""
    codes = np.frombuffer(label.encode("utf-32-le"), np.uint32)
    known = np.array([ord(letter) for letter in classes], np.uint32)  # ascending
    place = np.minimum(np.searchsorted(known, codes), len(known) - 1)
    return np.where(known[place] == codes, place, UNLABELLED).astype(np.int8)


def refuse_length(id: str, label: Label, num_residues: int, of: str, file: str) -> None:
    """Raise UserError where a record has another number of labels than of vectors."""
    if len(label.name) != num_residues:
        raise UserError(
            f"{file}:{label.line}: {clipped(id)!r} has {len(label.name):,} labels, and "
            f"{num_residues:,} residues with vectors in {of}; write a letter for each residue, or "
            "let the run compute all of a protein that it cut."
        )
