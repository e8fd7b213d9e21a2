"""docs/install.md: its table is the one that the code makes; what it says of other systems than
Linux, as far as that can be seen here."""

import json
import os
import sys

from bench import model_table
from conftest import ROOT
from programs import written

from featuremill.__main__ import main

PAGE = (ROOT / "docs" / "install.md").read_text("utf-8")


def test_the_table_of_models_is_made_by_its_command(tmp_path, monkeypatch):
    assert model_table.table() in PAGE
    copy = tmp_path / "install.md"
    copy.write_text(PAGE.replace("| `esm2_t6_8M_UR50D`", "| `an older one`"), "utf-8")
    monkeypatch.setattr(sys, "argv", ["model_table", str(copy)])
    model_table.main()
    assert copy.read_text("utf-8") == PAGE


def test_a_run_goes_through_where_disk_space_cannot_be_taken_ahead(verbs, monkeypatch):
    monkeypatch.chdir(verbs.folder)
    plan = verbs.plan([("a", "MKV"), ("b", "MKLV")])
    root = verbs.run_folder.root

    def run(*words):
        with monkeypatch.context() as elsewhere:
            elsewhere.delattr(os, "posix_fallocate")
            assert main(list(map(str, words))) == 0

    config = {"inputs": "in.fa", "workload": "composition", "shards": {"cost": 1000}}
    run("plan", root, "--replan", "--config", written(config | {"device": "cpu"}))
    again = json.loads(verbs.run_folder.plan.read_text())
    assert again["shards"] == plan["shards"]
    verbs.extract(plan)
    outputs = ("--outputs", "npy", "per_protein_h5")
    run("merge", root, *outputs)
    files = [root / name for name in ("embeddings.npy", "per-protein.h5")]
    found = [file.read_bytes() for file in files]
    verbs("merge", root, *outputs)
    assert [file.read_bytes() for file in files] == found
