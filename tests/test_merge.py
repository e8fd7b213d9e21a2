"""merge: every record accounted for, every vector with its own id, nothing damaged delivered."""

import csv
import json
import shutil

import h5py
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from conftest import Verbs

import featuremill
from featuremill import gather
from featuremill.config import validate
from featuremill.errors import IntegrityError, UserError
from featuremill.merge import merge
from featuremill.outputs.per_protein_h5 import dataset_name
from featuremill.store import RunFolder

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
ALL = ["parquet", "per_protein_h5", "npy"]
RECORDS = [
    ("sp|P1|A_B", "MKVLA"),
    ("with/slash", "ACDEFGHIK"),
    ("100%", "WWWWWW"),
    ("twin", "MKVLA"),
    ("refused", "MK*LA"),
    ("sp|P1|A_B", "MKVLA"),
    ("ünïcode🧬", "GGG"),
    (".", "PPPP"),
    *((f"r{n}", "ACDE" * (n + 1)) for n in range(30)),
]


def composition(sequence):
    return [sequence.count(letter) / len(sequence) for letter in LETTERS]


@pytest.fixture(scope="module")
def extracted(tmp_path_factory, environment):
    """Return the verbs of a run whose shards are all extracted."""
    verbs = Verbs(tmp_path_factory.mktemp("merge"), environment)
    plan = verbs.plan(RECORDS, cost=300)
    assert len(plan["shards"]) > 3
    verbs.extract(plan)
    return verbs


@pytest.fixture
def run(extracted, tmp_path):
    """Return a copy of that run's folder, to be damaged at will."""
    shutil.copytree(extracted.run_folder.root, tmp_path / "run")
    return RunFolder(tmp_path / "run")


def expected():
    """Return id → sequence of what has to come out, in order."""
    out = dict(RECORDS)
    del out["refused"]
    return out


def test_every_output_has_every_id_with_its_own_vector(run):
    result = merge(run, ALL, 0)
    assert result["counts"] == {"input": 38, "ok": 36, "failed": 0, "refused": 1, "duplicate": 1}
    table = pq.read_table(run.root / "embeddings.parquet")
    assert table["id"].to_pylist() == list(expected())
    for row in table.to_pylist():
        assert row["composition"] == pytest.approx(composition(expected()[row["id"]]))
        assert row["length"] == len(expected()[row["id"]])
    both = np.load(run.root / "embeddings.npy")
    assert both[:, :20].tolist() == table["composition"].to_pylist()
    assert both[:, 20:].tolist() == table["hydropathy"].to_pylist()
    with h5py.File(run.root / "per-protein.h5") as file:
        assert len(file) == 36
        assert file.attrs["columns"] == "composition,hydropathy"
        for id, sequence in expected().items():
            dataset = file[dataset_name(id)]
            assert dataset.attrs["original_id"] == id
            assert dataset[:20] == pytest.approx(composition(sequence))


def test_the_failed_table_has_every_record_without_values(run):
    merge(run, ALL, 0)
    with (run.root / "failed.tsv").open(newline="") as handle:
        rows = list(csv.DictReader(handle, delimiter="\t"))
    assert [(row["id"], row["line"], row["status"]) for row in rows] == [
        ("refused", "9", "refused")
    ]
    assert "stop codon" in rows[0]["reason"]


def test_results_load_in_python(run):
    merge(run, ALL, 0)
    frame = featuremill.load(run.root)
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.index) == list(expected())
    assert frame.loc["with/slash", "composition"] == pytest.approx(composition("ACDEFGHIK"))
    with pytest.raises(UserError, match="choose one of composition, hydropathy"):
        featuremill.load_matrix(run.root)
    ids, mapped = featuremill.load_matrix(run.root, "composition")
    assert isinstance(mapped, np.memmap) and mapped.shape == (36, 20)
    merge(run, ["parquet"], 0)
    again, read = featuremill.load_matrix(run.root, "hydropathy")
    assert again == ids and read.shape == (36, 1)
    with pytest.raises(UserError, match="it has composition, hydropathy"):
        featuremill.load_matrix(run.root, "nothing")
    with pytest.raises(UserError, match="no such result"):
        featuremill.load(run.root / "elsewhere")


def test_small_blocks_and_twice_give_the_same_bytes(run, monkeypatch):
    merge(run, ALL, 0)
    names = ["per-protein.h5", "embeddings.npy", "failed.tsv", "embeddings.parquet"]
    before = {name: (run.root / name).read_bytes() for name in names}
    merge(run, ALL, 0)
    assert before == {name: (run.root / name).read_bytes() for name in names}
    monkeypatch.setattr(gather, "BLOCK_BYTES", 500)
    merge(run, ALL, 0)
    assert before["embeddings.npy"] == (run.root / "embeddings.npy").read_bytes()
    assert before["per-protein.h5"] == (run.root / "per-protein.h5").read_bytes()


def one_part(run):
    plan = json.loads(run.plan.read_text())
    shard = plan["shards"][1]["shard"]
    return run.part(plan["recipe"], shard), run.receipt(plan["recipe"], shard)


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "lie", "other"])
def test_nothing_damaged_is_delivered(run, damage):
    part, receipt = one_part(run)
    content = bytearray(part.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 4
        part.write_bytes(content)
    elif damage == "cut":
        part.write_bytes(content[:-8])
    elif damage == "gone":
        part.unlink()
    else:
        told = json.loads(receipt.read_text())
        told["part" if damage == "lie" else "shard"] = "0" * 32
        receipt.write_text(json.dumps(told))
    with pytest.raises(IntegrityError, match="run the same command again"):
        merge(run, ALL, 0)
    assert not (run.root / "manifest.json").exists()
    assert not receipt.exists(), "so that the next run computes the part again"


def test_parts_swapped_with_their_digests_are_found(run):
    plan = json.loads(run.plan.read_text())
    first, second = (shard["shard"] for shard in plan["shards"][:2])
    shutil.copy(run.part(plan["recipe"], first), run.part(plan["recipe"], second))
    told = json.loads(run.receipt(plan["recipe"], first).read_text()) | {"shard": second}
    run.receipt(plan["recipe"], second).write_text(json.dumps(told))
    with pytest.raises(IntegrityError):
        merge(run, ALL, 0)


def test_all_damaged_parts_are_set_aside_at_once(run):
    plan = json.loads(run.plan.read_text())
    for shard in plan["shards"][:3]:
        run.part(plan["recipe"], shard["shard"]).write_bytes(b"rubbish")
    run.receipt(plan["recipe"], plan["shards"][3]["shard"]).write_text("")
    with pytest.raises(IntegrityError, match="3 more like it"):
        merge(run, ALL, 0)
    left = [s for s in plan["shards"] if run.receipt(plan["recipe"], s["shard"]).exists()]
    assert len(left) == len(plan["shards"]) - 4


def test_old_results_never_stand_beside_new_ones(run):
    merge(run, ALL, 0)
    (run.root / ".embeddings.npy.killed").write_bytes(b"half")
    merge(run, ["per_protein_h5"], 0)
    assert not (run.root / "embeddings.npy").exists()
    assert not (run.root / "embeddings.parquet").exists()
    assert not (run.root / ".embeddings.npy.killed").exists()
    (run.root / "embeddings.parquet").write_bytes(b"from elsewhere")
    with pytest.raises(UserError, match="is parquet in outputs"):
        featuremill.load(run.root)


def test_a_manifest_that_lost_a_row_is_refused(run):
    table = pq.read_table(run.manifest)
    pq.write_table(table.slice(0, 37), run.manifest)
    with pytest.raises(IntegrityError, match="does not belong to plan"):
        merge(run, ALL, 0)


def test_an_output_with_nothing_to_hold_is_refused(run):
    with pytest.raises(UserError, match="per_residue_h5 needs per_residue: true"):
        merge(run, ["per_residue_h5"], 0)
    assert not list(run.root.glob(".per-residue*"))


def test_more_failures_than_allowed_deliver_nothing_and_name_the_list(verbs):
    plan = verbs.plan([("good", "MKV"), ("bad", "RAISEA"), ("same", "RAISEA")], "poison")
    verbs.extract(plan)
    said = verbs("merge", verbs.run_folder.root, "--outputs", "parquet", status=2)
    assert "2 of 3 records failed and max_failed is 0" in said and "failed.tsv has each one" in said
    listed = (verbs.run_folder.store / "failed.tsv").read_text()
    assert "bad\tin.fa\t3\tfailed\terror in the workload: ValueError" in listed
    assert not (verbs.run_folder.root / "embeddings.parquet").exists()
    said = verbs("merge", verbs.run_folder.root, "--outputs", "parquet", "npy", "--max-failed", "2")
    assert "1 of 3 records ok, 2 failed: all accounted for" in said
    assert pq.read_table(verbs.run_folder.root / "embeddings.parquet")["id"].to_pylist() == ["good"]


def test_only_failures_make_empty_results(verbs):
    plan = verbs.plan([("bad", "RAISEA")], "poison")
    verbs.extract(plan)
    verbs("merge", verbs.run_folder.root, "--outputs", *ALL, "--max-failed", "1")
    assert np.load(verbs.run_folder.root / "embeddings.npy").shape == (0, 1)
    assert len(featuremill.load(verbs.run_folder.root)) == 0


def test_the_config_knows_every_output():
    config = validate({"inputs": "x.fa", "workload": "composition", "outputs": ALL})
    assert list(config.outputs) == ALL
