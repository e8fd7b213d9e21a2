"""estimate: the answer in one sentence, for records and a model without a config, of a card by any
of its names."""

import json

import pytest
from programs import Desk

RECORDS = "".join(f">p{n}\n{'MKVLAAGIVGL' * (n + 1)}\n" for n in range(28))
MODEL = "esm2_t33_650M_UR50D"


@pytest.fixture
def desk(tmp_path, environment):
    (tmp_path / "my.fa").write_text(RECORDS)
    return Desk(tmp_path, environment)


def ask(desk, *words, status=0):
    return " ".join(desk.type("featuremill", "estimate", *words, status=status).text.split())


@pytest.mark.parametrize(
    ("typed", "card"),
    [
        ("H200", "NVIDIA H200"),
        ("rtx4090", "NVIDIA GeForce RTX 4090"),
        ("RTX3090", "NVIDIA GeForce RTX 3090"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("h100 hbm3", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
    ],
)
def test_the_first_line_is_the_answer_without_a_config(desk, typed, card):
    said = ask(desk, "my.fa", "--model", MODEL, "--device", typed)
    assert said.startswith(f"28 records with {MODEL} on {card}, 1 GPU: about ")
    assert "s). Assumed, not measured. 28 records, 28 distinct; " in said
    assert not (desk.folder / "results").exists() and not list(desk.folder.glob("*.yaml"))


def test_a_name_of_several_cards_says_which_it_took(desk):
    said = ask(desk, "my.fa", "--model", MODEL, "--device", "H100", "--gpus", "1,4")
    assert " on NVIDIA H100 PCIe, 1 GPU: about " in said and "; 4 GPUs: about " in said
    assert "H100 may also be NVIDIA H100 NVL and NVIDIA H100 80GB HBM3: then name" in said


@pytest.mark.parametrize("typed", ["A10G", "rtx 4080", "potato"])
def test_a_card_that_is_not_in_the_table_is_answered_with_the_table(desk, typed):
    said = ask(desk, "my.fa", "--model", MODEL, "--device", typed, status=2)
    assert "A10, RTX A5000" in said and said.endswith("give --tokens-per-second.")
    said = ask(desk, "my.fa", "--device", typed, "--tokens-per-second", "1000")
    assert "At the speed that was given." in said


def test_of_a_config_another_model_and_what_is_done(desk):
    config = {"run": "my", "inputs": "my.fa", "workload": "composition", "device": "cpu"}
    (desk.folder / "my.yaml").write_text(json.dumps(config))
    words = ("my.yaml", "--tokens-per-second", "1000")
    assert ask(desk, *words).startswith("28 records with composition on ")
    said = ask(desk, "my.yaml", "--workload", "esm2", "--model", MODEL, "--cpu-slots", "1")
    assert said.startswith(f"28 records with {MODEL} on ")
    desk.type("featuremill", "run", "my.yaml", "--cores", "1")
    said = ask(desk, "results/my")
    assert said.startswith("Nothing is left to compute of 28 records with composition; what comes")
    config["features"] = {"a": {"workload": config.pop("workload")}}
    del config["device"]
    (desk.folder / "my.yaml").write_text(json.dumps(config | {"run": "two"}))
    said = ask(desk, "my.yaml", "--model", MODEL, status=2)
    assert "it has several models; leave --model and --workload out." in said
