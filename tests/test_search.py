"""search: the exact nearest, of the right records, by the run's own recipe, or a clear sentence."""

import csv
import json
import os
import pty
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import PLUGINS, Verbs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import featuremill
from featuremill import __main__
from featuremill.errors import IntegrityError, UserError
from featuremill.merge import merge, merge_partial
from featuremill.search import hits, nearest
from featuremill.store import RunFolder, read_json, read_sealed, write_json, write_sealed

ESCAPE = "\x1b[31mred"
RECORDS = [
    ("sp|P10001|ONE_A", "MKVLA"),
    ("twin", "MKVLA"),
    ("with/slash,comma", "ACDEFGHIK"),
    ("refused", "MK*LA"),
    ("ünïcode🧬", "GGG"),
    *((f"r{n}", "ACDE" * (n + 1) + "WYF"[: n % 4]) for n in range(30)),
]
VECTORLESS = {"refused"}
COMPOSITION = ["--column", "composition"]
ALL = ["parquet", "npy", "parquet_dataset", "per_protein_h5"]


@pytest.fixture(scope="module")
def computed(tmp_path_factory, environment):
    """Return the verbs of a run that is computed."""
    verbs = Verbs(tmp_path_factory.mktemp("search"), environment)
    fasta = [(f"{id} about {id} {ESCAPE}", sequence) for id, sequence in RECORDS]
    plan = verbs.plan(fasta, cost=300)
    verbs.extract(plan)
    return verbs


@pytest.fixture
def run(computed, tmp_path):
    """Return a copy of that run, merged to a table and a matrix."""
    shutil.copytree(computed.run_folder.root, tmp_path / "results" / "run")
    folder = RunFolder(tmp_path / "results" / "run")
    merge(folder, ["parquet", "npy"], 0)
    return folder


@pytest.fixture
def sequences(tmp_path):
    """Return a writer of FASTA files."""

    def write(text, name="q.fa"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def say(capfd, *arguments, status=0):
    """Run the verb in this process; return its standard output and error."""
    assert __main__.main(["search", *map(str, arguments)]) == status
    return capfd.readouterr()


def rows_of(text):
    return list(csv.DictReader(text.splitlines(), delimiter="\t"))


def refusal(capfd, *arguments, status=2):
    """Return the one sentence that a search ends with."""
    out, err = say(capfd, *arguments, status=status)
    assert out == ""
    (line,) = (line for line in err.splitlines() if "error: " in line)
    return line


# ---- the exact nearest ----


def brute_force(vectors, query, metric):
    """Return the score of every row, by plain NumPy in float64."""
    rows, query = vectors.astype(np.float64), query.astype(np.float64)
    if metric == "l2":
        return np.sqrt(((rows - query) ** 2).sum(1))
    products = (rows * query).sum(1)
    if metric == "dot":
        return products
    norms = np.sqrt((rows**2).sum(1)) * np.sqrt((query**2).sum())
    return np.clip(products / np.where(norms, norms, 1), -1, 1)


def ranked(scores, k, metric):
    return np.argsort(scores if metric == "l2" else -scores, kind="stable")[:k]


@st.composite
def matrices(draw):
    """Draw vectors with zeros, copies of each other, near copies, huge and tiny ones."""
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64, np.int8]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_rows, width = draw(st.integers(1, 60)), draw(st.sampled_from([1, 2, 5, 33, 128]))
    rows = rng.standard_normal((num_rows, width)) * 3
    kinds = draw(st.lists(st.sampled_from("..0cnstb"), min_size=num_rows, max_size=num_rows))
    for row, kind in enumerate(kinds):
        other = rows[rng.integers(num_rows)]
        if kind == "0":
            rows[row] = 0
        elif kind == "c":
            rows[row] = other
        elif kind == "n":
            rows[row] = other * (1 + 1e-7 * rng.standard_normal(width))
        elif kind == "s":
            rows[row] = 2 * other
        elif kind in "tb" and dtype in (np.float32, np.float64):
            rows[row] *= 1e-25 if kind == "t" else 1e25
    return rows.astype(dtype)


def search_blocks(vectors, queries, k, metric, size):
    found = nearest.Nearest(queries, k, metric, vectors.dtype)
    for start in range(0, len(vectors), size):
        found.add(start, vectors[start : start + size])
    return found.found()


@pytest.mark.parametrize(
    "num_examples", [150, pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_it_finds_what_brute_force_finds(num_examples):
    @settings(
        max_examples=num_examples,
        deadline=None,
        derandomize=num_examples == 150,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(
        vectors=matrices(),
        k=st.integers(1, 70),
        metric=st.sampled_from(nearest.METRICS),
        size=st.sampled_from([1, 3, 16, 100]),
        num_queries=st.sampled_from([1, 4, nearest.FEW_QUERIES + 1]),
        seed=st.integers(0, 99),
    )
    def prove(vectors, k, metric, size, num_queries, seed):
        rng = np.random.default_rng(seed)
        queries = vectors[rng.integers(len(vectors), size=num_queries)].astype(np.float64)
        queries[::2] += rng.standard_normal(queries[::2].shape)
        answers = search_blocks(vectors, queries, k, metric, size)
        for query, (rows, scores) in zip(queries, answers, strict=True):
            expected = brute_force(vectors, query, metric)
            order = ranked(expected, k, metric)
            assert rows.tolist() == order.tolist()
            assert scores.tolist() == expected[order].tolist()

    prove()


def test_close_calls_in_a_large_crowd_are_decided_exactly():
    """Ten thousand vectors that float32 products cannot tell apart, and many equal ones."""
    rng = np.random.default_rng(3)
    centre = rng.standard_normal(320).astype(np.float32)
    vectors = centre + rng.integers(-2, 3, (10_000, 320)) * np.spacing(centre)
    vectors[5_000:7_000] = vectors[1234]
    for metric in nearest.METRICS:
        expected = brute_force(vectors, vectors[1234], metric)
        for size in (4096, 333):
            ((rows, _),) = search_blocks(vectors, vectors[1234:1235], 300, metric, size)
            assert rows.tolist() == ranked(expected, 300, metric).tolist()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_never_passed_over(number):
    vectors = np.ones((50, 4), np.float32)
    vectors[37, 2] = number
    for metric in nearest.METRICS:
        with pytest.raises(IntegrityError, match="vector 38"):
            search_blocks(vectors, np.ones((1, 4)), 3, metric, 10)


# ---- the right records ----


def test_a_stored_record_finds_itself_its_twin_and_the_next(run, capfd):
    out, _ = say(capfd, run.root, "--query", "twin", "-k", 3, *COMPOSITION)
    table = rows_of(out)
    assert list(table[0]) == ["query", "rank", "id", "score", "length", "description"]
    assert [(row["id"], row["score"]) for row in table[:2]] == [
        ("sp|P10001|ONE_A", "1"),
        ("twin", "1"),
    ]
    assert [row["rank"] for row in table] == ["1", "2", "3"]
    assert table[0]["length"] == "5"
    assert table[1]["description"] == r"about twin \x1b[31mred", "as in failed.tsv"


def test_without_itself_its_twin_is_first(run, capfd, sequences):
    more = [*COMPOSITION, "-k", 1, "--exclude-self"]
    out, _ = say(capfd, run.root, "--query", "twin", *more)
    assert [row["id"] for row in rows_of(out)] == ["sp|P10001|ONE_A"]
    same, other = sequences(">twin\nmkvla*\n", "a.fa"), sequences(">twin\nGGG\n", "b.fa")
    first, second = rows_of(say(capfd, run.root, "--query", same, other, *more)[0])
    assert first["id"] == "sp|P10001|ONE_A"
    assert second["id"] == "ünïcode🧬", "another sequence of that name is another record"


@pytest.mark.parametrize("outputs", [["parquet"], ["parquet_dataset"], ALL])
def test_every_output_gives_the_same_hits(run, outputs, monkeypatch):
    asked = [id for id, _ in RECORDS if id not in VECTORLESS]
    expected = featuremill.search(run.root, asked, 7, column="composition", metric="l2")
    monkeypatch.setattr("featuremill.outputs.parquet_dataset.ROWS_A_FILE", 11)
    merge(run, outputs, 0)
    found = featuremill.search(run.root, asked, 7, column="composition", metric="l2")
    pd.testing.assert_frame_equal(found, expected)
    assert len(found) == 7 * len(asked)


def test_a_query_is_computed_as_the_run_was(run, capfd, sequences):
    path = sequences("".join(f">{n}\n{s.lower()}\n" for n, (_, s) in enumerate(RECORDS)))
    out, err = say(capfd, run.root, "--query", path, *COMPOSITION, "-k", 1, "--metric", "l2")
    found = {row["query"]: row for row in rows_of(out)}
    assert set(found) == {str(n) for n, (id, _) in enumerate(RECORDS) if id not in VECTORLESS}
    for number, row in found.items():
        assert dict(RECORDS)[row["id"]] == RECORDS[int(number)][1]
        assert float(row["score"]) == 0
    assert "query 3 is left out: stop codon (*) inside the sequence: residue 3" in err


def test_more_queries_than_one_pass_takes_and_more_hits_than_records(run, monkeypatch):
    asked = [id for id, _ in RECORDS if id not in VECTORLESS]
    expected = featuremill.search(run.root, asked, 1_000_000, column="composition")
    assert len(expected) == len(asked) ** 2
    assert set(expected["rank"]) == set(range(1, len(asked) + 1))
    monkeypatch.setattr(hits, "MOST_HITS", 100)
    again = featuremill.search(run.root, asked, 1_000_000, column="composition")
    pd.testing.assert_frame_equal(again, expected)


def test_python_takes_sequences_and_vectors(run):
    ids, vectors = featuremill.load_matrix(run.root, "composition")
    place = ids.index("ünïcode🧬")
    by_id = featuremill.search(run.root, "ünïcode🧬", 4, column="composition")
    by_vector = featuremill.search(run.root, vectors[[place]], 4, column="composition")
    named = {"my own | name": "GGG", "empty": ""}
    by_sequence = featuremill.search(run.root, named, 4, column="composition")
    for frame, name in ((by_vector, "0"), (by_sequence, "my own | name")):
        assert set(frame["query"]) == {name}
        pd.testing.assert_frame_equal(frame.iloc[:, 1:], by_id.iloc[:, 1:])
    with pytest.raises(UserError, match=r"give numbers of shape \(queries, 20\)"):
        featuremill.search(run.root, vectors[:, 1:], column="composition")


# ---- files, terminals, pipes ----


def test_an_output_file_is_written_whole(run, capfd, tmp_path):
    table, tsv = tmp_path / "hits.txt", tmp_path / "new" / "hits.tsv"
    asked = [run.root, "--query", "r3,r4", *COMPOSITION]
    out, _ = say(capfd, *asked, "--output", tsv)
    assert out == "" and tsv.read_text() == say(capfd, *asked)[0]
    say(capfd, *asked, "--output", table, "--format", "table")
    lines = table.read_text().splitlines()
    assert lines[0].split() == ["query", "rank", "id", "score", "length", "description"]
    assert len(lines) == 21 and len({line.index("  about ") for line in lines[1:]}) == 1
    refusal(capfd, run.root, "--query", "nobody", *COMPOSITION, "--output", tsv)
    assert len(rows_of(tsv.read_text())) == 20, "the old one"
    assert {path.name for path in tsv.parent.iterdir()} == {"hits.tsv"}


def test_on_a_terminal_it_is_a_table_that_no_description_disturbs(run, environment):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "featuremill", "search", str(run.root), *COMPOSITION]
    process = subprocess.Popen(
        [*command, "--query", "twin", "-k", "2"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=environment | {"COLUMNS": "90"},
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            said += os.read(ours, 4096)
        except OSError:  # its end, on Linux
            break
    process.communicate()
    os.close(ours)
    lines = said.decode().splitlines()
    assert process.returncode == 0 and len(lines) == 3
    assert b"\x1b" not in said and r"\x1b[31mred" in lines[1]
    assert all(len(line) <= 90 for line in lines)


def test_a_reader_that_has_enough_is_no_error(run, environment):
    ids = [id for id, _ in RECORDS if id not in VECTORLESS] * 40
    command = [sys.executable, "-m", "featuremill", "search", str(run.root), *COMPOSITION]
    process = subprocess.Popen(
        [*command, "-k", "35", "--query", *ids],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert process.stdout.readline().startswith(b"query\t")
    process.stdout.close()
    assert b"error" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 0


# ---- what it refuses, and what it warns of ----


def test_an_id_without_a_vector_gets_its_reason_or_its_likes(run, capfd):
    for word, sentences in {
        "refused": ["the record 'refused' has no vector: it was refused (stop codon"],
        "P10001": ["there is no record 'P10001'; the nearest names are sp|P10001|ONE_A;"],
        "R2": ["there is no record 'R2'; the nearest names are r2, r20, r21;"],
        "r3,nobody,else": ["there is no record 'nobody' (1 more are missing); give ids"],
        "gone.fasta": ["gone.fasta: this file does not exist; check the path"],
        "": ["query: it is empty"],
        ",": ["query: it is empty"],
        "A" * 5000: ["there is no record"],
        ".": ["this is a folder; name the files in it"],
        ESCAPE: [r"there is no record '\x1b[31mred'"],
    }.items():
        said = refusal(capfd, run.root, "--query", word, *COMPOSITION)
        for sentence in sentences:
            assert sentence in said, word


def test_an_id_with_a_comma_in_it_is_found(run, capfd):
    word = "with/slash,comma"
    out, _ = say(capfd, run.root, "--query", word, f"r1,r2,{word}"[:5], *COMPOSITION, "-k", 1)
    assert [row["query"] for row in rows_of(out)] == [word, "r1", "r2"]


def test_settings_that_cannot_be_met(run, capfd):
    for more, sentence in (
        (["-k", 0, *COMPOSITION], "-k: 0 records are none"),
        ([], "it has several columns; choose one of composition, hydropathy"),
        (["--column", "mean_layer_33"], "there is no column 'mean_layer_33' with one vector"),
        (["--partial", *COMPOSITION], "there are no partial results yet"),
    ):
        assert sentence in refusal(capfd, run.root, "--query", "r3", *more)


def test_queries_of_which_nothing_is_left(run, capfd, sequences):
    refused = sequences(">a\nMK*LA\n>b\n123\n")
    said = refusal(capfd, run.root, "--query", refused, *COMPOSITION)
    assert "there is nothing to look for, as all 2 were refused" in said
    empty = refusal(capfd, run.root, "--query", sequences("", "e.fa"), *COMPOSITION)
    assert "this file is empty" in empty
    table = refusal(capfd, run.root, "--query", sequences("nothing", "t.fa"), *COMPOSITION)
    assert "a record starts with '>'" in table
