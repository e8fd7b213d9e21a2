"""features: each record with its own vector, by whatever it is read, and why others have none."""

import csv
import hashlib
import random
import shutil

import numpy as np
import pytest
from conftest import PLUGINS
from programs import Verbs

from featuremill import features
from featuremill.base.errors import IntegrityError, UserError
from featuremill.features import parts, records, table
from featuremill.merge.command import merge, merge_partial
from featuremill.store import failed
from featuremill.store.parts import read_shard
from featuremill.store.results import Results

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(PLUGINS))
    from featuremill_residues import last_of, vectors_of

DRAWN = random.Random(5)
LETTERS = "ACDEFGHIKLMNPQRSTVY"
PROTEINS = [(f"p{n}", "".join(DRAWN.choices(LETTERS, k=DRAWN.randint(5, 60)))) for n in range(60)]
RECORDS = [
    ('fails"so"', "MKWL"),
    *PROTEINS[:30],
    ("again", PROTEINS[0][1]),
    PROTEINS[4],  # a duplicate
    ("bad", "MK1"),
    *PROTEINS[30:],
    ("fails,too", "WWW"),
]
SEQUENCES = {id: sequence for id, sequence in RECORDS if not {"W", "1"} & set(sequence)}
IDS = list(SEQUENCES)
SOURCES = {
    "a table": ["parquet"],
    "a table and a matrix": ["parquet", "npy"],
    "a dataset": ["parquet_dataset"],
    "parts": ["per_protein_h5"],
}
VECTORS = {
    "mean": {id: vectors_of(s.encode()).astype(np.float32).mean(0) for id, s in SEQUENCES.items()},
    "last": {id: last_of(s.encode()) for id, s in SEQUENCES.items()},
}


@pytest.fixture(scope="module")
def computed(tmp_path_factory, environment):
    """Return a run that is computed: several parts, equal payloads, records without values."""
    verbs = Verbs(tmp_path_factory.mktemp("features"), environment)
    described = [(f"{id} about {id}", sequence) for id, sequence in RECORDS]
    plan = verbs.plan(described, "residues", {"last": True}, cost=16)
    verbs.extract(plan)
    assert len(plan["shards"]) > 2
    return verbs.run_folder


@pytest.fixture(scope="module", params=SOURCES)
def run(request, computed, tmp_path_factory):
    """Return a copy of it, whose results are of one kind, in several files and row groups."""
    folder = Results(shutil.copytree(computed.root, tmp_path_factory.mktemp("run") / "test"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("featuremill.outputs.parquet_dataset.ROWS_A_FILE", 17)
        patch.setattr("featuremill.merge.gather.BLOCK_BYTES", 8_000)
        merge(folder, SOURCES[request.param], 2)
    return folder


@pytest.fixture
def few_rows_at_once(monkeypatch):
    monkeypatch.setattr(table, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(records, "BLOCK_BYTES", 100)


def shuffled(seed=0, count=200):
    """Return rows in any order, some of them more than once."""
    return np.random.default_rng(seed).integers(0, len(IDS), count)


# ---- the contract, whatever is read ----


@pytest.mark.parametrize("column", VECTORS)
def test_blocks_have_each_record_with_its_own_vector_in_the_order_of_the_input(
    run, few_rows_at_once, column
):
    opened = features.open(run.root, column)
    told = VECTORS[column]
    blocks = list(opened.blocks())
    assert len(blocks) > 4
    assert [id for ids, _ in blocks for id in ids] == IDS == list(told)
    vectors = np.concatenate([v for _, v in blocks])
    np.testing.assert_array_equal(vectors, np.stack([*told.values()]))
    assert (opened.num_rows, opened.width) == (len(IDS), len(told["p0"]))
    assert opened.vectors.dtype == blocks[0][1].dtype
    plan = run.find_plan()
    assert (opened.recipe, opened.settings) == (plan.recipe, plan.settings)
    assert (opened.name, opened.column) == (str(run.root), column)


def test_rows_are_found_by_id_and_taken_in_any_order(run, few_rows_at_once):
    opened = features.open(run.root, "mean")
    rows = shuffled()
    ids = [IDS[row] for row in rows]
    assert opened.ids_of(rows) == ids
    np.testing.assert_array_equal(opened.take(rows), np.stack([VECTORS["mean"][id] for id in ids]))
    asked = [*ids, "nobody", "bad", "P1"]
    expected = {id: IDS.index(id) for id in ids}
    assert opened.rows_of(asked) == expected and opened.rows_of([]) == {}
    found = features.Index(opened).rows_of(asked)
    assert found.tolist() == [expected.get(id, features.NOWHERE) for id in asked]
    told = opened.records_of(rows)
    assert set(told) == set(rows.tolist())
    for row, record in told.items():
        sequence = SEQUENCES[IDS[row]]
        sha256 = hashlib.sha256(sequence.encode()).hexdigest()
        assert record == (IDS[row], len(sequence), sha256, f"about {IDS[row]}")
    pairs = [(record.id, record.sha256) for _, record in sorted(told.items())]
    assert [pair for pair in opened.digests() if IDS.index(pair[0]) in told] == pairs


@pytest.mark.parametrize("row", [features.NOWHERE, len(IDS)])
def test_a_row_that_is_none_has_no_vector_and_no_id(run, row):
    """As NumPy counts it, that of an id without a vector is the last one; what was never written is
    whatever the memory had."""
    opened = features.open(run.root, "mean")
    for take in (opened.take, opened.ids_of, opened.records_of, opened.ranks_of):
        with pytest.raises(UserError, match=f"no row {row} here"):
            take(np.array([0, row]))


@pytest.mark.parametrize("rows", [np.arange(len(IDS)) == 3, [0.5, 1.0], ["1"]])
def test_rows_are_whole_numbers(run, rows):
    """NumPy takes a mask for the rows 0 and 1, half a row for a whole one, a text for a number."""
    opened = features.open(run.root, "mean")
    for take in (opened.take, opened.ids_of, opened.records_of):
        with pytest.raises(UserError, match="give whole numbers"):
            take(rows)
    assert opened.take([]).shape == (0, opened.width)


def test_what_failed_is_there_with_the_reason(run):
    told = {failure.id: failure for failure in features.open(run.root, "mean").failures()}
    assert [*told] == ['fails"so"', "bad", "fails,too"]
    failure = told["bad"]
    assert (failure.source, failure.line, failure.status) == ("in.fa", "67", "refused")
    assert failure.reason == "not an amino acid: '1' at residue 3"
    for id in ('fails"so"', "fails,too"):
        assert told[id].status == "failed"
        assert told[id].reason.startswith("error in the workload: ")
    (run.root / "failed.tsv").rename(run.root / "elsewhere")
    assert [*features.open(run.root, "mean").failures()] == []
    (run.root / "elsewhere").rename(run.root / "failed.tsv")


def test_one_column_of_several_has_to_be_chosen(run):
    for column, problem in (
        (None, "it has several columns; choose one of mean, last with --this."),
        ("residues", "there is no column 'residues' with one vector a record; it has mean, last."),
    ):
        with pytest.raises(UserError) as refused:
            features.open(run.root, column, choosing="--this")
        assert str(refused.value).endswith(problem)


def what_is_read(run):
    """Return the files that the vectors of a run stand in."""
    of_results = [run.root / "embeddings.parquet", run.root / "embeddings.npy"]
    found = [path for path in of_results if path.exists()]
    found = found or sorted(run.root.glob("embeddings/*.parquet"))
    plan = run.find_plan()
    return found or [run.part(plan.recipe, entry.shard) for entry in plan.shards]


def test_a_changed_byte_is_found_by_whoever_looks(run):
    features.open(run.root, "mean").check()
    for path in what_is_read(run):
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[len(whole) // 2] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError) as refused:
            features.open(run.root, "mean").check()
        assert str(refused.value).startswith((f"{path}: ", f"{run.root / 'embeddings'}: "))
        path.write_bytes(whole)


def test_what_is_missing_is_refused_and_nothing_else_read_in_its_place(run):
    for path in what_is_read(run):
        path.rename(path.with_suffix(".away"))
        with pytest.raises(UserError) as refused:
            features.open(run.root, "mean")
        sentence = str(refused.value)
        assert str(path) in sentence or f"{path.parent}: this is not what merge" in sentence
        path.with_suffix(".away").rename(path)


def test_results_that_are_replaced_meanwhile_stay_as_they_were_opened(run):
    opened = features.open(run.root, "mean")
    read = [*what_is_read(run), run.records]
    kept = [path.with_name(f"{path.name}.kept") for path in read]
    for path, copy in zip(read, kept, strict=True):
        path.rename(copy)
        path.write_bytes(b"another merge's")
    rows = shuffled()
    assert opened.ids_of(rows) == [IDS[row] for row in rows]
    expected = [VECTORS["mean"][IDS[row]] for row in rows]
    np.testing.assert_array_equal(opened.take(rows), np.stack(expected))
    for path, copy in zip(read, kept, strict=True):
        copy.replace(path)


# ---- results that are not whole, or not of this plan ----


def test_partial_results_are_for_who_asks_for_them(computed, tmp_path, caplog):
    run = Results(shutil.copytree(computed.root, tmp_path / "test"))
    with pytest.raises(UserError, match="there are no complete results of this run yet"):
        features.open(run.root, "mean")
    with pytest.raises(UserError, match="there are no partial results yet"):
        features.open(run.root, "mean", partial=True)
    plan = run.find_plan()
    part = run.part(plan.recipe, plan.shards[0].shard)
    part.rename(tmp_path / "part")
    merge_partial(run, ["parquet"])
    for partial in (True, None):
        opened = features.open(run.root, "mean", partial=partial)
        ids = opened.ids_of(np.arange(opened.num_rows))
        assert 0 < len(ids) < len(IDS)
        expected = np.stack([VECTORS["mean"][id] for id in ids])
        np.testing.assert_array_equal(opened.take(np.arange(len(ids))), expected)
        assert "records are not computed yet and are left out" in caplog.messages[-1]
    pending = {failure.id for failure in opened.failures() if failure.status == "pending"}
    assert pending == set(IDS) - set(ids)
    for root in (run.root, run.root / "partial"):
        with pytest.raises(UserError, match="there are no complete results of this run yet"):
            features.open(root, "mean", partial=False)
    merge_partial(run, ["npy"])
    with pytest.raises(UserError, match=r"--partial --outputs npy parquet adds it from the parts"):
        features.open(run.root, "mean", partial=None)
    (tmp_path / "part").rename(part)
    merge(run, ["parquet"], 2)
    assert features.open(run.root, "mean", partial=None).num_rows == len(IDS)


def test_parts_are_those_of_the_plan_that_the_results_are_of(computed, tmp_path):
    run = Results(shutil.copytree(computed.root, tmp_path / "test"))
    merge(run, ["per_protein_h5"], 2)
    plan = run.plan.read_bytes()
    run.read_delivery().model_copy(update={"recipe": "another"}).write(run.delivery)
    for opening in (features.open, features.open_parts):
        with pytest.raises(UserError, match="there are no complete results of this run yet"):
            opening(run.root, "mean")
    run.records.write_bytes(run.records.read_bytes() + b"0")
    with pytest.raises(IntegrityError, match="it does not belong to plan"):
        features.open(run.root, "mean")
    assert run.plan.read_bytes() == plan


# ---- parts, a row a payload ----


def test_parts_have_the_vectors_of_each_payload_in_the_order_of_the_digests(run):
    of_residues = features.open_parts(run.root, "residues")
    assert of_residues.column.is_per_residue
    rows = np.flatnonzero(of_residues.num_of_row)
    found, counts = of_residues.of_rows(rows)
    digest_of = {hashlib.sha256(text.encode()).digest(): text for text in SEQUENCES.values()}
    expected = []
    for entry in run.find_plan().shards:
        shas = read_shard(run.shard(entry.shard))["sha256"].to_pylist()
        assert shas == sorted(shas)
        expected += [vectors_of(digest_of[sha].encode()) for sha in shas if sha in digest_of]
    assert counts.tolist() == [len(matrix) for matrix in expected] and len(expected) == 60
    np.testing.assert_array_equal(found, np.concatenate(expected).astype(np.float32))
    ends = np.cumsum(counts)
    some = np.random.default_rng(0).permutation(len(found))[:500]
    place = np.searchsorted(ends, some, side="right")
    within = some - ends[place] + counts[place]
    np.testing.assert_array_equal(of_residues.take(rows[place], within), found[some])
    for wrong in (-1, counts[0]):  # a residue of another protein, as it stands in memory
        with pytest.raises(UserError, match=f"no row {wrong} here"):
            of_residues.take(rows[:1], np.array([wrong]))


def test_parts_tell_the_row_of_each_record_in_the_order_of_the_input(run):
    opened = features.open_parts(run.root, "last")
    ids, rows = zip(*opened.records(), strict=True)
    assert [id for some in ids for id in some] == IDS
    found, counts = opened.of_rows(np.concatenate(rows))
    assert counts.tolist() == [1] * len(IDS)
    np.testing.assert_array_equal(found, np.stack([*VECTORS["last"].values()]).astype(np.float32))
    hashes = [int(hashlib.sha256(s.encode()).hexdigest()[:16], 16) for s in SEQUENCES.values()]
    assert opened.hash_of_row[np.concatenate(rows)].tolist() == hashes


def test_vectors_that_the_records_do_not_have_are_not_there(run, monkeypatch):
    all_of = parts.read_records

    def first_ten(*words):
        for batch in all_of(*words):
            yield batch.slice(0, 10)

    monkeypatch.setattr(parts, "read_records", first_ten)
    some = features.open_parts(run.root, "residues")
    assert np.count_nonzero(some.num_of_row) == 9, "the first one failed"


# ---- one parser ----


def test_ids_of_any_kind_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "failed.tsv"
    ids = ['a"b', "a,b", "x" * 200_000, "ünïcode🧬", "'", '""']
    rows = [failed.Failure(id, "in.fa", "1", "failed", "nan: so") for id in ids]
    with path.open("w", encoding="utf-8", newline="") as file:
        written = csv.writer(file, delimiter="\t", lineterminator="\n")
        written.writerows([failed.Failure._fields, *rows])
    assert [*failed.read(path)] == rows
    path.write_text("id\tstatus\na\tfailed\n")
    with pytest.raises(KeyError):
        [*failed.read(path)]
