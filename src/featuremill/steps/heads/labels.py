"""The labels of what has features: of records, of contigs and so of their fragments, of samples."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from featuremill.features import Listed
from featuremill.inputs import labels
from featuremill.inputs.labels import Label
from featuremill.inputs.samples import SAMPLE
from featuremill.kit.errors import UserError
from featuremill.kit.files import sha256_of
from featuremill.kit.ids import IdColumns
from featuremill.kit.processes import command_again
from featuremill.kit.text import listed
from featuremill.steps.heads import card

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
