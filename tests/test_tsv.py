"""TSV files as results have them: every reader sees the same cells."""

import ast
import csv
import io

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest
from house import PACKAGE
from hypothesis import given
from hypothesis import strategies as st

from featuremill.base.text import CONTROL
from featuremill.base.tsv import BLOCK_ROWS, TsvWriter, cell, read
from featuremill.inputs import table

TEXTS = st.text(st.sampled_from('ab"\\\t\n\r\0é\u2028 ,x22') | st.characters(codec="utf-8"))
ROWS = st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=20)


def written(rows, by_columns):
    file = io.StringIO(newline="")
    writer = TsvWriter(file, ("id", "text"))
    if by_columns:
        writer.columns([pa.chunked_array([list(column)]) for column in zip(*rows, strict=True)])
    else:
        for row in rows:
            writer.row(row)
    return file.getvalue()


@given(ROWS)
def test_every_reader_sees_the_same_cells(rows):
    text = written(rows, by_columns=False)
    assert text == written(rows, by_columns=True)
    wanted = [["id", "text"], *([cell(text) for text in row] for row in rows)]
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE):
        assert [*csv.reader(io.StringIO(text), delimiter="\t", quoting=quoting)] == wanted
    frame = pd.read_csv(io.StringIO(text), sep="\t", keep_default_na=False, dtype=str,
                        skip_blank_lines=False)  # fmt: skip
    assert frame.to_numpy().tolist() == wanted[1:]
    types = {"column_types": {"id": "string", "text": "string"}, "strings_can_be_null": False}
    by_arrow = pa.csv.read_csv(
        io.BytesIO(text.encode()),
        parse_options=pa.csv.ParseOptions(delimiter="\t"),
        convert_options=pa.csv.ConvertOptions(**types),
    )
    assert [list(row.values()) for row in by_arrow.to_pylist()] == wanted[1:]
    found = [[*row.values()] for row in read(io.StringIO(text, newline=""))]
    for row, texts in zip(rows, found, strict=True):
        for before, after in zip(row, texts, strict=True):
            assert CONTROL.search(before) or before.startswith(r"\x22") or after == before


def test_a_table_of_ours_is_an_input(tmp_path):
    path = tmp_path / "t.tsv"
    rows = [('"a', 'b "c"'), ('"q"', "d"), ("e\tf", 'say "')]
    path.write_text(written(rows, by_columns=False), "utf-8")
    assert [cells for _, cells in table.rows(path)] == [
        [r"\x22a", 'b "c"'], [r'\x22q"', "d"], [r"e\x09f", 'say "'],
    ]  # fmt: skip


def test_numbers_are_read_again_as_they_were():
    numbers = pa.chunked_array([pa.array([0.1, 1e-30, 3.0, None, float("nan")], pa.float32())])
    file = io.StringIO()
    writer = TsvWriter(file, ["number", "truth"])
    writer.columns([numbers, pa.chunked_array([[True, False, None, True, True]])])
    assert file.getvalue().splitlines()[1:] == [
        "0.1\ttrue",
        "1e-30\tfalse",
        "3\t",
        "\ttrue",
        "nan\ttrue",
    ]
    file = io.StringIO()
    many = pa.chunked_array([pa.array(range(2 * BLOCK_ROWS + 7))])
    TsvWriter(file, ["n"]).columns([many])
    assert file.getvalue().split("\n")[1:-1] == [str(n) for n in range(2 * BLOCK_ROWS + 7)]


def test_what_an_earlier_version_quoted_is_read():
    file = io.StringIO(newline="")
    csv.writer(file, delimiter="\t", lineterminator="\n").writerows([("id",), ('"a" b',)])
    file.seek(0)
    assert [*read(file)] == [{"id": '"a" b'}]


@pytest.mark.parametrize("name", ["csv.writer", "CSVWriter", "write_csv", "to_csv", "DictWriter"])
def test_nothing_else_writes_tables(name):
    texts = {path: path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path, text in texts.items()
        if any(
            isinstance(node, ast.Attribute) and ast.unparse(node).endswith(name)
            for node in ast.walk(ast.parse(text))
        )
    }
    assert users == set()
