"""The order of rows changes no result: not of merge (`order: shard`), and not of the input."""

import csv
import random

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from programs import Desk, fasta
from safetensors.numpy import load_file

import featuremill

DRAWN = random.Random(11)
LETTERS = {"virus": "ACDEFGHIKL", "host": "MNPQRSTVWY"}
KINDS = {f"p{n}": ("virus", "host")[n % 2] for n in range(60)}
RECORDS = [
    (id, "".join(DRAWN.choices(LETTERS[kind] + "ACDMNP", k=40))) for id, kind in KINDS.items()
]
EQUAL = [(f"x{n}", "X" * (n + 2)) for n in range(9)]
"""Records of other sequences with equal vectors, all as near to any other record."""
KINDS |= {id: ("virus", "host")[n % 3 == 0] for n, (id, _) in enumerate(EQUAL[:6])}
ALL = [*RECORDS, *EQUAL, ("twin", RECORDS[5][1]), ("bad", "")]
LABELS = {"labels": "labels.csv", "vectors": "composition"}
FAMILIES = {"vectors": "composition", "table": "labels.csv", "column": "family"}
SMALL = {"features": 8, "k": 2, "batch": 16, "steps": 20, "threads": 1}
STEPS = {
    "heads": {
        "kind": {**LABELS, "column": "kind"},
        "size": {**LABELS, "column": "size", "task": "regression"},
    },
    "transfer": {"near": {**LABELS, "column": "kind"}},
    "groups": {"families": {**FAMILIES, "pool": ["mean", "max", "sum"]}},
    "autoencoders": {"sae": {"vectors": "composition", **SMALL}},
}
SURE = {"class": "virus", "recall": 0.9}
MORE_STEPS = {
    "heads": {
        "net": {**LABELS, "column": "kind", "kind": "mlp"},
        "sure": {**LABELS, "column": "kind", "group": "family", "threshold": SURE},
    },
    "maps": {},
}


def made_in_both_orders(folder, environment, steps):
    """Run one config twice, of which one has other orders of records and of results; return the
    folders of the results."""
    results = {}
    for order, output, step in (("input", "parquet", 1), ("shard", "parquet_dataset", -1)):
        here = folder / order
        here.mkdir()
        (here / "in.fa").write_text(fasta(ALL[::step]))
        rows = [f"{id},{kind},f{int(id[1:]) % 7},{id[1:]}\n" for id, kind in KINDS.items()]
        lost = ["absent,virus,f1,1\n", "bad,host,f2,2\n", "lost,host,f2,3\n"]
        (here / "labels.csv").write_text("".join(["id,kind,family,size\n", *rows, *lost]))
        config = {"run": "my", "inputs": "in.fa", "workload": "composition", "order": order}
        config |= {"outputs": output, "shards": {"cost": 300}, "device": "cpu", **steps}
        (here / "my.yaml").write_text(yaml.safe_dump(config))
        Desk(here, environment).type("featuremill", "run", "my.yaml", "--cores", "2")
        results[order] = here / "results" / "my"
    ids = pd.read_parquet(results["shard"] / "embeddings")["id"].tolist()
    wanted = [id for id, _ in ALL[:-1]]
    assert sorted(ids) == sorted(wanted) and ids not in (wanted, wanted[::-1])
    return results


@pytest.fixture(scope="module")
def made(tmp_path_factory, environment):
    """Return the folder of the results of each order."""
    return made_in_both_orders(tmp_path_factory.mktemp("orders"), environment, STEPS)


def both(made, read):
    return [read(folder) for folder in made.values()]


def lines(path):
    """Return the lines of a table, whose order is that of the results."""
    head, *rows = path.read_bytes().splitlines(keepends=True)
    return [head, *sorted(rows)]


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."}


@pytest.mark.parametrize("name", STEPS["heads"])
def test_a_head_is_the_same_to_the_byte(made, name):
    ours, theirs = both(made, lambda folder: files_of(folder / "heads" / name))
    assert {"head.json", "held_out.parquet", "missing.tsv"} < ours.keys()
    for file, content in ours.items():
        assert content == theirs[file], file
    for table in (f"{name}.tsv", f"{name}.missing.tsv"):
        ours, theirs = both(made, lambda folder, t=table: lines(folder / "predictions" / t))
        assert ours == theirs and ours[1:]


def test_labels_are_transferred_alike(made):
    for name in ("near.tsv", "near.missing.tsv"):
        ours, theirs = both(made, lambda folder, name=name: lines(folder / "transfer" / name))
        assert ours == theirs and ours[1:]
    table = (made["input"] / "transfer/near.tsv").read_text("utf-8")
    rows = csv.DictReader(table.splitlines(), delimiter="\t")
    assert {row["distance"] for row in rows if row["id"].startswith("x")} == {"1"}, "all are ties"


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "dot"])
def test_a_search_finds_the_same(made, metric):
    """Also where more records are equally near than are asked for."""
    ids = ["x0", "x7", "p5", "twin", "p0"]
    for k in (1, 2, 5, 12):
        asked = {"k": k, "metric": metric, "column": "composition"}
        ours, theirs = both(made, lambda folder, a=asked: featuremill.search(folder, ids, **a))
        assert ours.equals(theirs) and len(ours) == k * len(ids)


def test_groups_are_pooled_alike(made):
    ours, theirs = both(made, lambda folder: lines(folder / "groups/families.members.tsv"))
    assert ours == theirs and len(ours) == 1 + len(ALL) + 2
    ours, theirs = both(made, lambda folder: (folder / "groups/families.parquet").read_bytes())
    assert ours == theirs


def test_an_autoencoder_names_the_records_whose_vectors_it_saw(made):
    """What features.tsv says of an id is what the id's own vector gives."""
    tables = pd.read_parquet(made["input"] / "embeddings.parquet").set_index("id")["composition"]
    weights = both(made, lambda folder: folder / "autoencoders/sae/sae_weights.safetensors")
    assert weights[0].read_bytes() == weights[1].read_bytes()
    for folder in made.values():
        sae = folder / "autoencoders/sae"
        weights = load_file(sae / "sae_weights.safetensors")
        for row in pd.read_csv(sae / "features.tsv", sep="\t").itertuples():
            centred = np.asarray(tables[row.id], np.float32) - weights["b_dec"]
            before = centred @ weights["W_enc"] + weights["b_enc"]
            assert row.feature in np.argsort(before)[-2:]
            assert before[row.feature] == pytest.approx(row.value, abs=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_networks_thresholds_and_maps_are_the_same_to_the_byte(tmp_path, environment):
    made = made_in_both_orders(tmp_path, environment, MORE_STEPS)
    for name in MORE_STEPS["heads"]:
        test_a_head_is_the_same_to_the_byte(made, name)
    maps = both(made, lambda folder: pq.read_table(folder / "map.parquet").to_pylist())
    ours, theirs = (sorted(rows, key=lambda row: row["id"]) for rows in maps)
    assert ours == theirs and len(ours) == len(ALL) - 1
    assert len({(row["tsne_1"], row["tsne_2"]) for row in ours}) > 50
