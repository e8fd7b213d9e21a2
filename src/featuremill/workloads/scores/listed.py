"""Read proteins with variants as records, with structures for networks that read them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from itertools import tee
from pathlib import Path

from featuremill import inputs as readers
from featuremill.inputs import (
    NamedColumns,
    columns,
    format_of,
    letters,
    names_in_table,
    residues,
    rows,
)
from featuremill.kit.errors import UserError
from featuremill.kit.ids import Matcher
from featuremill.kit.text import clipped
from featuremill.workload import Record
from featuremill.workloads.encoder import structures
from featuremill.workloads.encoder.structures import NOT_KNOWN
from featuremill.workloads.esm2.tokens import NUM_SPECIAL
from featuremill.workloads.scores import edits, tables, variants
from featuremill.workloads.scores.edits import Change
from featuremill.workloads.scores.options import Options
from featuremill.workloads.scores.tables import Cell
from featuremill.workloads.scores.variants import Row, WrongError, letters_of

log = logging.getLogger("featuremill.scores")
ProteinCells = tuple[Record, list[Cell], bool]
"""A protein, its cells of variants, and whether the cells are whole sequences."""


class _Listed:
    """The variants in `options.variants_file`, by the id or accession of their protein."""

    def __init__(self, path: Path, options: Options, has_tables: bool) -> None:
        """With `has_tables`, `options.id_column` may be a column of the inputs only."""
        self._path, self._names = path, names_in_table(path, "variants")
        self.columns = tables.find(path, self._names, options)
        column, self._id_column = self.columns.variant, self.columns.id
        if not has_tables and options.id_column:
            columns.find_column(path, self._names, options.id_column, columns.IDS, "id")
        if self._id_column:
            shown = (path, column, self._id_column)
            log.info("%s: variants from column %r, their proteins from %r", *shown)
        self._cells: dict[str, list[Cell]] = {}
        wanted = NamedColumns(
            id_column=self._id_column or column, names=self.columns.wanted(*options.carried)
        )
        for record in rows([path], wanted):
            if record.reason and not self._id_column and not record.id:  # empty cell
                continue
            if record.reason:
                what = "id of a protein" if self._id_column else "variant"
                raise UserError(
                    f"{path}:{record.line}: this row has no {what} ({record.reason}); fix it."
                )
            values = json.loads(record.payload)
            if cell := tables.cell(values, self.columns, options, path, record.line):
                id = record.id if self._id_column else ""
                self._cells.setdefault(id, []).append(cell)
        if not self._cells:
            raise UserError(f"{path}: there is no variant in the column {column!r}; fill it in.")
        line_of = {id: cells[0].line for id, cells in self._cells.items()}
        self._matcher = Matcher(path, line_of, "protein of the inputs")
        self._protein: str | None = None

    def cells_of(self, id: str) -> list[Cell]:
        """Return the cells of a protein.

        Raises:
            UserError: the table has no ids and there are several proteins, or another protein has
                the same accession.
        """
        if not self._id_column:
            if self._protein not in (None, id):
                raise UserError(
                    f"{self._path}: the inputs have more than one protein, and no column is known "
                    f"as that of their ids among {columns.listed(self._names)}; set id_column "
                    "under options to the one that has the ids."
                )
            self._protein = id
            return self._cells[""]
        name = self._matcher.name_of(id)
        return [] if name is None else self._cells[name]

    def refuse_unmatched(self) -> None:
        """Raise UserError if variants belong to no protein of the inputs."""
        if not self._id_column:
            return
        self._matcher.check()
        if unmatched := self._matcher.unmatched:
            first, *others = unmatched
            more = f" (and {len(others)} more ids)" if others else ""
            raise UserError(
                f"{self._path}:{self._cells[first][0].line}: no protein of the inputs is called "
                f"{clipped(first)!r}"
                f"{more}; take its variants out, add the protein, or set id_column under options "
                f"where {self._id_column!r} is not the column of ids."
            )


def records(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Yield the proteins of `inputs` with their variants; truncated proteins have a note.

    Raises:
        UserError: the options have structures, and the network reads none.
    """
    options = tables.with_columns(options)
    if options.structures and not options.reads_structure:
        raise UserError(
            "options.structures: this network reads no letters of structure; leave structures out, "
            "or give a SaProt."
        )
    proteins: Iterator[ProteinCells]
    if options.variants != "listed":
        proteins = ((record, [], False) for record in _read(inputs, options))
    elif options.variants_file:
        proteins = _from_file(inputs, options)
    else:
        proteins = _from_tables(inputs, options)
    if options.reads_structure:
        proteins = _with_structures(proteins, options)
    is_logged = False
    for record, cells, of_sequences in proteins:
        if options.variants != "listed":
            yield _sized(record, options)
            continue
        with_variants, problem = _with_variants(record, cells, of_sequences, options)
        if problem and not is_logged:
            log.warning("%r: %s", clipped(record.id), problem)
            is_logged = True
        yield with_variants


def _read(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Yield the proteins of `inputs`; for SaProt, residues and 3Di letters may alternate."""
    read = structures.pairs if options.reads_structure else readers.proteins
    return read(inputs, options)


def _with_structures(proteins: Iterator[ProteinCells], options: Options) -> Iterator[ProteinCells]:
    """Yield `proteins` with a tab and their structures, of the inputs or the option `structures`,
    in the payloads."""
    proteins, others = tee(proteins)
    stream: Iterator[Record] = (record for record, *_ in proteins)
    if options.structures:
        stream = structures.added(stream, structures.read(options, options.id_column))
    for record, (_, cells, of_sequences) in zip(stream, others, strict=True):
        if not record.reason and b"\n" not in record.payload and NOT_KNOWN not in record.note:
            record = record._replace(note="; ".join(filter(None, (record.note, NOT_KNOWN))))
        payload = record.payload.replace(b"\n", b"\t")
        yield record._replace(payload=payload), cells, of_sequences


def _from_file(inputs: Sequence[Path], options: Options) -> Iterator[ProteinCells]:
    """Yield the proteins of `inputs` with their cells from `options.variants_file`."""
    assert options.variants_file
    listed = _Listed(Path(options.variants_file), options, any(map(_is_table, inputs)))
    for record in _read(inputs, options):
        yield record, listed.cells_of(record.id), listed.columns.is_of_sequences
    listed.refuse_unmatched()


def _is_table(path: Path) -> bool:
    return format_of(path).module in ("table", "parquet")


def _from_tables(inputs: Sequence[Path], options: Options) -> Iterator[ProteinCells]:
    """Yield the proteins of tables with their cells; equal id and sequence are a protein."""
    for path in inputs:
        if not _is_table(path):
            raise UserError(
                f"{path}: variants: listed needs a table of variants; set variants_file under "
                "options, or give a table with a column of variants."
            )
    make = letters.maker(structures.clean_pairs) if options.reads_structure else residues.protein
    for path in inputs:
        names = names_in_table(path, "variants")
        named_columns = columns.Named(options.id_column, options.sequence_column)
        sequence_columns = columns.find(path, names, named_columns)
        id, sequence = names[sequence_columns.id], names[sequence_columns.sequence]
        variant_columns = tables.of_variants(path, names, options)
        wanted = NamedColumns(
            id_column=id, names=variant_columns.wanted(sequence, *options.carried)
        )
        by_protein: dict[tuple[object, ...], tuple[Record, list[Cell]]] = {}
        for row in rows([path], wanted):
            values = {} if row.reason else json.loads(row.payload)
            text = str(values.get(sequence) or "")
            key = (row.line,) if row.reason else (row.id, text)
            if key not in by_protein:
                by_protein[key] = (make(row.id, "", text, row.source, row.line), [])
            if cell := tables.cell(values, variant_columns, options, path, row.line):
                by_protein[key][1].append(cell)
        for record, cells in by_protein.values():
            yield record, cells, variant_columns.is_of_sequences


def _with_variants(
    record: Record, cells: Sequence[Cell], of_sequences: bool, options: Options
) -> tuple[Record, str]:
    """Return the protein's record with its variants, and why some variants have no score, or "".
    The record has a reason if no variant can be scored."""
    sized = _sized(record, options)
    if record.reason:
        return sized, ""
    letters, rows, all_changes, first = letters_of(record.payload), list[Row](), list[Change](), ""
    notes, mismatches = [sized.note], list[Cell]()
    multiple = [cell for cell in cells if variants.BETWEEN.search(cell.text.strip(",; "))]
    if multiple:
        shown = clipped(" ".join(multiple[0].text.split())).replace("; ", ";")
        notes.append(
            "cells of several variants, each scored by itself (a colon makes one variant of "
            f"substitutions): {len(multiple):,}, the first is {shown!r} at line {multiple[0].line}"
        )
    for cell in cells:
        texts = list(filter(None, variants.BETWEEN.split(cell.text)))
        for text in texts:
            try:
                if of_sequences:
                    variant = variants.of_sequence(text, letters, options)
                else:
                    changes = variants.read(text)
                    all_changes += changes
                    variant = variants.checked(changes, text, letters, options, cell.first)
                row = Row(text, variant, "", cell.others)
                has_sequence = len(texts) == 1 and cell.mutated and not of_sequences
                if has_sequence and edits.mutated(variant, letters) != cell.mutated.encode():
                    mismatches.append(cell)
            except WrongError as wrong:
                row = Row(text, "", str(wrong), cell.others)
                first = first or f"{row.reason} (line {cell.line})"
            rows.append(row)
    if mismatches:
        notes.append(
            "mutated sequences that the variant does not make of the protein, and the variant "
            f"counts: {len(mismatches):,}, the first is of {clipped(mismatches[0].text)!r} at line "
            f"{mismatches[0].line}"
        )
    num_refused = sum(bool(row.reason) for row in rows)
    hint = _hint(rows, all_changes, letters)
    if num_refused and num_refused == len(rows):
        reason = next(row.reason for row in rows)
        if num_refused > 1:
            reason += f" (the first of {num_refused:,} variants, and none has a score{hint})"
        return sized._replace(payload=b"", reason=reason), reason
    problem = ""
    if num_refused:
        detail = f"{num_refused:,} of {len(rows):,}, the first is {first}{hint}"
        problem = f"variants without a score: {detail}"
    note = "; ".join(filter(None, (*notes, problem)))
    return sized._replace(payload=variants.payload_of(record.payload, rows), note=note), problem


def _hint(rows: Sequence[Row], all_changes: Sequence[Change], letters: bytes) -> str:
    """Return a hint on the numbering if most `rows` do not match the residues, else ""."""
    heads = (*variants.WILD_TYPE.heads, variants.BEYOND.heads[0], variants.BEFORE)
    if 2 * sum(row.reason.startswith(heads) for row in rows) <= len(rows):
        return ""
    number = variants.first_residue(all_changes, letters)
    if number is None:
        return ", so positions may be counted from elsewhere"
    return f", and all positions fit with first_residue {number} under options"


def _sized(record: Record, options: Options) -> Record:
    length = len(letters_of(record.payload))
    note = record.note
    if min(options.width(length), options.masked_tokens(length) - NUM_SPECIAL) < length:
        is_cut = options.long == "truncate"
        how = "truncated (set long to full to compute all)" if is_cut else "in windows"
        cut = f"longer than {options.limit} residues, {how}"
        note = "; ".join(filter(None, [note, cut]))
    return record._replace(note=note, length=length)
