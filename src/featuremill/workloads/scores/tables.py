"""Find the columns of a table of variants, and parse its rows."""

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
MUTATED = (("mutated_sequence",),)
"""The usual name of a column of whole sequences of variants."""
MOST_ROWS = 1_000
"""Rows that are read to find out whether a column of variants has whole sequences."""
NO_IDS = ("label",)
"""Usual names of id columns that, in a table of variants, have the effect of the variant."""
SEQUENCE = "seq"
"""Columns with this in their names are not copied to the variants by default."""
SETTLED = {"columns", "measured_column", "measured_class_column"}
"""The options that `with_columns` sets."""
CLASSES: Mapping[str, str] = {"0": "0", "1": "1", "0.0": "0", "1.0": "1", "false": "0", "true": "1"}
"""Values of a class column in tables, with the class: "1" is fit."""


class Columns(NamedTuple):
    """The names of a table's columns, or ""."""

    variant: str
    id: str
    mutated: str
    first: str

    @property
    def is_of_sequences(self) -> bool:
        """Whether the column of variants has whole sequences."""
        return self.variant == self.mutated

    def wanted(self, *more: str) -> tuple[str, ...]:
        """Return the names of the columns to read besides the id, with `more`."""
        return tuple(dict.fromkeys(filter(None, (self.variant, self.mutated, self.first, *more))))


class Cell(NamedTuple):
    """The values of a row of a table of variants."""

    text: str
    line: int
    first: int
    """The number of the protein's first residue."""
    mutated: str
    """The sequence of the variant, or ""."""
    others: tuple[str | None, ...]


def find(path: Path, names: Sequence[str], options: Options) -> Columns:
    """Return the columns of a table of variants, which may lack ids."""
    table = of_variants(path, names, options)
    possible = [name for name in names if name.strip().lower() not in NO_IDS]
    possible = [name for name in possible if name not in (table.variant, table.mutated)]
    if options.id_column in names:
        return table._replace(id=options.id_column)
    if not columns.has_id(possible):
        return table
    return table._replace(id=possible[columns.find_column(path, possible, "", columns.IDS, "id")])


def of_variants(path: Path, names: Sequence[str], options: Options) -> Columns:
    """Return the columns of a table of variants, without the id column."""
    mutated = columns.first_of(names, MUTATED)
    if column := options.mutated_sequence_column:
        mutated = names[columns.find_column(path, names, column, MUTATED, "mutated_sequence")]
    variant = options.variant_column or columns.first_of(names, NAMES) or mutated
    variant = names[columns.find_column(path, names, variant, NAMES, "variant")]
    if variant != mutated and _has_sequences(path, variant):
        variant = mutated = options.mutated_sequence_column or variant
    first = options.first_residue_column
    if first:
        columns.find_column(path, names, first, (), "first_residue")
    return Columns(variant, "", mutated, first)


def _has_sequences(path: Path, column: str) -> bool:
    """Return whether the first cells of a column, other than wild types, are whole sequences, as in
    ProteinGym's tables of insertions and deletions."""
    from featuremill.workloads.scores.variants import WILD_TYPES

    options = NamedColumns(id_column=column, names=(column,))
    cells = (record.id.upper() for record in islice(rows([path], options), MOST_ROWS))
    changed = [cell for cell in cells if cell not in WILD_TYPES and not is_missing(cell)]
    return any(changed) and all(cell.removesuffix("*").isalpha() for cell in filter(None, changed))


def with_columns(options: Options) -> Options:
    """Return `options` with all columns that are copied, including those of measured scores.

    Raises:
        UserError: a column is missing, or two columns would have the same name.
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
    values: Mapping[str, Any], table: Columns, options: Options, path: Path, line: int
) -> Cell | None:
    """Return the variant of a row; None if its cell is empty or a mark for missing values.

    Raises:
        UserError: a cell that must be a number is not a number.
    """
    from featuremill.inputs.labels import text  # imports pyarrow; checks of a config do not need it

    variant = text(values.get(table.variant))
    if not variant or (is_missing_sequence if table.is_of_sequences else is_missing)(variant):
        return None
    where = f"{path}:{line}"
    first = options.first_residue
    number = text(values[table.first]) if table.first else ""
    if number and not is_missing(number):
        if not number.removeprefix("-").removesuffix(".0").isdecimal():
            raise UserError(
                f"{where}: {clipped(number)!r} in column {table.first!r} is no whole number; "
                "write the number of the protein's first residue."
            )
        first = int(number.removesuffix(".0"))
    mutated = text(values[table.mutated]) if table.mutated else ""
    mutated = "" if is_missing_sequence(mutated) else mutated
    others = [
        _measured(text(values[name]), name, options, where) or None for name in options.carried
    ]
    return Cell(variant, line, first, mutated.upper().removesuffix("*"), tuple(others))


def _measured(cell: str, name: str, options: Options, where: str) -> str:
    """Return the text of a copied cell; "" for a missing measured score."""
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
