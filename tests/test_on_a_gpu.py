"""Whole programs on a GPU: every workload beside its twin on the CPU, a run that is killed, a
training. The same tests on a CPU are slow ones: they show that the tests are right.

Each takes less than 2 GB of a GPU's memory and 30 s with four threads.
"""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import decoder_models
import encoder_models
import esmc_models
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from bench import elders
from conftest import ROOT
from esm2_models import demo_proteins
from gpu_local import OPTIONS, PACKAGE
from programs import NO_REPORT, Desk, Verbs, random_records, wait_for, write_fasta
from safetensors.torch import load_file

import featuremill
from featuremill.base import devices

EXAMPLES = ROOT / "config" / "examples"
ON_BOTH = pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)],
)
BOUNDS = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 5e-3}
"""Relative L2 against the CPU's fp32, as of the networks in test_esm2.py."""
HALF_BOUNDS = {**BOUNDS, "fp32": 2e-4}
"""Of what is stored in half precision: a value between two numbers goes either way."""
PROTEINS = {f"p{number}": residues for number, residues in enumerate(demo_proteins(12))}
LONG = {"short": "MKTAYIAK", "long": "MKTAYIAKQR" * 150}


def shortest(count):
    return dict(sorted(PROTEINS.items(), key=lambda each: len(each[1]))[:count])


def bases(count):
    rng = random.Random(0)
    return {
        f"n{number}": "".join(rng.choices("ACGT", k=150 + 7 * number)) for number in range(count)
    }


def from_example(name, folder):
    """Return the folder that a script of config/examples makes."""
    subprocess.run([sys.executable, EXAMPLES / f"{name}.py", folder], check=True)
    return folder


def esmc(folder):
    esmc_models.esmc(4, 192, 512).save_pretrained(folder / "esmc")
    return PROTEINS, "esmc", {"model": str(folder / "esmc")}, BOUNDS


def contacts(folder):
    name = folder / "regression.pt"
    subprocess.run([sys.executable, EXAMPLES / "random_regression.py", name], check=True)
    few = shortest(3)
    options = {"model": "mill_t6_8M", "regression": str(name), "pairs": "none"}
    options |= {"output_dtype": "float32", "attention_of": [*few][:1]}
    return few, "contacts", options, BOUNDS


def geneformer(folder, perturb, **more):
    place = from_example("geneformer", folder / "cells")
    options = {"model": "model", "vocabulary": "tokens.json", "medians": "medians.json"}
    options = {key: str(place / name) for key, name in options.items()}
    return place / "cells.h5ad", "geneformer", {**options, "perturb": perturb, **more}, BOUNDS


def deletions(folder):
    """Shifts are differences of two vectors that are nearly equal."""
    inputs, workload, options, _ = geneformer(folder, "delete")
    return inputs, workload, {**options, "genes": "all"}, {"fp32": 1e-3}


def pac(folder):
    place = from_example("pac", folder / "made")
    options = {"phase_bands": [[2, 4], [4, 8]], "amplitude_bands": [[30, 50], [50, 70]]}
    options |= {"segment_seconds": 10, "permutations": 200}
    return place / "coupled.npz", "pac", options, {None: 1e-5}


def llm_json(folder):
    place = from_example("llm_json", folder / "llm")
    options = {"model": "model", "prompt": "prompt.jinja", "json_schema": "schema.json"}
    options = {key: str(place / name) for key, name in options.items()}
    more = {"temperature": 0, "max_tokens": 64}
    return place / "notes.csv", "llm_json", {**options, **more}, {"fp32": 1e-5}


def replies_together(folder):
    """Of several rows at once, whose last bits may choose other tokens: of these they do not."""
    inputs, workload, options, bounds = llm_json(folder)
    return inputs, workload, {**options, "batch_rows": 8}, bounds


def ensemble(folder):
    paths = [folder / f"esm1v_{seed}.pt" for seed in (1, 2)]
    for seed, path in enumerate(paths):
        elders.save_elder(path, seed=seed, has_norm=False)
    options = {"model": [str(path) for path in paths], "variants": "all", "marginals": "masked"}
    return {"one": PROTEINS["p0"][:40]}, "scores", options, HALF_BOUNDS


def decoder(folder):
    decoder_models.write(folder / "llama", "llama")
    options = {"model": str(folder / "llama"), "alphabet": "texts", "pool": ["mean", "last"]}
    texts = pd.DataFrame({"id": [*"abcde"], "text": decoder_models.TEXTS})
    return texts, "encoder", options, BOUNDS


def encoder(kind):
    def case(folder):
        encoder_models.write(folder / kind, kind)
        alphabet = encoder_models.KINDS[kind].alphabet
        inputs = bases(12) if alphabet == "nucleotides" else dict(list(PROTEINS.items())[:6])
        return inputs, "encoder", {"model": str(folder / kind), "alphabet": alphabet}, BOUNDS

    return case


LAYERS = {"layers": [0, 3, -1], "pool": ["mean", "max", "std", "bos"]}
RESIDUES = {"pool": ["none"], "per_residue": True, "long": "chunk"}
SCORES = {"model": "mill_t6_8M", "variants": "all", "marginals": ["wildtype", "masked"]}
SCORES |= {"likelihood": ["one_pass", "pseudo"]}
VECTORS = {"gene_vectors": True, "output_dtype": "float32"}
CASES = {
    "esm2": lambda _: (PROTEINS, "esm2", LAYERS, BOUNDS),
    "esm2_residues": lambda _: (LONG, "esm2", RESIDUES, HALF_BOUNDS),
    "esmc": esmc,
    "scores": lambda _: (shortest(1), "scores", SCORES, HALF_BOUNDS),
    "contacts": contacts,
    "cells": lambda folder: geneformer(folder, "none"),
    "deletions": deletions,
    "pac": pac,
    "llm_json": llm_json,
    "replies_together": replies_together,
    "ensemble": ensemble,
    "genes": lambda folder: geneformer(folder, "none", **VECTORS),
    "decoder": decoder,
    **{f"encoder_{kind}": encoder(kind) for kind in encoder_models.KINDS},
}


def numbers_and_words(value):
    """Yield the numbers of a value of any depth as (True, number), other things as (False, it)."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | np.ndarray):
        for each in value:
            yield from numbers_and_words(each)
    else:
        is_number = isinstance(value, float | np.floating)
        yield is_number, float(value) if is_number else str(value)


def differences(found, expected):
    """Return the relative L2 of each column of floats; the rest has to be equal."""
    assert list(found.index) == list(expected.index)
    l2 = {}
    for column in expected.columns:
        one, other = (list(numbers_and_words(list(of[column]))) for of in (found, expected))
        assert [word for is_number, word in one if not is_number] == [
            word for is_number, word in other if not is_number
        ], column
        ours, theirs = (np.array([n for is_number, n in of if is_number]) for of in (one, other))
        if theirs.size:
            assert np.array_equal(np.isnan(ours), np.isnan(theirs)), column
            ours, theirs = np.nan_to_num(ours), np.nan_to_num(theirs)
            l2[column] = float(np.linalg.norm(ours - theirs) / (np.linalg.norm(theirs) or 1))
    return l2


@ON_BOTH
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.filterwarnings("ignore:.* longer than ", "ignore:.* is an ESM-2")
def test_a_workload_equals_its_cpu_twin(case, device, tmp_path, record_property):
    inputs, workload, options, bounds = case(tmp_path)
    exact = options | ({"dtype": "fp32"} if None not in bounds else {})
    expected = featuremill.compute(inputs, workload, exact, device="cpu")
    has_bf16 = device == "cuda" or devices.cpu().has_bf16
    for dtype, bound in bounds.items():
        if (dtype == "fp16" and device == "cpu") or (dtype == "bf16" and not has_bf16):
            continue
        asked = options | ({"dtype": dtype} if dtype else {})
        try:
            # Tests side by side compute on one GPU, and a lease lasts as long as its process.
            found = featuremill.compute(inputs, workload, asked, device=device, lease=False)
        finally:
            featuremill.forget_model()
        l2 = differences(found, expected)
        record_property(dtype or "l2", float(f"{max(l2.values(), default=0):.1e}"))
        assert max(l2.values(), default=0) <= bound, (dtype, l2)


@ON_BOTH
def test_a_run_that_is_killed_gives_the_bits_of_a_whole_one(device, tmp_path, environment):
    """One shard in one job, beside many shards in three slots of one GPU, killed at the first
    receipt."""
    records = enumerate(demo_proteins(60))
    write_fasta(tmp_path / "in.fasta", {f"p{n}": residues for n, residues in records})
    desk = Desk(tmp_path, {**environment, "FEATUREMILL_QUIET": ""})
    for name, cost in (("whole", 10**9), ("killed", 5_000)):
        config = {"run": name, "inputs": "in.fasta", "workload": "esm2", "device": device}
        config |= {"shards": {"cost": cost}, "outputs": "parquet"}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))

    def words(name, jobs):
        kind = ["--resources", f"gpu={jobs}"] if device == "cuda" else []
        return ["run", f"{name}.yaml", "--cores", str(2 * jobs), *kind]

    desk.type("featuremill", *words("whole", 1), "--", NO_REPORT)
    desk.environment = {**desk.environment, "FEATUREMILL_SLOTS_PER_GPU": "3"}
    receipts = tmp_path / "results" / "killed" / "receipts"
    started = dict.fromkeys(("stderr", "stdout"), subprocess.DEVNULL) | {"start_new_session": True}
    with desk.start("featuremill", *words("killed", 3), "--", NO_REPORT, **started) as running:
        wait_for(lambda: any(receipts.rglob("*.json")) or running.poll() is not None)
        os.killpg(running.pid, signal.SIGKILL)
    before = {path: path.read_bytes() for path in receipts.rglob("*.json")}
    assert before and not (tmp_path / "results" / "killed" / "manifest.json").exists()
    desk.type("featuremill", *words("killed", 3), "--", NO_REPORT)
    assert all(path.read_bytes() == kept for path, kept in before.items())
    assert len(list(receipts.rglob("*.json"))) > 3
    (ids, one), (others, other) = (
        featuremill.load_matrix(tmp_path / "results" / name) for name in ("whole", "killed")
    )
    assert list(ids) == list(others) and np.array_equal(one, other)


SAE = ["--features", "48", "--k", "4", "--batch", "64", "--steps", "100", "--held-out", "0.2"]


def training(folder, environment, device, name, ranks=1):
    """Train an autoencoder; return the exit status and what was said."""
    words = ["sae", "train", "results/test", "--vectors", "mean_layer_6", *SAE, "--output", name]
    words = ["-m", "featuremill", *words, "--device", device, "--gpus", str(ranks)]
    more = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *words], **more, timeout=120)
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def vectors(tmp_path_factory, environment):
    """Return a folder with the results of a run of the bundled model."""
    verbs = Verbs(tmp_path_factory.mktemp("vectors"), environment)
    path = verbs.folder / "w.json"
    verbs("weights", "mill_t6_8M", "--output", path)
    more = ("--weights", path)
    plan = verbs.plan(random_records(200), "esm2", {"model": "mill_t6_8M"}, cost=10**6, more=more)
    verbs.extract(plan)
    verbs("merge", verbs.run_folder.root)
    return verbs.folder


@ON_BOTH
def test_an_autoencoder_is_trained_as_on_a_cpu(device, vectors, environment, record_property):
    for where, name in (("cpu", f"as {device}"), (device, f"on {device}")):
        status, said = training(vectors, environment, where, name)
        assert status == 0, said
    expected, found = (
        load_file(vectors / name / "sae_weights.safetensors")
        for name in (f"as {device}", f"on {device}")
    )
    l2 = {
        name: float(torch.linalg.norm(found[name] - of) / (torch.linalg.norm(of) or 1))
        for name, of in expected.items()
    }
    record_property("l2", l2)
    losses = [
        json.loads(Path(vectors, name, "training.jsonl").read_text().splitlines()[-1])
        for name in (f"as {device}", f"on {device}")
    ]
    record_property("last", losses)
    assert max(l2.values()) < 0.05


@pytest.mark.gpu
def test_two_ranks_on_one_gpu_end_in_one_sentence(vectors, environment, record_property):
    """NCCL takes no two of one GPU; each slot of a lease is one of its own."""
    shared = {**environment, "FEATUREMILL_SLOTS_PER_GPU": "2", "FEATUREMILL_WAIT": "5"}
    shared["CUDA_VISIBLE_DEVICES"] = devices.cuda_devices()[0].uuid
    status, said = training(vectors, shared, "cuda", "two", ranks=2)
    record_property("said", said[-600:])
    assert status and "Traceback" not in said
    assert len([line for line in said.splitlines() if "error: " in line]) == 1


FROM_PYTHON = """
import importlib.util, json, sys
import numpy as np
import featuremill

if __name__ == "__main__":
    where, cores, slots, proteins = json.loads(sys.argv[1])
    options = {"model": "mill_t6_8M", "pool": ["mean", "max"]}
    here = featuremill.compute(proteins, "esm2", options, device=where)
    jobs = featuremill.compute(proteins, "esm2", options, device=where if slots is None else "auto",
        **({"workers": 2} if slots is None else {"gpus": slots}))
    config = {"run": "asked", "inputs": "in.fasta", "workload": "esm2", "options": options,
        "device": where, "outputs": "parquet"}
    try:
        featuremill.run(config, cores=cores, gpus=slots)
    except Exception:
        if importlib.util.find_spec("vl_convert"):
            raise
        # A machine without it draws no report: the results are whole.
    ran = featuremill.load("results/asked").loc[here.index]
    columns = [name for name in here if name.startswith(("mean", "max"))]
    assert columns
    def stacked(table):
        return np.stack([np.concatenate(row) for row in table[columns].to_numpy()])
    first = stacked(here)
    print(json.dumps([float(np.abs(stacked(each) - first).max()) for each in (jobs, ran)]))
"""


@ON_BOTH
def test_python_gives_what_a_run_gives(device, tmp_path, environment, record_property):
    """`compute` in this process, in processes of its own, and `featuremill.run`."""
    proteins = dict(list(PROTEINS.items())[:8])
    write_fasta(tmp_path / "in.fasta", proteins)
    (tmp_path / "script.py").write_text(FROM_PYTHON)
    words = json.dumps([device, 2, 1 if device == "cuda" else None, proteins])
    more = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "script.py", words], **more)
    assert done.returncode == 0, done.stderr[-3000:]
    differences = json.loads(done.stdout)
    record_property("differences", differences)
    assert max(differences) <= (0 if device == "cuda" else 1e-5)


FOREIGN = """
rule all:
    input: "none", expand("{number}.gpu", number=range(4))

rule one:
    output: "{number}.gpu"
    resources: gpu=1, gpu_slots=2
    shell: "python3 gpu.py > {output}"

rule none:
    output: "none"
    shell: "python3 gpu.py > {output}"
"""
ON_ITS_GPU = """
import torch
if torch.cuda.is_available():
    assert float(torch.ones(8, 8, device="cuda").sum()) == 64
    assert torch.cuda.device_count() == 1
    print(torch.cuda.get_device_properties(0).uuid)
"""


@pytest.mark.gpu
def test_jobs_of_any_workflow_get_a_gpu(tmp_path, environment):
    """The executor gpu-local with torch itself in the jobs: two at once on one GPU, and a job
    without `gpu` sees none. Its twin on simulated GPUs is in test_gpu_local.py."""
    (tmp_path / "Snakefile").write_text(FOREIGN)
    (tmp_path / "gpu.py").write_text(ON_ITS_GPU)
    paths = os.pathsep.join([str(PACKAGE / "src"), environment.get("PYTHONPATH", "")])
    only = devices.cuda_devices()[0].uuid
    words = [*OPTIONS, "--resources", "gpu=4", "--gpu-local-devices", only]
    more = {"cwd": tmp_path, "env": {**environment, "PYTHONPATH": paths}}
    command = [sys.executable, "-m", "snakemake", *words]
    done = subprocess.run(command, capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "none").read_text() == ""
    for number in range(4):
        assert only.endswith((tmp_path / f"{number}.gpu").read_text().strip())
    assert done.stderr.count(" has GPU ") == 4
