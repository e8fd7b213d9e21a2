"""Read the labels of records, of residues, of contigs (for their fragments) and of samples."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill import inputs
from featuremill.features import Listed
from featuremill.inputs import labels, source
from featuremill.inputs.labels import Label
from featuremill.inputs.samples import SAMPLE
from featuremill.kit.errors import UserError
from featuremill.kit.files import sha256_of
from featuremill.kit.ids import IdColumns
from featuremill.kit.text import clipped, listed
from featuremill.steps.heads.card import TableUsed
from featuremill.steps.heads.section import Head
from featuremill.steps.translate import folder as translation

UNLABELLED = -1
"""The number of a residue without a label."""
Numbers = npt.NDArray[np.int8]
MOST_CLASSES = 20
"""Without `task`, more different numbers than this are refused as names of classes."""
LARGEST = 1e100
"""Largest number that is a label, so that squares are finite."""
log = logging.getLogger("featuremill.head")


class Labels(NamedTuple):
    """Labels by whole ids."""

    of_id: dict[str, Label]
    num_empty: int
    """Rows of the table, or samples, without a label."""
    used: TableUsed


def read(features: Listed, head: Head, log: logging.Logger | None = log) -> Labels:
    """Return the labels of a head, before they are matched with records: those of its table or,
    without a table, those in the sheet of samples of the features. For records of samples, the
    group may also be a column of the sheet; the default is the sample. `log` gets warnings.

    Raises:
        UserError: if the table or a column is missing, or a row is invalid.
    """
    column = head.column or ""
    if head.labels is None:
        labelled = _of_sheet(features, features.samples(), column, head.group)
    else:
        labelled = _of_table(features, head, Path(head.labels), log)
    names = {label.name for label in labelled.of_id.values()}
    if head.task == "regression" and not all(map(_is_number, names)):
        of_id = labelled.of_id.items()
        id, label = next(item for item in of_id if not _is_number(item[1].name))
        where = f"{labelled.used.file}:{label.line}" if label.line else labelled.used.file
        raise UserError(
            f"{where}: {clipped(label.name)!r}, the label of {clipped(id)!r} in {column!r}, is no "
            "number; write one, or leave the cell empty where none is known."
        )
    if head.task is None and len(names) > MOST_CLASSES and all(map(_is_number, names)):
        raise UserError(
            f"{labelled.used.file}: {column!r} has {len(names):,} different numbers, and a "
            "classifier takes each for the name of a class; to predict the number, give task: "
            "regression (--task regression), and if they are names, task: classification."
        )
    return labelled


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        return abs(float(text)) < LARGEST
    return False


def _of_table(features: Listed, head: Head, table: Path, log: logging.Logger | None) -> Labels:
    column, group, id_columns = head.column or "", head.group, features.id_columns
    if head.task == "per_residue" and not inputs.is_table(table):
        used = TableUsed(file=str(table), sha256=sha256_of(table), column="", group=None)
        return Labels(_letters_in(table, head, id_columns), 0, used)
    if not column:
        raise UserError(f"{table}: name the column of its labels with --column.")
    group_of: dict[str, str] = {}
    if id_columns.keys and group not in (None, labels.ID, *labels.names_of(table)):
        sheet = features.samples()
        if group in sheet:
            group_of = dict(zip(sheet[SAMPLE], sheet[group], strict=True))
    by = None if group_of else group
    of_id, num_empty = labels.read(table, column, by, id_columns, head.id_column or "", log=log)
    for id, label in of_id.items() if group_of else ():
        sample = id_columns.owner(id)
        if not (name := group_of.get(sample, sample)):
            raise _without_group(sample, group)
        of_id[id] = label._replace(group=name)
    of_table = group or next(iter(id_columns.keys), None)
    used = TableUsed(file=str(table), sha256=sha256_of(table), column=column, group=of_table)
    return Labels(of_id, num_empty, used)


def _without_group(sample: str, group: str | None) -> UserError:
    return UserError(
        f"sample {sample!r} has no {group} in the sheet of samples; give it one (its own name, "
        "where it has no relatives)."
    )


def _of_sheet(
    features: Listed, sheet: dict[str, list[str]], column: str, group: str | None
) -> Labels:
    if not sheet:
        raise UserError(
            f"{features.name}: it is a run without samples, whose sheet could have {column!r}; "
            "name a table with --labels."
        )
    by = SAMPLE if group in (None, labels.ID) else group
    for name in (column, by):
        if name not in sheet:
            raise UserError(
                f"{features.name}: its sheet of samples has no column {name!r}; it has "
                f"{listed(sheet)}."
            )
    of_sample: dict[str, Label] = {}
    for sample, label, group_of_it in zip(sheet[SAMPLE], sheet[column], sheet[by], strict=True):
        if label and not group_of_it:
            raise _without_group(sample, by)
        if label:
            of_sample[sample] = Label(label, group_of_it, 0)
    if not of_sample:
        raise UserError(f"{features.name}: no sample has a label in {column!r}; fill it in.")
    ids, failures = features.ids_of(np.arange(features.num_rows)), features.failures()
    owner, of_id = features.id_columns.owner, dict[str, Label]()
    for id in (*ids, *(failure.id for failure in failures)):
        if own := of_sample.get(owner(id)):
            of_id[id] = own._replace(group=id) if group == labels.ID else own
    file = features.inputs[0]
    used = TableUsed(file=file.path, sha256=file.sha256, column=column, group=group or SAMPLE)
    return Labels(of_id, len(sheet[SAMPLE]) - len(of_sample), used)


def of_fragments(
    of_id: dict[str, Label],
    table: Path,
    translated: Path,
    id_columns: IdColumns,
    log: logging.Logger | None = log,
) -> tuple[dict[str, Label], int]:
    """Return the label of each fragment in the folder `translated`, which is that of its contig in
    `of_id`, and the number of labelled contigs without a fragment. `table` is for messages.

    Raises:
        UserError: if the translation is not finished, or the labels are not of its contigs.
    """
    translation.whole(translated)
    contigs = labels.NamedRecords(f"contig of {translated}", id_columns, log)
    of_contig = labels.of_ids(of_id, table, _contigs(translated), contigs)
    labelled: dict[str, Label] = {}
    without = set(of_contig)
    for some in translation.fragments(translated, ["id", "contig"]):
        for id, contig in zip(*(column.to_pylist() for column in some.columns), strict=True):
            if contig in of_contig:
                labelled[id] = of_contig[contig]
                without.discard(contig)
    return labelled, len(without)


def _contigs(translated: Path) -> Iterator[str]:
    """Yield each contig of a translation once; the fragments of a contig are consecutive."""
    blocks = translation.fragments(translated, ["contig"])
    contigs = chain.from_iterable(some.column(0).to_pylist() for some in blocks)
    yield from (contig for contig, _ in groupby(contigs))
    yield from (row["contig"] for row in translation.untranslated(translated))


def _letters_in(path: Path, head: Head, id_columns: IdColumns) -> dict[str, Label]:
    """Return the letters of each record of a FASTA file, by id."""
    for option, name in (("--column", head.column), ("--group", head.group)):
        if name:
            raise UserError(
                f"{path}: this is FASTA, which has no column {name!r} ({option}); give labels in a "
                "table for that."
            )
    if id_columns.keys:
        raise UserError(
            f"{path}: this is FASTA, which does not say whose a record is; give labels in a table "
            "with a column sample."
        )
    of_id: dict[str, Label] = {}
    id = ""
    with labels.refusing_damage(path), source.open_text(path, errors="surrogateescape") as text:
        meter = source.meter_of(text)
        for number, line in enumerate(text, 1):
            line = line.rstrip("\r\n").lstrip("\ufeff")
            if line.startswith(">"):
                meter.num_open = 0
                id = (line[1:].split(None, 1) or [""])[0]
                if not id:
                    raise UserError(f"{path}:{number}: this record has no id; give it one.")
                if id in of_id:
                    raise UserError(
                        f"{path}:{number}: {clipped(id)!r} has labels in line {of_id[id].line} "
                        "already; leave one of them."
                    )
                of_id[id] = Label("", id, number)
            elif id:
                of_id[id] = of_id[id]._replace(name=of_id[id].name + line)
            elif line.strip():
                raise UserError(
                    f"{path}:{number}: labels of residues are read from FASTA, which begins with "
                    ">, or from a table (.csv, .tsv, .parquet); give one of these."
                )
    if not of_id:
        raise UserError(f"{path}: there is no label in it; give a letter for each residue.")
    return of_id


def letters_of(of_id: Mapping[str, Label], ids: Sequence[str], mask: str, file: str) -> list[str]:
    """Return the letters in the labels of `ids`, without those of the mask, sorted.

    Raises:
        UserError: if no letter is left, or a character is not printable.
    """
    letters = {letter for id in ids for letter in set(of_id[id].name)} - {*mask}
    if not letters:
        raise UserError(f"{file}: all labels of records with vectors are masked; label some.")
    strange = next((x for x in sorted(letters) if not x.isprintable() or x.isspace()), None)
    if strange is not None:
        id = next(id for id in ids if strange in of_id[id].name)
        raise UserError(
            f"{file}:{of_id[id].line}: the labels of {clipped(id)!r} have {strange!r}; write a "
            "printable letter for each residue (such as C for what DSSP leaves blank)."
        )
    return sorted(letters)


def numbers_of(label: str, classes: Sequence[str]) -> Numbers:
    """Return the class number of each residue; UNLABELLED for letters that are not classes."""
    codes = np.frombuffer(label.encode("utf-32-le"), np.uint32)
    known = np.array([ord(letter) for letter in classes], np.uint32)  # ascending
    numbers = np.minimum(np.searchsorted(known, codes), len(known) - 1)
    return np.where(known[numbers] == codes, numbers, UNLABELLED).astype(np.int8)


def refuse_length(id: str, label: Label, num_residues: int, run: str, file: str) -> None:
    """Raise UserError if a record has a label of another length than its vectors."""
    if len(label.name) != num_residues:
        raise UserError(
            f"{file}:{label.line}: {clipped(id)!r} has {len(label.name):,} labels, and "
            f"{num_residues:,} residues with vectors in {run}; write a letter for each residue, or "
            "let the run compute all of a protein that it cut."
        )
