"""Tables as others write them come back row by row, or are refused: no id has another's values."""

import csv
import io
import json

import pandas as pd
import pytest
from hypothesis import strategies as st
from test_properties import holds

from featuremill.base.errors import UserError
from featuremill.inputs import NamedColumns, labels, proteins, regions, rows, samples, table

WORDS = st.text(st.sampled_from("ab,;\t\"'\\ \n=5"), max_size=9)
"""What cells of free text hold, and what tells cells and rows apart."""
NAMES = ("id", "note", "sequence", "more")
TEXTS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6)


def sequence_of(number):
    return "MK" + "ACDEFGHIKL"[number] * 9


def by_csv(quoting, separator):
    def write(path, lines):
        with path.open("w", newline="") as file:
            csv.writer(file, delimiter=separator, quoting=quoting).writerows(lines)

    return write


def by_pandas(separator):
    def write(path, lines):
        pd.DataFrame(lines[1:], columns=lines[0]).to_csv(path, sep=separator, index=False)

    return write


def by_r(separator, is_doubled):
    """Write what R's write.csv and write.table do: marks around each text and each name."""

    def write(path, lines):
        mark = '""' if is_doubled else '\\"'
        cells = ([f'"{cell.replace(chr(34), mark)}"' for cell in line] for line in lines)
        path.write_text("".join(separator.join(line) + "\n" for line in cells))

    return write


WRITERS = {
    "csv, few marks": (by_csv(csv.QUOTE_MINIMAL, ","), "csv"),
    "csv, all marks": (by_csv(csv.QUOTE_ALL, ","), "csv"),
    "csv, semicolons": (by_csv(csv.QUOTE_MINIMAL, ";"), "csv"),
    "csv, tabs": (by_csv(csv.QUOTE_MINIMAL, "\t"), "tsv"),
    "pandas": (by_pandas(","), "csv"),
    "pandas, tabs": (by_pandas("\t"), "tsv"),
    "R's write.csv": (by_r(",", True), "csv"),
    "R's write.table": (by_r("\t", True), "tsv"),
    "R's write.table, marks escaped": (by_r("\t", False), "tsv"),
}


def read(path):
    """Return the cells of each row, or None where the table is refused."""
    try:
        return [tuple(cells) for _, cells in table.rows(path)]
    except UserError as error:
        assert str(error).startswith(f"{path}:") and "\n" not in str(error)
        return None


@holds(200, texts=TEXTS, writer=st.sampled_from(list(WRITERS)))
def test_what_a_writer_of_tables_wrote_comes_back_or_is_refused(folder, texts, writer):
    write, suffix = WRITERS[writer]
    path = folder / f"t.{suffix}"
    lines = [(f"P{n}", note, sequence_of(n), more) for n, (note, more) in enumerate(texts)]
    write(path, [NAMES, *lines])
    found = read(path)
    if "escaped" in writer:  # what is escaped stays so
        found = found and [cells[::2] for cells in found]
        lines = [cells[::2] for cells in lines]
    assert found in (None, lines)
    if "escaped" not in writer:
        written = {*"".join(text for pair in texts for text in pair)}
        is_odd = "\n" in written and written & {*"\t,;"}
        assert found == lines or is_odd, "one line a row, or free text without separators"


PLAIN = st.text(st.sampled_from("ab\"' 5,"), max_size=8)


@holds(150, texts=st.lists(st.tuples(PLAIN, PLAIN), min_size=1, max_size=7))
def test_in_a_table_without_quoting_each_line_is_a_row(folder, texts):
    """As UniProt, AIRR and many programs write it: marks are characters."""
    path = folder / "t.tsv"
    lines = [(f"P{n}", note, sequence_of(n), more) for n, (note, more) in enumerate(texts)]
    path.write_text("".join("\t".join(line) + "\n" for line in [NAMES, *lines]))
    found = read(path)
    assert found is None or [cells[::2] for cells in found] == [cells[::2] for cells in lines]
    if found is None:  # what may be one cell: it is open in one line, and closed in another one
        notes = [text for pair in texts for text in pair]
        assert any(text.startswith('"') for text in notes)
        assert any(text.endswith('"') for text in notes)


def test_rows_between_two_marks_are_not_a_cell(tmp_path):
    """CSV readers take P0, a text of three lines, and the sequence of P2."""
    path = tmp_path / "t.csv"
    path.write_text('id,note,sequence\nP0,",MKA\nP1,,MKC\nP2,",MKD\n')
    assert read(path) is None


@holds(
    150,
    texts=st.lists(st.tuples(PLAIN, PLAIN), min_size=3, max_size=7),
    places=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    is_first=st.booleans(),
)
def test_a_mark_that_nothing_closes_hides_no_row(folder, texts, places, is_first):
    """By a program that joins cells with commas, and by pandas with a mark added by hand."""
    for place in places:
        note, more = texts[place % len(texts)]
        texts[place % len(texts)] = (f'"{note}', more) if is_first else (note, f'{more}"')
    lines = [(f"P{n}", note, sequence_of(n), more) for n, (note, more) in enumerate(texts)]
    path = folder / "t.csv"
    path.write_text("".join(",".join(line) + "\n" for line in [NAMES, *lines]))
    found = read(path)
    known = {(id, sequence) for id, _, sequence, _ in lines}
    for cells in found or ():  # a comma in a text moves the cells behind it, in any reader
        first, num_hidden = int(cells[0][1:]), "".join(cells).count("\n")
        is_moved, *are_hidden_moved = (
            "," in "".join(each) for each in texts[first : first + num_hidden + 1]
        )
        is_moved |= num_hidden > 0 and all(are_hidden_moved)  # no hidden line is a row
        assert is_moved or (cells[0], cells[2]) in known
    if not any("," in text for pair in texts for text in pair):
        assert found is None or len(found) == len(lines)


CLOSED_LATER = """id\tsample\tfile\tkind\tstart\tend\tname\tsequence
P1\ts1\ta.fa\t{0}\t1\t3\t{0}\tMKV
P2\ts2\tb.fa\tx\t2\t4\tx\tMKL
P3\ts3\tc.fa\t{1}\t3\t5\t{1}\tMKM
"""


def ids_of_regions(path):
    found = regions.Regions(path)
    return {id: [one[:2] for one in of_id] for id, of_id in found._of.items()}


READERS = {
    "proteins": lambda path: [(r.id, r.payload) for r in proteins([path])],
    "rows": lambda path: [
        (r.id, json.loads(r.payload)["sequence"])
        for r in rows([path], NamedColumns(names=("sequence",)))
    ],
    "labels": lambda path: {id: one.line for id, one in labels.read(path, "kind", None)[0].items()},
    "regions": ids_of_regions,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("separator", [",", "\t"])
@pytest.mark.parametrize("marks", [('"a', '"b'), ('"a', 'b"'), ('a"', '"b'), ('"a"', "b")])
def test_all_readers_of_tables_have_every_row(tmp_path, reader, separator, marks):
    path = tmp_path / "t.txt.csv"
    plain = CLOSED_LATER.replace("\t", separator)
    path.write_text(plain.format("a", "b"))
    right = READERS[reader](path)
    path.write_text(plain.format(*marks))
    try:
        assert READERS[reader](path) == right
    except UserError as error:
        assert f"{path}:2: a quotation mark stands here" in str(error)


def test_a_sheet_with_a_mark_that_nothing_closes_has_all_samples(tmp_path):
    path = tmp_path / "sheet.tsv"
    path.write_text('sample\tsite\tfile\na\t"forest\ta.fa\nb\tlake\tb.fa\nc\t"sea\tc.fa\n')
    sheet = samples.read(path)
    assert sheet.about == {"sample": ["a", "b", "c"], "site": ['"forest', "lake", '"sea']}


FREE_TEXT = 'id,text\nP1,{}\nP2,"short, and plain"\n'


def test_free_text_over_several_lines_is_one_cell(tmp_path):
    """Lines with as many commas as a row has, which is one here: a cell with a comma in its first
    line shows that the writer quotes."""
    path, text = tmp_path / "notes.csv", 'Dear "A", hello\nfirst, second\n\nand, so on'
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow([text])
    path.write_text(FREE_TEXT.format(buffer.getvalue().strip()))
    found = list(table.rows(path))
    assert found == [(2, ["P1", text]), (6, ["P2", "short, and plain"])]
    path.write_text('id,text\nP1,"hello\nfirst, second"\nP2,plain\n')
    with pytest.raises(
        UserError, match=r"notes\.csv:2: .* whole rows stand before its cell ends, in li"
    ):
        list(table.rows(path))
    path.write_text('"id","text"\n"P1","hello\nfirst, second"\n"P2","plain"\n')
    assert next(iter(table.rows(path))) == (2, ["P1", "hello\nfirst, second"])


def test_a_quoted_cell_is_no_two_cells_where_the_last_ones_are_missing(tmp_path):
    """As spreadsheets leave empty cells at the end out."""
    path, short = tmp_path / "t.csv", 'id,name,label\nP1,"Smith, John"\n'
    path.write_text(f'{short}P2,"Doe, Jane",x\n')
    assert next(iter(table.rows(path))) == (2, ["P1", "Smith, John", ""])
    path.write_text(f"{short}P2,Doe,x\n")  # may be a plain row of three cells
    with pytest.raises(UserError, match=r"t\.csv:2: this row has 2 cells if its .* and 3 if they"):
        list(table.rows(path))


@pytest.mark.parametrize(
    "text", ['P1\t"a\nb\tc"\n', 'P1\t"a\nP2\tb\nP3\tc"\n', 'P1\t"a\nP2\tb\nc"\n']
)
def test_a_cell_that_may_be_rows_is_refused_in_a_table_with_tabs(tmp_path, text):
    path = tmp_path / "t.tsv"
    path.write_text(f"id\ttext\n{text}")
    with pytest.raises(UserError, match=r"t\.tsv:2: a quotation mark stands here, and "):
        list(table.rows(path))
