"""The labels of what has features: of records, of their residues, of contigs and so of their
fragments, of samples."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill import inputs
from featuremill.features import Listed, Planned
from featuremill.inputs import labels, source
from featuremill.inputs.labels import Label
from featuremill.inputs.samples import SAMPLE
from featuremill.kit.errors import UserError
from featuremill.kit.files import sha256_of
from featuremill.kit.ids import IdColumns
from featuremill.kit.processes import command_again
from featuremill.kit.text import clipped, listed
from featuremill.steps.heads import card

UNLABELLED = -1
"""The number of a residue without a label."""
Numbers = npt.NDArray[np.int8]
MOST_CLASSES = 20
"""Different numbers that may be names of classes without a word about it."""
log = logging.getLogger("featuremill.head")


class Labels(NamedTuple):
    """Labels by whole ids."""

    of_id: dict[str, Label]
    num_empty: int
    """Rows of the table, or samples, that have none."""
    used: card.TableUsed
    """Where they are from."""


def read(
    of: Listed,
    table: Path | None,
    column: str,
    group: str | None,
    id_column: str = "",
    log: logging.Logger | None = log,
) -> Labels:
    """Return the labels in `table` or, without one, those of the samples of these features, which
    their sheet has in `column`. The table has ids in `id_column`, or in a column of such a name;
    they are not yet matched. Of samples, `group` may be a column of the sheet, too, and is the
    sample if there is none. `log` warns of doubtful labels.

    Raises:
        UserError: when there is no such table or column, or a row is wrong.
    """
    if table is None:
        return _of_sheet(of, _sheet_of(of), column, group)
    group_of: dict[str, str] = {}
    if of.id_columns.keys and group not in (None, labels.ID, *labels.names_of(table)):
        about = _sheet_of(of)
        if group in about:
            group_of = dict(zip(about[SAMPLE], about[group], strict=True))
    by = None if group_of else group
    found, num_empty = labels.read(table, column, by, of.id_columns, id_column, log=log)
    if group_of:
        for id, label in found.items():
            sample = of.id_columns.owner(id)
            if not (name := group_of.get(sample, sample)):
                raise _without_group(sample, group)
            found[id] = label._replace(group=name)
    used = card.TableUsed(file=str(table), sha256=sha256_of(table), column=column)
    used = used.model_copy(update={"group": group or next(iter(of.id_columns.keys), None)})
    return Labels(found, num_empty, used)


def _sheet_of(of: Listed) -> dict[str, list[str]]:
    """Return the sheet of samples as the plan has it.

    Raises:
        UserError: it is not beside these results, or is of a later plan.
    """
    if of.id_columns.keys and not of.folder.records.exists():
        raise UserError(
            f"{of.folder.records}: there is no such file, which has the sheet of samples of these "
            "results; copy it with them, or name a table of labels that has the groups, too."
        )
    if not of.is_of_plan:
        again = command_again(of.folder.root)
        raise UserError(
            f"{of.name}: its sheet of samples was planned anew after these results, so they may "
            f"not be of the same samples; make the results anew: {again}"
        )
    return of.samples()


def _without_group(sample: str, group: str | None) -> UserError:
    return UserError(
        f"sample {sample!r} has no {group} in the sheet of samples; give it one (its own name, "
        "where it has no relatives)."
    )


def _of_sheet(of: Listed, about: dict[str, list[str]], column: str, group: str | None) -> Labels:
    if not about:
        raise UserError(
            f"{of.name}: it is a run without samples, whose sheet could have {column!r}; name a "
            "table with --labels."
        )
    group = group or SAMPLE
    by = SAMPLE if group == labels.ID else group
    for name in (column, by):
        if name not in about:
            raise UserError(
                f"{of.name}: its sheet of samples has no column {name!r}; it has {listed(about)}."
            )
    of_sample: dict[str, Label] = {}
    for sample, label, its_group in zip(about[SAMPLE], about[column], about[by], strict=True):
        if label and not its_group:
            raise _without_group(sample, group)
        if label:
            of_sample[sample] = Label(label, its_group, 0)
    if not of_sample:
        raise UserError(f"{of.name}: no sample has a label in {column!r}; fill it in.")
    ids = chain(of.ids_of(np.arange(of.num_rows)), (failure.id for failure in of.failures()))
    owner = of.id_columns.owner
    found = {id: of_sample[sample] for id in ids if (sample := owner(id)) in of_sample}
    if group == labels.ID:
        found = {id: label._replace(group=id) for id, label in found.items()}
    sheet = of.inputs[0]
    used = card.TableUsed(file=sheet.path, sha256=sheet.sha256, column=column, group=group)
    return Labels(found, len(about[SAMPLE]) - len(of_sample), used)


def of_fragments(
    found: dict[str, Label],
    table: Path,
    translated: Path,
    id_columns: IdColumns,
    log: logging.Logger | None = log,
) -> tuple[dict[str, Label], int]:
    """Return the label of each fragment in the folder `translated` whose contig has one in `found`,
    out of `table`, and how many of those contigs have no fragment. A contig's group is that of its
    fragments.

    Raises:
        UserError: when that is no finished translation, or the labels are not of its contigs.
    """
    from featuremill.steps.translate.folder import fragments, whole

    whole(translated)
    contigs = labels.NamedRecords(f"contig of {translated}", id_columns, log)
    found = labels.of_ids(found, table, _contigs(translated), contigs)
    labelled: dict[str, Label] = {}
    without = set(found)
    for some in fragments(translated, ["id", "contig"]):
        for id, contig in zip(*(column.to_pylist() for column in some.columns), strict=True):
            if contig in found:
                labelled[id] = found[contig]
                without.discard(contig)
    return labelled, len(without)


def _contigs(translated: Path) -> Iterator[str]:
    """Yield the contigs of a translation, each once."""
    from featuremill.steps.translate.folder import fragments, untranslated

    last = None
    for some in fragments(translated, ["contig"]):
        for contig in some.column(0).to_pylist():
            if contig != last:  # fragments of a contig are together
                yield contig
            last = contig
    for row in untranslated(translated):
        yield row["contig"]


def _value_of(text: str) -> float | None:
    """Return the finite number that `text` is; None if it is none."""
    with suppress(ValueError):
        if math.isfinite(value := float(text)):
            return value
    return None


def refuse_no_numbers(found: Mapping[str, Label], file: str, column: str) -> None:
    """Raise UserError where a label is no number."""
    for id, label in found.items():
        if _value_of(label.name) is None:
            where = f"{file}:{label.line}" if label.line else file
            raise UserError(
                f"{where}: {clipped(label.name)!r}, the label of {clipped(id)!r} in {column!r}, is "
                "no number; write one, or leave the cell empty where none is known."
            )


def refuse_many_numbers(names: Collection[str], file: str, column: str) -> None:
    """Raise UserError where labels are so many different numbers that they are hardly classes."""
    different = {*names}
    if len(different) > MOST_CLASSES and all(_value_of(name) is not None for name in different):
        raise UserError(
            f"{file}: {column!r} has {len(different):,} different numbers, and a classifier takes "
            "each for the name of a class; to predict the number, give task: regression (--task "
            "regression), and if they are names, task: classification."
        )


def read_letters(
    path: Path,
    column: str,
    group: str | None,
    id_column: str,
    planned: Planned,
    log: logging.Logger | None = log,
) -> Labels:
    """Return the labels in `path` by the ids of the records of `planned`; what is of none stays
    under its own name. `log` warns of those.

    Raises:
        UserError: the file has no such labels.
    """
    used = card.TableUsed(file=str(path), sha256=sha256_of(path), column=column, group=group)
    if not inputs.is_table(path):
        for option, name in (("--column", column), ("--group", group)):
            if name:
                raise UserError(
                    f"{path}: this is FASTA, which has no column {name!r} ({option}); give labels "
                    "in a table for that."
                )
        if planned.id_columns.keys:
            raise UserError(
                f"{path}: this is FASTA, which does not say whose a record is; give labels in a "
                "table with a column sample."
            )
        found, num_empty = dict(_letters_in(path)), 0
        if not found:
            raise UserError(f"{path}: there is no label in it; give a letter for each residue.")
    else:
        if not column:
            raise UserError(f"{path}: name the column of its labels with --column.")
        found, num_empty = labels.read(path, column, group, planned.id_columns, id_column)
    named = labels.NamedRecords(f"record of {planned.name}", planned.id_columns, log)
    return Labels(labels.by_record(found, path, [planned], named), num_empty, used)


def _letters_in(path: Path) -> Iterator[tuple[str, Label]]:
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


def letters_of(found: Mapping[str, Label], ids: Sequence[str], mask: str, file: str) -> list[str]:
    """Return the letters of the labels of `ids`, but for those of the mask.

    Raises:
        UserError: one of them is no letter.
    """
    letters = {letter for id in ids for letter in set(found[id].name)} - {*mask}
    strange = next((x for x in sorted(letters) if not x.isprintable() or x.isspace()), None)
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


def without_features(
    found: Mapping[str, Label], file: str, runs: str, first: Sequence[str]
) -> UserError:
    """Return the error for labels of which none is of a record with features; `first` has the first
    id of the run."""
    theirs = f", the run's first is {clipped(first[0])!r}" if first else ""
    return UserError(
        f"{file}: none of its {len(found):,} ids has features in {runs}: its first is "
        f"{clipped(next(iter(found)))!r}{theirs}; write the ids as the run has them."
    )
