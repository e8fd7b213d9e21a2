"""search: the exact nearest, of the right records, by the run's own recipe, or a clear sentence."""

import csv
import hashlib
import os
import pty
import shutil
import subprocess
import sys
from types import SimpleNamespace

import forks
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plans import read_sealed, write_sealed
from programs import Verbs

import featuremill
from featuremill import __main__, features
from featuremill.base.errors import UserError
from featuremill.features import nearest, table
from featuremill.features.table import Stored
from featuremill.merge.command import merge, merge_partial
from featuremill.merge.export import export
from featuremill.steps.transfer import hits, recipe
from featuremill.steps.transfer.queries import Queries
from featuremill.store.files import read_json, write_json
from featuremill.store.formats import ABOUT, files
from featuremill.store.results import Results
from featuremill.workload.outputs import Target, open_writer
from featuremill.workloads.esm2 import VERSION

ESCAPE = "\x1b[31mred"
RECORDS = [
    ("sp|P10001|ONE_A", "MKVLA"),
    ("twin", "MKVLA"),
    ("with/slash,comma", "ACDEFGHIK"),
    ("refused", "MK*LA"),
    ("ünïcode🧬", "GGG"),
    *((f"r{n}", "ACDE" * (n + 1) + "WYF"[: n % 4]) for n in range(30)),
    ("sp|P10002|TWO_A", "HHH"),
    ("sp|P10003|BAD_A", "MK*LA"),
    ("UniRef50_P10002", "HHHP"),
]
WITH_VECTORS = [id for id, _ in RECORDS if id not in ("refused", "sp|P10003|BAD_A")]
COMPOSITION = ["--vectors", "composition"]
ALL = ["parquet", "npy", "parquet_dataset", "per_protein_h5"]


pytestmark = pytest.mark.usefixtures("no_handlers")


def composition(sequence):
    return {letter: sequence.count(letter) / len(sequence) for letter in sequence}


@pytest.fixture(scope="module")
def computed(tmp_path_factory, environment):
    """Return the verbs of a run that is computed."""
    verbs = Verbs(tmp_path_factory.mktemp("search"), environment)
    fasta = [(f"{id} about {id} {ESCAPE}", sequence) for id, sequence in RECORDS]
    plan = verbs.plan(fasta, cost=100_000)
    verbs.extract(plan)
    return verbs


@pytest.fixture
def run(computed, tmp_path):
    """Return a copy of that run, merged to a table and a matrix."""
    shutil.copytree(computed.run_folder.root, tmp_path / "results" / "run")
    folder = Results(tmp_path / "results" / "run")
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
    if metric == "euclidean":
        return np.sqrt(((rows - query) ** 2).sum(1))
    products = (rows * query).sum(1)
    if metric == "dot":
        return products
    norms = np.sqrt((rows**2).sum(1)) * np.sqrt((query**2).sum())
    return np.clip(products / np.where(norms, norms, 1), -1, 1)


def ranked(scores, k, metric):
    return np.argsort(scores if metric == "euclidean" else -scores, kind="stable")[:k]


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
    return found.hits()


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
        metric=st.sampled_from([*nearest.METRICS]),
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
    # Terms that cancel: a float32 product is off by more than the scores differ.
    vectors = 1e3 * rng.standard_normal((2_000, 320))
    vectors = (vectors - vectors.mean(1, keepdims=True)).astype(np.float32)
    query = np.ones(320)
    ((rows, _),) = search_blocks(vectors, query[None], 20, "dot", 4096)
    assert rows.tolist() == ranked(brute_force(vectors, query, "dot"), 20, "dot").tolist()


def test_queries_are_computed_on_the_device_that_the_run_chose(monkeypatch):
    asked = []
    cpu = SimpleNamespace(kind="cpu")
    monkeypatch.setattr(recipe, "devices_for", lambda choice: [asked.append(choice) or cpu])
    monkeypatch.setattr(recipe, "with_processors", list)
    of_run = SimpleNamespace(_plan=SimpleNamespace(gpus=1, device="cpu"), _name="run")
    for choice in (None, "cuda"):
        assert recipe.Recipe._devices(of_run, choice) == [cpu]
    assert asked == ["cpu", "cuda"]


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_never_passed_over(number):
    vectors = np.ones((50, 4), np.float32)
    vectors[37, 2] = number
    for metric in nearest.METRICS:
        with pytest.raises(nearest.NotFiniteError, match="vector 38 has"):
            search_blocks(vectors, np.ones((1, 4)), 3, metric, 10)


# ---- the right records ----


def test_a_stored_record_finds_itself_its_twin_and_the_next(run, capfd):
    out, _ = say(capfd, run.root, "--query", "twin", "-k", 3, *COMPOSITION)
    table = rows_of(out)
    assert list(table[0]) == ["query", "rank", "id", "score", "length", "description"]
    first = [(row["id"], row["score"]) for row in table[:2]]
    assert first == [("sp|P10001|ONE_A", "1"), ("twin", "1")]
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
    longer = sequences(">ünïcode🧬\nGGGG\n", "c.fa")
    (third,) = rows_of(say(capfd, run.root, "--query", longer, *more)[0])
    assert third["id"] == "ünïcode🧬", "so the nearest may have its name"
    named = searched(run, {"twin": "MKVLA"}, 2, exclude_self=True)
    assert "twin" not in named["id"].tolist(), "names in memory are ids, too"


def searched(run, queries, k, **more):
    return featuremill.search(run.root, queries, k, column="composition", **more)


@pytest.mark.parametrize("outputs", [["parquet"], ["parquet_dataset"], ["per_protein_h5"], ALL])
def test_every_output_gives_the_same_hits(run, outputs, monkeypatch):
    expected = searched(run, WITH_VECTORS, 7, metric="l2")
    monkeypatch.setattr("featuremill.outputs.parquet_dataset.ROWS_A_FILE", 11)
    merge(run, outputs, 0)
    found = searched(run, WITH_VECTORS, 7, metric="l2")
    pd.testing.assert_frame_equal(found, expected)
    assert len(found) == 7 * len(WITH_VECTORS)


def test_exported_results_are_searched_too(run):
    expected = searched(run, ["r3", "twin"], 5)
    merge(run, ["per_protein_h5"], 0)
    export(run, ["parquet", "npy"])
    assert not isinstance(features.open(run.root, "composition").vectors, Stored)
    pd.testing.assert_frame_equal(searched(run, ["r3", "twin"], 5), expected)
    mapped = features.open(run.root, "hydropathy").vectors
    assert isinstance(mapped, np.ndarray) and mapped.shape[1] == 1
    stored = pq.read_table(run.root / "embeddings.parquet")["hydropathy"].to_pylist()
    assert mapped.tolist() == stored, "the second column of the matrix"
    run.records.unlink()  # descriptions are the results' own
    pd.testing.assert_frame_equal(searched(run, ["r3", "twin"], 5), expected)


def test_a_query_is_computed_as_the_run_was(run, capfd, sequences):
    path = sequences("".join(f">{n}\n{s.lower()}\n" for n, (_, s) in enumerate(RECORDS)))
    out, err = say(capfd, run.root, "--query", path, *COMPOSITION, "-k", 1, "--metric", "l2")
    found = {row["query"]: row for row in rows_of(out)}
    assert set(found) == {str(n) for n, (id, _) in enumerate(RECORDS) if id in WITH_VECTORS}
    for number, row in found.items():
        assert composition(dict(RECORDS)[row["id"]]) == composition(RECORDS[int(number)][1])
        assert float(row["score"]) == 0
    assert "query 3 is left out: stop codon (*) inside the sequence: residue 3" in err


def test_more_queries_than_one_pass_takes_and_more_hits_than_records(run, monkeypatch):
    expected = searched(run, WITH_VECTORS, 1_000_000)
    assert len(expected) == len(WITH_VECTORS) ** 2
    assert set(expected["rank"]) == set(range(1, len(WITH_VECTORS) + 1))
    monkeypatch.setattr(nearest, "MOST_FOUND", 100)
    pd.testing.assert_frame_equal(searched(run, WITH_VECTORS, 1_000_000), expected)


def test_the_euclidean_distance_has_an_older_word_and_no_other_metric_is_guessed(run, capfd):
    asked = ["--query", "r3", *COMPOSITION, "--metric"]
    expected, _ = say(capfd, run.root, *asked, "euclidean")
    assert say(capfd, run.root, *asked, "l2")[0] == expected
    assert say(capfd, run.root, *asked, "cosine")[0] != expected
    error = refusal(capfd, run.root, *asked, "manhattan")
    assert error.endswith("metric: there is no 'manhattan'; give one of cosine, euclidean, dot.")
    with pytest.raises(UserError, match="there is no 'L2'; give one of"):
        featuremill.search(run.root, "r3", column="composition", metric="L2")


def test_python_takes_sequences_and_vectors(run):
    ids, vectors = featuremill.load_matrix(run.root, "composition")
    place = ids.index("ünïcode🧬")
    by_id, by_vector = searched(run, "ünïcode🧬", 4), searched(run, vectors[[place]], 4)
    by_sequence = searched(run, {"my own | name": "GGG", "empty": ""}, 4)
    for frame, name in ((by_vector, "0"), (by_sequence, "my own | name")):
        assert set(frame["query"]) == {name}
        pd.testing.assert_frame_equal(frame.iloc[:, 1:], by_id.iloc[:, 1:])
    with pytest.raises(UserError, match=r"give numbers of shape \(queries, 20\)"):
        featuremill.search(run.root, vectors[:, 1:], column="composition")


def test_a_sequence_in_memory_is_no_lines_of_a_file(run):
    """As lines of a FASTA file, the first would give the second name a vector of its letters."""
    for text in ("MKV\n>1\nWWW", ">1\nWWW"):
        with pytest.raises(UserError, match=r"^queries:1: there is a '>'|all 1 were refused"):
            searched(run, {"mine": text}, 1)
    for nothing in ({}, []):
        with pytest.raises(UserError, match=r"^queries: there is nothing to look for"):
            searched(run, nothing, 1)


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


def test_a_pipe_as_output_is_written_to_and_not_replaced(run, capfd, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["/bin/cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE) as reader:
        say(capfd, run.root, "--query", "r3", *COMPOSITION, "-k", 1, "--output", tmp_path / "pipe")
        assert len(rows_of(reader.communicate(timeout=60)[0].decode())) == 1
    assert (tmp_path / "pipe").is_fifo()


def started(run, environment, *words, **streams):
    command = [sys.executable, "-m", "featuremill", "search", str(run.root), *COMPOSITION]
    return forks.Forked([*command, *words], stderr=subprocess.PIPE, env=environment, **streams)


def test_on_a_terminal_it_is_a_table_that_no_description_disturbs(run, environment):
    ours, theirs = pty.openpty()
    narrow = environment | {"COLUMNS": "90"}
    process = started(run, narrow, "--query", "twin", "-k", "2", stdout=theirs)
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
    words = ("-k", "35", "--query", *WITH_VECTORS * 40)
    process = started(run, environment, *words, stdout=subprocess.PIPE)
    assert process.stdout.readline().startswith(b"query\t")
    process.stdout.close()
    assert b"error" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 0


# ---- what it refuses, and what it warns of ----


def test_an_id_without_a_vector_gets_its_reason(run, capfd):
    for word, sentence in {
        "refused": "the record 'refused' has no vector: it was refused (stop codon",
        "P10003": "the record 'P10003' has no vector: it was refused (stop codon",
        "P1000": "there is no record 'P1000'; give ids of records that have a vector",
        "P10002": "several records, such as sp|P10002|TWO_A, UniRef50_P10002; give a whole id",
        "R2": "there is no record 'R2'; give ids of records that have a vector",
        "r3,nobody,else": "there is no record 'nobody' (1 more are missing); give ids",
        "gone.fasta": "gone.fasta: this file does not exist; check the path",
        "": "query: it is empty",
        ",": "query: it is empty",
        ".": "this is a folder; name the files in it",
        ESCAPE: r"there is no record '\x1b[31mred'",
    }.items():
        assert sentence in refusal(capfd, run.root, "--query", word, *COMPOSITION), word


@pytest.mark.parametrize("letters", ["MKTAYIAKQRQISFVKSHFSRQ", "mktayiakqrqisfvk*", "W" * 5000])
def test_a_sequence_itself_is_no_query(run, capfd, letters):
    said = refusal(capfd, run.root, "--query", letters, *COMPOSITION)
    assert f"there is no record '{letters[:10]}" in said and len(said) < 500
    assert "or a file of sequences" in said


def test_an_accession_that_one_record_has_is_as_good_as_its_id(run, capfd):
    out, _ = say(capfd, run.root, "--query", "P10001,r1", *COMPOSITION, "-k", 2, "--exclude-self")
    found = rows_of(out)
    assert [row["query"] for row in found] == ["P10001"] * 2 + ["r1"] * 2
    assert found[0]["id"] == "twin"
    assert featuremill.load(run.root, ids=["r1", "P10001"]).accession.to_list() == ["r1", "P10001"]
    assert len(featuremill.load(run.root, ids=(id for id in ["r1", "P10001"]))) == 2
    with pytest.raises(UserError, match="load: ids: 1 is of type int; give texts"):
        featuremill.load(run.root, ids=["r1", 1])
    whole, _ = say(capfd, run.root, "--query", "sp|P10002|TWO_A", *COMPOSITION, "-k", 1)
    assert rows_of(whole)[0]["id"] == "sp|P10002|TWO_A"


def test_an_id_with_a_comma_in_it_is_found(run, capfd):
    word = "with/slash,comma"
    out, _ = say(capfd, run.root, "--query", word, f"r1,r2,{word}"[:5], *COMPOSITION, "-k", 1)
    assert [row["query"] for row in rows_of(out)] == [word, "r1", "r2"]


def test_settings_that_cannot_be_met(run, capfd):
    for more, sentence in (
        (["-k", 0, *COMPOSITION], "-k: 0 is too few"),
        ([], "choose one of composition, hydropathy with --vectors (in Python, column=)"),
        (["--vectors", "mean_layer_33"], "there is no column 'mean_layer_33' with one vector"),
        (["--partial", *COMPOSITION], "there are no partial results yet"),
    ):
        assert sentence in refusal(capfd, run.root, "--query", "r3", *more)


def test_queries_of_which_nothing_is_left(run, capfd, sequences):
    for text, sentence in (
        (">a\nMK*LA\n>b\n123\n", "there is nothing to look for, as all 2 were refused"),
        ("", "this file is empty"),
        ("nothing", "a record starts with '>'"),
    ):
        assert sentence in refusal(capfd, run.root, "--query", sequences(text), *COMPOSITION)


def test_a_folder_without_results_says_what_to_do(run, capfd, tmp_path):
    """Each of these is what somebody finds, or names by mistake."""
    asked = ["--query", "r3", *COMPOSITION]
    assert "there is no such folder" in refusal(capfd, tmp_path / "gone", *asked)
    assert "this is no run's folder" in refusal(capfd, tmp_path, *asked)
    assert "there is no such folder" in refusal(capfd, run.plan, *asked)
    merge(run, ["npy"], 0)
    plan = run.find_plan()
    run.part(plan.recipe, plan.shards[0].shard).unlink()
    said = refusal(capfd, run.root, *asked)
    assert "this part of the run was removed, and vectors are read from parts; have it" in said
    manifest = run.root / "manifest.json"
    for text in ("{", "[]", '{"outputs": 3, "parts": {}, "counts": {}, "recipe": ""}'):
        manifest.write_text(text)
        assert "manifest.json: it cannot be read" in refusal(capfd, run.root, *asked)
    manifest.unlink()
    sentence = "there are no results yet; let the run come to its end (featuremill run YOUR.yaml),"
    assert f"{sentence} or" in refusal(capfd, run.root, *asked)


@pytest.mark.parametrize("name", ["embeddings.parquet", "embeddings.npy"])
@pytest.mark.parametrize("harm", ["gone", "short", "rubbish", "other"])
def test_a_damaged_result_is_one_sentence(run, capfd, name, harm):
    path = run.root / name
    size = path.stat().st_size
    if harm == "gone":
        path.unlink()
    elif harm == "short":
        os.truncate(path, size - 1)
    elif harm == "rubbish":
        path.write_bytes(os.urandom(size))
    else:  # sound, and with other columns or rows
        np.save(run.root / "other.npy", np.zeros((3, 21), np.float32))
        pq.write_table(pa.table({"id": ["r3"]}), run.root / "other.parquet")
        (run.root / f"other{path.suffix}").replace(path)
        manifest = read_json(run.root / "manifest.json")
        manifest["outputs"][name]["bytes"] = path.stat().st_size
        write_json(run.root / "manifest.json", manifest)
    said = refusal(capfd, run.root, "--query", "r3", *COMPOSITION)
    assert f"{name}: this is not what merge wrote; featuremill merge {run.root} writes it" in said


def test_a_bad_byte_inside_a_table_is_no_wrong_answer(run, capfd):
    """Pages have no checksums: what is caught is what cannot be decoded or is not finite."""
    merge(run, ["parquet"], 0)
    path = run.root / "embeddings.parquet"
    meta = pq.ParquetFile(path).metadata.row_group(0)
    column = next(meta.column(n) for n in range(5) if meta.column(n).path_in_schema == "id")
    content = bytearray(path.read_bytes())
    begin = column.data_page_offset
    content[begin : begin + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)
    said = refusal(capfd, run.root, "--query", "r3", *COMPOSITION, status=4)
    assert f"{path}: it is damaged (" in said


def test_a_merge_at_work_is_noticed(run, capfd, monkeypatch):
    real = table.pq.ParquetFile

    def while_a_merge_begins(*arguments, **more):
        (run.root / "manifest.json").unlink()
        return real(*arguments, **more)

    monkeypatch.setattr(table.pq, "ParquetFile", while_a_merge_begins)
    said = refusal(capfd, run.root, "--query", "r3", *COMPOSITION)
    assert "a merge is writing these results; try again when it is done" in said


def test_results_that_are_replaced_meanwhile_stay_as_they_were_opened(run):
    opened = features.open(run.root, "composition")
    expected = searched(run, "r3", 3)
    for name in ("embeddings.parquet", "embeddings.npy"):
        (run.root / "new").write_bytes(b"another merge's")
        (run.root / "new").replace(run.root / name)
    row = opened.rows_of(["r3"])["r3"]
    queries = Queries(["r3"], opened.take(np.array([row])), [row])
    found = list(hits.hits_of(opened, queries, hits.Settings(3)))
    pd.testing.assert_frame_equal(pd.DataFrame(found), expected)


def test_results_of_an_earlier_plan_are_searched_and_said_to_be(computed, tmp_path, capfd):
    verbs = Verbs(tmp_path, computed.environment)
    shutil.copytree(computed.folder, tmp_path, dirs_exist_ok=True)
    merge(verbs.run_folder, ["parquet", "npy"], 0)
    verbs.plan([("new first", "WWWW"), ("twin other", "MKV"), *RECORDS[2:]], cost=100_000)
    out, err = say(capfd, verbs.run_folder.root, "--query", "twin", *COMPOSITION, "-k", 3)
    assert "these results are of an earlier plan than plan.json" in err
    described = {row["id"]: row["description"] for row in rows_of(out)}
    assert described["twin"] == r"about twin \x1b[31mred", "not what the name means by now"
    (tmp_path / "q.fa").write_text(">q\nMKVLA\n")
    out, _ = say(capfd, verbs.run_folder.root, "--query", tmp_path / "q.fa", *COMPOSITION)
    assert [row["id"] for row in rows_of(out)][:2] == ["sp|P10001|ONE_A", "twin"]


def test_partial_results_say_so_and_failed_records_why(tmp_path, environment, capfd):
    verbs = Verbs(tmp_path, environment)
    records = [("bad", "RAISEA"), *((f"r{n}", "DEFG" * (n + 1)) for n in range(30))]
    plan = verbs.plan(records, "poison", cost=16)
    verbs.extract(plan | {"shards": plan["shards"][::2]})
    counts = merge_partial(verbs.run_folder, ["parquet", "npy"]).counts
    root = verbs.run_folder.root
    rows = rows_of((root / "partial" / "failed.tsv").read_text())
    pending = next(row["id"] for row in rows if row["status"] == "pending")
    there = pq.read_table(root / "partial" / "embeddings.parquet")["id"].to_pylist()
    out, err = say(capfd, root, "--query", there[0], "-k", 100, "--metric", "l2")
    assert {row["id"] for row in rows_of(out)} == set(there)
    assert f"partial results: {counts.pending} of 31 records are not computed yet" in err
    assert "earlier plan" not in err, "there never was one"
    assert "has no vector: it is not computed yet;" in refusal(capfd, root, "--query", pending)
    verbs.extract(plan)
    merge(verbs.run_folder, ["parquet"], 1)
    (tmp_path / "bad.fa").write_text(">n\nNANA\n>good\nDEFG\n")
    (tmp_path / "worse.fa").write_text(">n\nNANA\n")
    err = verbs("search", root, "--query", "bad.fa", "--output", "hits.tsv", "-k", 1)
    assert "query n is left out: values are missing or not finite" in err
    assert [row["query"] for row in rows_of((tmp_path / "hits.tsv").read_text())] == ["good"]
    err = verbs("search", root, "--query", "worse.fa", status=2)
    assert "there is nothing to look for, as all 1 were refused" in err
    said = refusal(capfd, root, "--query", "bad")
    assert "the record 'bad' has no vector: it failed (error in the workload: " in said
    out, err = say(capfd, root, "--query", pending)
    assert "partial" not in err and len(rows_of(out)) == 10


def test_results_without_a_single_vector(run, capfd):
    """As a run has them whose every record failed."""
    manifest = read_json(run.root / "manifest.json")
    table = pq.read_table(run.root / "embeddings.parquet")
    for output in ("parquet", "npy"):
        path = run.root / files()[output]
        open_writer(output, Target(path, table.drop_columns(list(ABOUT)).schema, 0, {})).close()
        manifest["outputs"][path.name]["bytes"] = path.stat().st_size
    write_json(run.root / "manifest.json", manifest)
    said = refusal(capfd, run.root, "--query", "r3", *COMPOSITION)
    assert "no record of these results has a vector" in said


# ---- the run's own recipe ----


@pytest.fixture(scope="module")
def esm2(tmp_path_factory, environment):
    """Return the verbs of a run of the bundled model, with its weights beside results/."""
    folder = tmp_path_factory.mktemp("esm2")
    verbs = Verbs(folder, environment | {"FEATUREMILL_CACHE": str(folder / "cache")})
    weights = "weights/mill_t6_8M.json"
    verbs("weights", "mill_t6_8M", "--output", weights)
    options = {"long": "chunk", "max_residues": 40, "chunk_overlap": 8, "layers": [2, 6]}
    more = ["--weights", weights]
    verbs.merged(PROTEINS, "esm2", options, 100_000, more, outputs=("parquet", "npy"))
    return verbs


PROTEINS = [
    ("insulin", "GIVEQCCTSICSLYQLENYCN"),
    ("long", "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVKALPDAQFEVV"),
    ("with J", "MKTAYJAKQRQ"),
    *((f"p{n}", "MKTAYIAKQRQISFVKSHFSRQ"[: 5 + n]) for n in range(12)),
]


def test_long_and_odd_sequences_get_the_vectors_of_the_run(esm2, capfd, sequences):
    """From another folder, in another order, with the run's own options: chunks, J as X, layer."""
    path = sequences("".join(f">{id}\n{sequence}\n" for id, sequence in PROTEINS[::-1]))
    more = ["--vectors", "mean_layer_2", "-k", 1]
    out, err = say(capfd, esm2.run_folder.root, "--query", path, *more)
    for row in rows_of(out):
        # In fp32 the bits are the same in any batch; bf16 kernels may round by the batch's shape.
        assert row["query"].split()[0] == row["id"] and float(row["score"]) > 0.9999
    assert [row["query"] for row in rows_of(out)] == [id.split()[0] for id, _ in PROTEINS[::-1]]
    assert "1 query: J read as X." in err


def test_other_weights_versions_and_dtypes_are_refused(esm2, tmp_path, capfd, sequences):
    shutil.copytree(esm2.run_folder.root, tmp_path / "results" / "test")
    folder = Results(tmp_path / "results" / "test")
    path = sequences(">q\nMKTAYIAKQRQ\n")
    asked = [folder.root, "--query", path, "--vectors", "mean_layer_6"]
    said = refusal(capfd, *asked)
    assert "weights/mill_t6_8M.json: the weights that" in said and "are not here" in said
    ours = read_sealed(esm2.folder / "weights" / "mill_t6_8M.json")
    other = tmp_path / "other.json"
    others = tmp_path / "other.safetensors"
    others.write_bytes(b"others")
    theirs = {"path": str(others), "bytes": 6, "sha256": hashlib.sha256(b"others").hexdigest()}
    write_sealed(other, ours | theirs)
    assert "these are other weights" in refusal(capfd, *asked, "--weights", other)
    other.write_text("{}")
    assert "not what featuremill weights wrote" in refusal(capfd, *asked, "--weights", other)
    write_sealed(other, ours)
    assert len(rows_of(say(capfd, *asked, "--weights", other)[0])) == 10
    out, err = say(capfd, folder.root, "--query", "p3", "--vectors", "mean_layer_6")
    assert len(rows_of(out)) == 10 and "computed on" not in err, "an id needs no model"
    older = f"here is version {VERSION} of workload esm2 and not version 0, which computed it"
    for key, value, sentence in (
        ("version", "0", older),
        ("weights_sha256", "1" * 64, "these are other weights than those of"),
    ):
        manifest = read_json(esm2.run_folder.root / "manifest.json")
        manifest["settings"][key] = value
        write_json(folder.root / "manifest.json", manifest)
        assert sentence in refusal(capfd, *asked, "--weights", other)


def test_a_dtype_that_this_device_lacks_is_refused(esm2, tmp_path, capfd, sequences, monkeypatch):
    path = sequences(">q\nMKTAYIAKQRQ\n")
    manifest = read_json(esm2.run_folder.root / "manifest.json")
    shutil.copytree(esm2.run_folder.root, tmp_path / "results" / "test")
    manifest["settings"]["options"]["dtype"] = "bf16"
    write_json(tmp_path / "results" / "test" / "manifest.json", manifest)
    monkeypatch.setattr("featuremill.lease.devices.BF16_CPU_FLAGS", set())
    weights = esm2.folder / "weights" / "mill_t6_8M.json"
    asked = ["--query", path, "--vectors", "mean_layer_6", "--weights", weights]
    said = refusal(capfd, tmp_path / "results" / "test", *asked)
    assert "its recipe cannot be computed on this device: options.dtype: " in said
