"""T5s, which compute proteins of any length whole, beside transformers and in bounded memory."""

import argparse
import json
import random
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from encoder_models import Reference, all_layers, write
from esm2_models import relative_l2
from living import Living
from plans import plan_json
from programs import Desk

from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.doctor import findings
from featuremill.store.files import write_json
from featuremill.workload.compute import values_of
from featuremill.workloads import encoder
from featuremill.workloads.encoder import memory, t5

CPU, MIB = cpu(), 2**20
FP32_L2 = 1e-5
WIDE = {"d_model": 64, "d_kv": 8, "d_ff": 128, "num_heads": 8, "num_layers": 2}


def protein(length, seed=0):
    return "".join(random.Random(seed).choices("ACDEFGHIKLMNPQRSTVWY", k=length))


def loaded(folder, **options):
    """Return a model and its resolved options."""
    given = {"model": str(folder), "alphabet": "proteins", "dtype": "fp32"} | options
    wanted = encoder.Options.model_validate(given)
    ahead = encoder.weights_ahead(wanted)
    resolved = encoder.resolve(wanted, CPU, ahead)
    return encoder.load(resolved, [CPU], ahead), resolved, ahead


@pytest.mark.parametrize("name", ["prott5", "ankh"])
def test_long_proteins_are_those_of_transformers_in_every_layer(tmp_path, monkeypatch, name):
    folder = write(tmp_path / name, name)
    letters = [protein(3000), protein(1300, 1), protein(1250, 2), protein(700, 3)]
    reference = Reference(folder, name)
    model, *_ = loaded(folder)
    monkeypatch.setitem(t5.MOST_SCORES, "cpu", 2**20)  # 87 tokens at a time, and 67 with filling
    far = 0.0
    for text, ours in zip(letters, all_layers(model, letters, most_filling=1.0), strict=True):
        theirs = reference.hidden_states(text)
        assert len(ours) == len(theirs) == 4
        far = max(far, *map(relative_l2, ours, theirs))
    print(f"{name}: relative L2 of 3,000 residues at most {far:.1e}")
    assert far <= FP32_L2


def test_a_run_computes_whole_proteins_unless_it_is_told_to_cut(tmp_path, environment):
    folder = write(tmp_path / "prott5", "prott5")
    (tmp_path / "in.fa").write_text(f">long\n{protein(3000)}\n>short\nMKV\n")
    options = {"model": "prott5", "alphabet": "proteins", "dtype": "fp32"}
    desk, reference = Desk(tmp_path, environment), Reference(folder, "prott5")
    for run, more, seen in (("whole", {}, 3000), ("cut", {"max_residues": 1023}, 1023)):
        config = {"run": run, "inputs": "in.fa", "workload": "encoder", "options": options | more}
        (tmp_path / f"{run}.yaml").write_text(yaml.safe_dump(config | {"device": "cpu"}))
        desk.type("featuremill", "run", f"{run}.yaml", "--quiet")
        cost = json.loads((tmp_path / f"results/{run}/plan.json").read_text())["lengths"]
        assert (cost["longest"], cost["costliest"]) == (3000, seen + 2)
        notes = pd.read_csv(tmp_path / f"results/{run}/notes.tsv", sep="\t")
        cut = [["long", "longer than 1023 residues, truncated"]] if more else []
        assert notes[["id", "note"]].values.tolist() == cut
        rows = pd.read_parquet(tmp_path / f"results/{run}/embeddings.parquet").set_index("id")
        theirs = reference.hidden_states(protein(3000)[:seen])[3][:-1].mean(0)
        ours = torch.tensor(rows.loc["long", "mean_layer_3"])
        assert relative_l2(ours, theirs) <= FP32_L2


def test_a_limit_that_is_asked_for_counts_and_refusing_needs_one(tmp_path):
    folder = write(tmp_path / "ankh", "ankh")
    _, whole, _ = loaded(folder)
    assert (whole.long, whole.max_residues) == ("full", None)
    assert whole == loaded(folder, long="full")[1]  # one recipe
    _, cut, _ = loaded(folder, max_residues=1023)
    assert (cut.long, cut.max_residues) == ("truncate", 1023)
    with pytest.raises(UserError, match="takes records of any length; give max_residues"):
        loaded(folder, long="refuse")
    assert loaded(folder, long="refuse", max_residues=9)[1].max_residues == 9


@pytest.mark.parametrize("name", ["prott5", "ankh"])
def test_its_memory_grows_with_the_length_and_is_told(tmp_path, name):
    """Of all that lives at once while records are computed, and of weights."""
    model, options, ahead = loaded(write(tmp_path / name, name, **WIDE))
    (network,) = (
        each for each in vars(model.encoder).values() if isinstance(each, torch.nn.Module)
    )
    held = sum(each.nbytes for each in network.parameters())
    peaks = []
    for length in (1000, 4000):
        with Living() as living:
            values_of(encoder, model, [protein(length).encode()], length + 1)
        peaks.append(held + living.peak)
        told = encoder.memory_mb(options, CPU, ahead, length + 1) - memory.CPU_PROCESS_MB
        assert told == pytest.approx(peaks[-1] / MIB, rel=0.3)
    assert peaks[1] < 4 * peaks[0]


def test_what_the_longest_record_takes_is_told_before(tmp_path, environment, monkeypatch):
    write(tmp_path / "ankh", "ankh", d_ff=4096)
    (tmp_path / "in.fa").write_text(f">long\n{protein(1_500_000)}\n>short\nMKV\n")
    config = {"inputs": "in.fa", "workload": "encoder", "run": "far"}
    config["options"] = {"model": "ankh", "alphabet": "proteins"}
    (tmp_path / "far.yaml").write_text(yaml.safe_dump(config))
    asked = ("featuremill", "estimate", "far.yaml", "--tokens-per-second", "9", "--device")
    desk = Desk(tmp_path, environment)
    said = " ".join(desk.type(*asked, "T4").out.split())
    assert "The longest record is a batch of 1,500,002 tokens alone, which takes about " in said
    assert "; Tesla T4 has 15,360 MB. If it fails, the others are computed; set max_res" in said
    assert "longest record is" not in " ".join(desk.type(*asked, "H200").out.split())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/far").mkdir(parents=True)
    lengths = {"total": 9, "longest": 9, "costliest": 9000}
    write_json(tmp_path / "results/far/plan.json", plan_json(run="far", lengths=lengths))
    arguments = argparse.Namespace(config=Path("far.yaml"), workload="", set=None, model="")
    arguments.results = Path("results")
    subject = findings.subject_of(arguments)
    assert subject.need(subject.weights(), CPU).batch_tokens == 9000
