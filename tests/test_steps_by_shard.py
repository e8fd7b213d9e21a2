"""Steps on results by shard (`order: shard`) make what they make of those in the input's order."""

import csv
import random

import numpy as np
import pandas as pd
import pytest
import yaml
from programs import Desk, fasta
from safetensors.numpy import load_file

DRAWN = random.Random(11)
LETTERS = {"virus": "ACDEFGHIKL", "host": "MNPQRSTVWY"}
KINDS = {f"p{n}": ("virus", "host")[n % 2] for n in range(60)}
RECORDS = [
    (id, "".join(DRAWN.choices(LETTERS[kind] + "ACDMNP", k=40))) for id, kind in KINDS.items()
]
STEPS = {
    "heads": {"kind": {"labels": "labels.csv", "column": "kind", "vectors": "composition"}},
    "transfer": {"near": {"vectors": "composition", "labels": "labels.csv", "column": "kind"}},
    "groups": {
        "families": {
            "vectors": "composition",
            "table": "labels.csv",
            "column": "family",
            "pool": ["mean", "max"],
        }
    },
    "autoencoders": {
        "sae": {
            "vectors": "composition",
            "features": 8,
            "k": 2,
            "batch": 16,
            "steps": 20,
            "threads": 1,
        }
    },
}


@pytest.fixture(scope="module")
def made(tmp_path_factory, environment):
    """Return the folder of the results of each order."""
    folder = tmp_path_factory.mktemp("orders")
    (folder / "in.fa").write_text(fasta([*RECORDS, ("twin", RECORDS[5][1]), ("bad", "")]))
    rows = [f"{id},{kind},f{int(id[1:]) % 7}\n" for id, kind in KINDS.items()]
    (folder / "labels.csv").write_text("id,kind,family\n" + "".join(rows))
    desk = Desk(folder, environment)
    for order, output in (("input", "parquet"), ("shard", "parquet_dataset")):
        config = {"run": order, "inputs": "in.fa", "workload": "composition", "order": order}
        more = {"outputs": output, "shards": {"cost": 300}, "device": "cpu"}
        (folder / f"{order}.yaml").write_text(yaml.safe_dump(config | more | STEPS))
        desk.type("featuremill", "run", f"{order}.yaml", "--cores", "2")
    results = {order: folder / "results" / order for order in ("input", "shard")}
    ids = pd.read_parquet(results["shard"] / "embeddings")["id"].tolist()
    assert sorted(ids) == sorted([*KINDS, "twin"]) and ids != [*KINDS, "twin"]
    return results


def rows(path):
    text = path.read_text("utf-8").replace("results/input", "results/shard")
    return sorted(csv.DictReader(text.splitlines(), delimiter="\t"), key=lambda row: row["id"])


def both(made, read):
    return [read(folder) for folder in made.values()]


@pytest.mark.parametrize("name", ["kind.tsv", "kind.missing.tsv"])
def test_a_head_predicts_the_same(made, name):
    ours, theirs = both(made, lambda folder: rows(folder / "predictions" / name))
    assert len(ours) == len(theirs) > 0
    for mine, yours in zip(ours, theirs, strict=True):
        assert mine.keys() == yours.keys()
        for key, text in mine.items():
            if key.startswith("score_"):  # the order of rows moves where a fit ends a little
                assert float(text) == pytest.approx(float(yours[key]), rel=1e-3)
            else:
                assert text == yours[key]


@pytest.mark.parametrize("name", ["near.tsv", "near.missing.tsv"])
def test_labels_are_transferred_alike(made, name):
    ours, theirs = both(made, lambda folder: rows(folder / "transfer" / name))
    assert ours == theirs and ours


def test_groups_are_pooled_alike(made):
    ours, theirs = both(made, lambda folder: rows(folder / "groups/families.members.tsv"))
    assert ours == theirs and len(ours) == 62
    tables = both(made, lambda folder: pd.read_parquet(folder / "groups/families.parquet"))
    ours, theirs = (table.set_index("group").sort_index() for table in tables)
    assert ours[["members", "missing"]].equals(theirs[["members", "missing"]])
    for pool in ("mean", "max"):
        assert np.allclose(np.stack(ours[pool]), np.stack(theirs[pool]), rtol=1e-6)


def test_an_autoencoder_names_the_records_whose_vectors_it_saw(made):
    """What features.tsv says of an id is what the id's own vector gives."""
    tables = pd.read_parquet(made["input"] / "embeddings.parquet").set_index("id")["composition"]
    for folder in made.values():
        sae = folder / "autoencoders/sae"
        weights = load_file(sae / "sae_weights.safetensors")
        for row in pd.read_csv(sae / "features.tsv", sep="\t").itertuples():
            centred = np.asarray(tables[row.id], np.float32) - weights["b_dec"]
            before = centred @ weights["W_enc"] + weights["b_enc"]
            assert row.feature in np.argsort(before)[-2:]
            assert before[row.feature] == pytest.approx(row.value, abs=1e-5)
