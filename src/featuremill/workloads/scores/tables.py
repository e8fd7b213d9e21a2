"""Which columns of a table of variants hold what, and what a row of them says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.inputs import NamedColumns, columns, names_in_table, rows
from featuremill.kit.errors import UserError
from featuremill.kit.reasons import is_missing, is_missing_sequence
from featuremill.kit.text import clipped
from featuremill.workloads.scores.options import MEASURED, MEASURED_CLASS, Options

NAMES = (
    (
        "variant",
        "variants",
        "mutant",
        "mutants",
        "mutation",
        "mutations",
        "substitution",
        "substitutions",
    ),
)
"""Names of a column of variants."""
MUTATED = (("mutated_sequence",),)
"""The name of a column of their sequences."""
MOST_SEEN = 1_000
"""Rows that tell whether a column of variants has whole sequences."""
NO_IDS = ("label",)
"""Names of an id column elsewhere; beside variants it says what they do."""
SEQUENCE = "seq"
"""In the names of columns of sequences, which would come along with each variant."""
SETTLED = {"columns", "measured_column", "measured_class_column"}
"""The options that `with_columns` settles."""
CLASSES: Mapping[str, str] = {"0": "0", "1": "1", "0.0": "0", "1.0": "1", "false": "0", "true": "1"}
"""How a table says by a class whether a variant is fit."""


class Columns(NamedTuple):
    """The names of the columns of a table; "" where there is none."""

    variant: str
    id: str
    mutated: str
    first: str

    @property
    def is_of_sequences(self) -> bool:
        """Whether the variants are whole sequences."""
        return self.variant == self.mutated

    def wanted(self, *more: str) -> tuple[str, ...]:
        """Return what is read of a row besides its id."""
        return tuple(dict.fromkeys(filter(None, (self.variant, self.mutated, self.first, *more))))


class Cell(NamedTuple):
    """What a row of a table has of variants."""

    text: str
    line: int
    first: int
    """The number of the protein's first residue."""
    mutated: str
    """The sequence of the variant; "" where the row has none."""
    others: tuple[str | None, ...]


def find(path: Path, names: Sequence[str], options: Options) -> Columns:
    """Return the columns of a table of variants that may have no ids."""
    chosen = of_variants(path, names, options)
    possible = [name for name in names if name.strip().lower() not in NO_IDS]
    possible = [name for name in possible if name not in (chosen.variant, chosen.mutated)]
    if options.id_column in names:
        return chosen._replace(id=options.id_column)
    if not columns.has_id(possible):
        return chosen
    return chosen._replace(id=possible[columns.find_column(path, possible, "", columns.IDS, "id")])


def of_variants(path: Path, names: Sequence[str], options: Options) -> Columns:
    """Return the columns of variants, without that of ids."""
    mutated = columns.first_of(names, MUTATED)
    if chosen := options.mutated_sequence_column:
        mutated = names[columns.find_column(path, names, chosen, MUTATED, "mutated_sequence")]
    variant = options.variant_column or columns.first_of(names, NAMES) or mutated
    variant = names[columns.find_column(path, names, variant, NAMES, "variant")]
    if variant != mutated and _has_sequences(path, variant):
        variant = mutated = options.mutated_sequence_column or variant
    first = options.first_residue_column
    if first:
        columns.find_column(path, names, first, (), "first_residue")
    return Columns(variant, "", mutated, first)


def _has_sequences(path: Path, column: str) -> bool:
    """Return whether a column of variants has whole sequences, as ProteinGym's tables of insertions
    and deletions do: each of the first cells but wild types."""
    from featuremill.workloads.scores.variants import WILD_TYPES

    options = NamedColumns(id_column=column, names=(column,))
    cells = (record.id.upper() for record in islice(rows([path], options), MOST_SEEN))
    changed = [cell for cell in cells if cell not in WILD_TYPES and not is_missing(cell)]
    return any(changed) and all(cell.removesuffix("*").isalpha() for cell in filter(None, changed))


def with_columns(options: Options) -> Options:
    """Return `options` with the carried columns, those of measured scores among them.

    Raises:
        UserError: there is no such column, or two would have one name.
    """
    settled: dict[str, Any] = {}
    if options.variants_file:
        path = Path(options.variants_file)
        names = names_in_table(path, "variants")
        if options.columns is None:
            known = find(path, names, options)
            others = [name for name in names if SEQUENCE not in name.lower()]
            settled["columns"] = tuple(name for name in others if name not in known[:3])
        for key, usual in (("measured", MEASURED), ("measured_class", MEASURED_CLASS)):
            if name := getattr(options, f"{key}_column"):
                columns.find_column(path, names, name, (), key)
            elif usual in settled.get("columns", options.carried):
                settled[f"{key}_column"] = usual
    complete = options.model_copy(update=settled)
    if complete.measured_class_column and not complete.measured_column:
        if options.measured_class_column:
            raise UserError(
                "options.measured_class_column: there is no column of measured scores beside it; "
                "set measured_column as well."
            )
        complete = complete.model_copy(update={"measured_class_column": ""})
    more = [name for name in complete.measured if name not in complete.carried]
    if more:
        complete = complete.model_copy(update={"columns": (*complete.carried, *more)})
    names = complete.carried_as
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(
            f"{options.variants_file or 'options.columns'}: two columns would be called {twice!r} "
            "beside the scores; rename one, or name others in options.columns."
        )
    return complete


def cell(
    values: Mapping[str, Any], chosen: Columns, options: Options, path: Path, line: int
) -> Cell | None:
    """Return the variant of a row; None if its cell is empty or says so.

    Raises:
        UserError: a number in it is none.
    """
    from featuremill.inputs.labels import text  # has pyarrow, which no check of a config needs

    variant = text(values.get(chosen.variant))
    if not variant or (is_missing_sequence if chosen.is_of_sequences else is_missing)(variant):
        return None
    where = f"{path}:{line}"
    first = options.first_residue
    number = text(values[chosen.first]) if chosen.first else ""
    if number and not is_missing(number):
        if not number.removeprefix("-").removesuffix(".0").isdecimal():
            raise UserError(
                f"{where}: {clipped(number)!r} in column {chosen.first!r} is no whole number; "
                "write the number of the protein's first residue."
            )
        first = int(number.removesuffix(".0"))
    mutated = text(values[chosen.mutated]) if chosen.mutated else ""
    mutated = "" if is_missing_sequence(mutated) else mutated
    others = [
        _measured(text(values[name]), name, options, where) or None for name in options.carried
    ]
    return Cell(variant, line, first, mutated.upper().removesuffix("*"), tuple(others))


def _measured(cell: str, name: str, options: Options, where: str) -> str:
    """Return the text of a carried cell; "" for a measured score that is missing."""
    if name not in options.measured or not cell or is_missing(cell):
        return "" if name in options.measured else cell
    if name == options.measured_class_column:
        if cell.lower() not in CLASSES:
            raise UserError(
                f"{where}: {clipped(cell)!r} in column {name!r} is neither 0 nor 1; write 1 for a "
                "variant that is fit, or leave the cell empty."
            )
        return CLASSES[cell.lower()]
    try:
        is_number = "_" not in cell and math.isfinite(float(cell))
    except ValueError:
        is_number = False
    if not is_number:
        raise UserError(
            f"{where}: {clipped(cell)!r} in column {name!r} is no number; write a measured score, "
            "or leave the cell empty."
        )
    return cell
