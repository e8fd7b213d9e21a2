"""featuremill verify: whether results hold, and what of them does not."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from programs import Verbs, fasta, random_records

from featuremill.steps.transfer.again import difference
from featuremill.store.formats import bytes_of, digest_of_result

RECORDS = random_records(12)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, environment):
    verbs = Verbs(tmp_path_factory.mktemp("verify"), environment)
    verbs.extract(verbs.plan([*RECORDS, ("again", RECORDS[0][1])]))
    verbs("merge", verbs.run_folder.root, "--outputs", "parquet", "npy")
    return verbs.folder


class Sent(Verbs):
    """A copy of the results, which a test changes."""

    @property
    def table(self):
        return self.run_folder.root / "embeddings.parquet"

    def rewrite(self, column, change):
        """Change the rows of a column, and manifest.json as if merge had written them so."""
        table = pq.read_table(self.table)
        values = change(table[column].to_pylist())
        index = table.schema.get_field_index(column)
        changed = pa.array(values, table.schema.field(column).type)
        pq.write_table(table.set_column(index, table.schema.field(column), changed), self.table)
        path = self.run_folder.delivery
        manifest = json.loads(path.read_text())
        about = {"bytes": bytes_of(self.table), "sha256": digest_of_result(self.table)}
        manifest["outputs"][self.table.name] = about
        path.write_text(json.dumps(manifest))

    def verify(self, *words, status):
        said = self.type("featuremill", "verify", "results/test", *words, "--json", status=status)
        return json.loads(said.out) if status < 2 else said.err


@pytest.fixture
def sent(whole, tmp_path, environment):
    shutil.copytree(whole, tmp_path / "sent")
    return Sent(tmp_path / "sent", environment)


def swapped(rows):
    return [rows[1], rows[0], *rows[2:]]


def one_float(rows):
    rows[5][3] += 1e-3
    return rows


def test_results_hold(sent):
    found = sent.verify(status=0)
    assert found["holds"] and not found["problems"] and found["files"] == 2 and found["parts"]
    assert len(found["recomputed"]) == 13 and found["records"]["ok"] == 13
    assert "composition" in {column["name"] for column in found["columns"]}
    for column in found["columns"]:
        assert column["same"] == column["records"] == 13 and column["allowed"] == 0
    assert (
        sent.verify("--seed", 7, "--recompute", 4, status=0)["recomputed"]
        == (sent.verify("--seed", 7, "--recompute", 4, status=0)["recomputed"])
    )
    said = sent.type("featuremill", "verify", "results/test", "--ids", "p0.3", "again").out
    assert "2 records computed again, named:" in said and "\n  composition: the same bits\n" in said
    assert said.endswith("The results hold.\n")


@pytest.mark.parametrize(
    ("column", "change", "problem"),
    [
        ("composition", swapped, "composition: relative L2 at most"),
        ("composition", one_float, "(p0.5), on average"),
        ("id", swapped, "'p0.1' has the sequence of another record"),
        ("sha256", swapped, "'p0.0' has the sequence of another record"),
        ("id", lambda rows: [rows[0], rows[0], *rows[2:]], "'p0.0' has several rows"),
    ],
)
def test_a_row_that_is_another_s_is_found_under_a_right_digest(sent, column, change, problem):
    sent.rewrite(column, change)
    assert any(problem in each for each in sent.verify(status=1)["problems"])


def test_bytes_are_compared_with_their_digests(sent):
    content = sent.table.read_bytes()
    sent.table.write_bytes(content[:-1000])
    (root,) = {sent.run_folder.root.relative_to(sent.folder)}
    told = f"{root}/embeddings.parquet: its bytes are not those that manifest.json names"
    assert told in sent.verify(status=1)["problems"]
    sent.table.unlink()
    problems = sent.verify("--recompute", 0, status=1)["problems"]
    assert f"{root}/embeddings.parquet: this file of the results is not here" in problems
    sent.table.write_bytes(content)
    (part,) = (sent.run_folder.store / "parts").rglob("*.arrows")
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    assert [part.name in each for each in sent.verify(status=1)["problems"]] == [True]


def test_a_damaged_shard_is_a_problem_beside_others(sent):
    (shard,) = (sent.run_folder.store / "shards").glob("*.arrow")
    shard.write_bytes(shard.read_bytes()[:-8])
    problems = sent.verify(status=1)["problems"]
    place = shard.relative_to(sent.folder)
    assert problems == [f"{place}: its bytes are not those that were written"]


def test_without_the_store_the_input_says_what_was_computed(sent):
    shutil.rmtree(sent.run_folder.store)
    assert sent.verify("--input", "in.fa", status=0)["columns"][0]["same"] == 13
    (sent.folder / "in.fa").rename(sent.folder / "mine.fa")
    assert "name the files with the records (--input FILE)" in sent.verify(status=2)
    assert not sent.verify("--recompute", 0, status=0)["columns"]
    (sent.folder / "mine.fa").write_text(fasta([(id, sequence[::-1]) for id, sequence in RECORDS]))
    problems = sent.verify("--input", "mine.fa", "--ids", "p0.2", "again", status=1)["problems"]
    assert problems == [
        "mine.fa:5: 'p0.2' has another sequence than the results have of it",
        "mine.fa: no record has the sequence of 'p0.2'",
        "mine.fa: no record has the sequence of 'again'",
    ]


def test_what_cannot_be_checked_is_one_sentence(sent):
    assert "'who': the results have no such id." in sent.verify("--ids", "who", status=2)
    assert "--recompute -1: give 0 or more." in sent.verify("--recompute", -1, status=2)
    sent.run_folder.delivery.unlink()
    assert "manifest.json: there is no such file; name the folder" in sent.verify(status=2)


def test_another_checkpoint_is_not_that_of_the_results(tmp_path, environment):
    verbs = Sent(tmp_path, environment)
    weights = "weights/mill_t6_8M.json"
    verbs("weights", "mill_t6_8M", "--output", weights)
    options = {"model": "mill_t6_8M", "dtype": "fp32"}
    plan = verbs.plan(RECORDS[:2], "esm2", options, more=("--weights", weights))
    verbs.extract(plan)
    verbs("merge", verbs.run_folder.root, "--outputs", "parquet")
    (column,) = verbs.verify(status=0)["columns"]
    assert column["same"] == 2
    path = verbs.run_folder.delivery
    sha256 = plan["settings"]["weights_sha256"]
    path.write_text(path.read_text().replace(sha256, "0" * 64))
    assert "other weights than those" in verbs.verify(status=2)


def test_a_difference_is_relative_whatever_the_shape():
    vector = pa.array([[3.0, 4.0]], pa.list_(pa.float32(), 2))[0]
    other = pa.array([[3.0, 4.5]], pa.list_(pa.float32(), 2))[0]
    assert difference(vector, vector) == 0 and np.isclose(difference(vector, other), 0.1, rtol=0.1)
    residues = pa.array([[[1.0], [2.0]]], pa.list_(pa.list_(pa.float16(), 1)))[0]
    assert difference(residues, residues) == 0
    assert difference(residues, pa.array([[[1.0]]], pa.list_(pa.list_(pa.float16(), 1)))[0]) == 1
    one, two = pa.array(["text", "other"])
    assert difference(one, one) == 0 and difference(one, two) == 1
    missing, number = pa.array([None, 1.5])
    assert difference(missing, missing) == 0 and difference(missing, number) == 1
