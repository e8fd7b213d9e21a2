"""The contract, over every built-in workload."""

import math
import os
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from esm2_models import ROOT, demo_proteins, fair_esm, save_fair_esm

import featuremill
from featuremill.base import entry_points
from featuremill.base.arrays import not_finite
from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.workload import (
    Device,
    EstimatesMemory,
    Workload,
    find_workload,
    plugin_errors,
)
from featuremill.workload import weights as weights_verb
from featuremill.workload.batches import make_batches
from featuremill.workload.compute import values_of
from featuremill.workload.plugin_errors import refuse_answer

CPU = cpu()
OURS = list(entry_points.own(plugin_errors.GROUP))
OPTIONS = {
    "composition": [{}, {"hydropathy": False}],
    "contacts": [],  # needs a regression: tests/test_contacts.py
    "encoder": [],  # needs a folder: tests/test_encoder_workload.py
    "llm_json": [],  # as does this: tests/test_llm_json.py
    "geneformer": [],  # needs cells as well: tests/test_geneformer.py
    "esmc": [],  # needs a checkpoint: tests/test_esmc.py
    "esm2": [
        {"dtype": "fp32"},
        {"dtype": "fp32", "layers": [0, -1], "pool": ["mean", "bos"], "per_residue": True},
        {"dtype": "fp32", "long": "chunk", "max_residues": 50, "chunk_overlap": 20},
    ],
    "imported": [],  # computes nothing: tests/test_store.py
    "pac": [],  # reads recordings: tests/test_pac.py
    "scores": [
        {"dtype": "fp32"},
        {"dtype": "fp32", "variants": "none", "likelihood": "one_pass", "long": "full"},
    ],
}
CASES = [(name, options) for name in OURS for options in OPTIONS[name]]
NAMES = [name for name in vars(Workload) if not name.startswith("_")]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def ready(request, cache):
    """Return (workload, resolved options, weights) of a case."""
    name, options = request.param
    workload = find_workload(name)
    asked = workload.Options(**options)
    model = workload.weights(asked)
    found = weights_verb.weights_of(weights_verb.convert(model, cache, name)) if model else None
    return workload, workload.resolve(asked, CPU, found), found


@pytest.mark.parametrize("name", OURS)
def test_importing_costs_nothing(name):
    code = (
        f"import sys; from featuremill.workload import find_workload; find_workload({name!r})\n"
        "heavy = {'torch', 'esm', 'safetensors', 'transformers', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize("name", OURS)
def test_has_every_name_and_describes_its_options(name):
    workload = find_workload(name)
    missing = [part for part in [*NAMES, "VERSION", "Options"] if not hasattr(workload, part)]
    assert not missing
    assert workload.VERSION and isinstance(workload.VERSION, str)
    described = workload.Options.descriptions()
    assert described.keys() == workload.Options.model_fields.keys()
    assert all(text.endswith(".") for text in described.values())
    assert workload.Options.model_config["extra"] == "forbid"
    assert workload.Options.model_config["frozen"]


@pytest.mark.parametrize("ready", CASES, indirect=True, ids=str)
def test_resolved_options_survive_json_and_resolving_again(ready):
    workload, options, found = ready
    again = workload.Options.model_validate_json(options.model_dump_json())
    assert again == options
    assert workload.resolve(again, CPU, found) == options
    assert "auto" not in options.model_dump().values()


@pytest.mark.parametrize("ready", CASES, indirect=True, ids=str)
def test_runs_what_it_reads_and_delivers_its_schema(ready, tmp_path):
    workload, options, found = ready
    proteins = demo_proteins(8, 300)
    fasta = tmp_path / "in.fa"
    fasta.write_text("".join(f">{i} text\n{p}\n" for i, p in enumerate(proteins)) + ">x\nM1\n")
    *good, bad = workload.records([fasta], options)
    assert [record.payload.decode() for record in good] == proteins
    assert bad.reason and not any(record.reason for record in good)
    costs = [workload.cost(record.payload, options) for record in good]
    assert all(
        isinstance(cost, int) and cost >= 1 for cost in [*costs, workload.cost(b"M", options)]
    )
    assert workload.batch_cost(options, CPU) >= max(costs)
    schema = workload.schema(options, found)
    model = workload.load(options, [CPU], found)
    values = values_of(workload, model, [record.payload for record in good], max(costs))
    refuse_answer("it", values, len(good), schema)
    assert not not_finite(values).any()


@pytest.mark.parametrize("ready", CASES, indirect=True, ids=str)
def test_a_record_does_not_depend_on_its_batch(ready):
    workload, options, found = ready
    model = workload.load(options, [CPU], found)
    payloads = [p.encode() for p in (*demo_proteins(8, 150), "M", "MK", "X")]

    def run(chosen):
        return values_of(workload, model, chosen, 4096)

    together = run(payloads)
    for start, end in ((0, 1), (3, 5), (8, 9), (9, 11), (10, 11)):
        assert run(payloads[start:end]).equals(together.slice(start, end - start))
    assert run(payloads[::-1]).to_pylist() == together.to_pylist()[::-1]


def test_unknown_workload_names_the_known_ones():
    with pytest.raises(UserError, match=", ".join(OURS)):
        find_workload("esm3")


def test_what_a_workload_offers_besides_is_seen_on_it_and_costs_no_torch():
    """ESM-2 tells what it takes by the metadata of weights alone, which need not be there yet."""
    told = [(isinstance(w, EstimatesMemory), hasattr(w, "ways")) for w in map(find_workload, OURS)]
    assert dict(zip(OURS, told, strict=True)) == {
        "composition": (False, False),
        "contacts": (True, False),
        "encoder": (True, False),
        "esm2": (True, True),
        "esmc": (True, True),
        "llm_json": (True, False),
        "geneformer": (True, False),
        "imported": (False, False),
        "pac": (False, False),
        "scores": (True, False),
    }
    esm2 = find_workload("esm2")
    asked = esm2.Options(model="esm2_t33_650M_UR50D")
    weights = esm2.weights_ahead(asked)
    assert (weights.name, weights.sha256) == (asked.model, "")
    gpu = Device("cuda", "GPU-0", "an H200", has_bf16=True, num_multiprocessors=132)
    options = esm2.resolve(asked, gpu, weights)
    small, large = (esm2.memory_mb(options, gpu, weights, cost) for cost in (1024, 16_896))
    # In 16 bits, beside what the process and a batch take.
    assert esm2.weights_mb(weights) / 2 < small < large < 1.25 * esm2.weights_mb(weights)


def test_composition_counts_letters():
    workload = find_workload("composition")
    model = workload.load(workload.Options(), [CPU], None)
    [row, unknown] = values_of(workload, model, [b"AAWX", b"X"], 100).to_pylist()
    assert row["composition"][0] == 0.5 and row["composition"][18] == 0.25
    assert math.isclose(row["hydropathy"][0], (1.8 + 1.8 - 0.9) / 4, rel_tol=1e-6)
    assert unknown == {"composition": [0.0] * 20, "hydropathy": [0.0]}


# featuremill.embed


@pytest.fixture
def cached(cache, monkeypatch):
    monkeypatch.setenv("FEATUREMILL_CACHE", str(cache))


@pytest.mark.filterwarnings("ignore:.* are longer than")
def test_embed_gives_the_numbers_of_the_workload(cached, cache):
    proteins = demo_proteins(12, 600)
    seen = []
    vectors = featuremill.embed(
        [*proteins, proteins[0].lower() + "*"],
        dtype="bf16" if CPU.has_bf16 else "fp32",
        batch_tokens=2000,
        progress=lambda done, of: seen.append((done, of)),
    )
    assert vectors.shape == (13, 320) and vectors.dtype == np.float32
    assert np.array_equal(vectors[0], vectors[12])
    assert len(seen) > 1 and seen[-1] == (12, 12) and seen == sorted(seen)
    esm2 = find_workload("esm2")
    found = weights_verb.weights_of(weights_verb.convert("mill_t6_8M", cache))
    options = esm2.resolve(esm2.Options(batch_tokens=2000), CPU, found)
    model = esm2.load(options, [CPU], found)
    payloads = sorted((p.encode() for p in proteins), key=sha256)
    costs = [esm2.cost(payload, options) for payload in payloads]
    for rows in make_batches(costs, 2000):
        chosen = [payloads[row] for row in rows]
        values = values_of(esm2, model, chosen, 2000).column(0)
        for payload, value in zip(chosen, values, strict=True):
            assert np.array_equal(vectors[proteins.index(payload.decode())], value.values)


def sha256(payload):
    import hashlib

    return hashlib.sha256(payload).digest()


def test_embed_says_what_it_cuts_off(cached):
    long = "MKVLAAGIVG" * 110
    with pytest.warns(UserWarning, match="1 of 2 sequences are longer than 1022 residues"):
        cut = featuremill.embed([long, "MKV"], dtype="fp32")
    assert np.array_equal(cut[:1], featuremill.embed([long[:1022]], dtype="fp32"))
    assert not np.array_equal(cut[:1], featuremill.embed([long], dtype="fp32", long="full"))


def test_embed_takes_no_file(cached):
    with pytest.raises(
        UserError, match=r"one string; .* featuremill\.compute\('proteins\.fasta', "
    ):
        featuremill.embed("proteins.fasta")


def test_embed_takes_no_mapping(cached):
    with pytest.raises(UserError, match="this is a mapping"):
        featuremill.embed({"insulin": "GIVEQCCTSI"})


@pytest.mark.filterwarnings("ignore:.* are longer than")
def test_embed_options(cached):
    protein = demo_proteins(1)[0]
    first = featuremill.embed([protein], layers=0, pool="bos", dtype="fp32")
    assert np.array_equal(first, featuremill.embed(["M"], layers=0, pool="bos", dtype="fp32"))
    cut = featuremill.embed([protein], max_residues=20, dtype="fp32")
    assert np.array_equal(cut, featuremill.embed([protein[:20]], dtype="fp32"))
    assert featuremill.embed([]).shape == (0, 320)
    assert np.array_equal(
        featuremill.embed(["M"], layers=np.int64(2)), featuremill.embed(["M"], layers=2)
    )


@pytest.mark.parametrize(
    "sequences, options, part",
    [
        (["MK", "M1"], {}, r"sequences\[1\]: not an amino acid: '1' at residue 2"),
        (["MK", ""], {}, r"sequences\[1\]: empty sequence"),
        (["MK", None], {}, r"sequences\[1\]: this is of type NoneType"),
        ("MK", {}, "one string"),
        ({"MK", "MV"}, {}, "of type set; give a list"),
        (pd.DataFrame({"ID": ["a"], "SEQ": ["MKV"]}), {}, "of type DataFrame; give a list"),
        (["MK"], {"layers": 9}, "no layer 9"),
        (["MK"], {"pool": "median"}, "pool"),
        (["MK"], {"pool": None}, "embed: pool: this is empty"),
        (["MK"], {"model": "esm2_t6_8M"}, "'esm2_t6_8M_UR50D'"),
    ],
)
def test_embed_says_what_is_wrong(cached, sequences, options, part):
    with pytest.raises(UserError, match=part):
        featuremill.embed(sequences, **options)


def test_embed_gives_several_layers_pools_and_residues_by_the_names_of_columns(cached):
    proteins = [*demo_proteins(3), "MKV"]
    proteins = [protein[:300] for protein in proteins] * 2  # equal ones are delivered twice
    last = featuremill.embed(proteins, dtype="fp32")
    several = featuremill.embed(proteins, layers=[3, -1], pool=["mean", "bos"], dtype="fp32")
    names = [f"{pool}_layer_{layer}" for layer in (3, 6) for pool in ("mean", "bos")]
    assert list(several) == names
    assert np.array_equal(several["mean_layer_6"], last)
    assert all(several[name].shape == (8, 320) for name in names)
    residues = featuremill.embed(proteins, pool="none", per_residue=True, dtype="fp32")
    assert [matrix.shape for matrix in residues] == [(len(protein), 320) for protein in proteins]
    assert {matrix.dtype for matrix in residues} == {np.dtype(np.float16)}
    both = featuremill.embed(proteins, per_residue=True, output_dtype="float32", dtype="fp32")
    assert list(both) == ["mean_layer_6", "residues_layer_6"]
    assert np.array_equal(both["mean_layer_6"], last)
    for vector, exact, matrix in zip(last, both["residues_layer_6"], residues, strict=True):
        assert np.array_equal(exact.astype(np.float16), matrix)
        assert np.allclose(exact.mean(axis=0), vector, atol=1e-4)
    (one,) = featuremill.embed(["MKV"], layers=[0], dtype="fp32").items()
    assert one[0] == "mean_layer_0" and one[1].shape == (1, 320)
    assert featuremill.embed([], pool="none", per_residue=True) == []


def test_embed_loads_a_model_once_and_forgets_it_when_told(cached, monkeypatch, tmp_path):
    from featuremill import api
    from featuremill.workloads import esm2

    loads = []
    load = esm2.load
    monkeypatch.setattr(esm2, "load", lambda *given: loads.append(given) or load(*given))
    featuremill.forget_model()
    first = featuremill.embed(["MKV"], dtype="fp32")
    assert np.array_equal(featuremill.embed(["MKV"], dtype="fp32"), first) and len(loads) == 1
    monkeypatch.setattr(weights_verb, "convert", None)  # nor are its weights looked at again
    assert not np.array_equal(featuremill.embed(["MKV"], layers=2, dtype="fp32"), first)
    assert np.array_equal(featuremill.embed(["MKV"], dtype="fp32"), first) and len(loads) == 1
    (kept,) = (weakref.ref(loaded.model.encoder) for loaded in api._loaded)
    featuremill.forget_model()
    assert kept() is None
    monkeypatch.undo()
    monkeypatch.setenv("FEATUREMILL_CACHE", str(tmp_path))
    monkeypatch.setattr(esm2, "load", lambda *given: loads.append(given) or load(*given))
    path = save_fair_esm(fair_esm(1, 16, 2), tmp_path / "my.pt")
    narrow = featuremill.embed(["MKV"], str(path), dtype="fp32")
    assert np.array_equal(featuremill.embed(["MKV"], str(path), dtype="fp32"), narrow)
    assert len(loads) == 2
    save_fair_esm(fair_esm(2, 16, 2), path)
    assert not np.array_equal(featuremill.embed(["MKV"], str(path), dtype="fp32"), narrow)
    assert len(loads) == 3, "another file of the same name is another model"


def test_importing_featuremill_costs_nothing():
    code = (
        "import sys, featuremill; featuremill.SNAKEFILE\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'pandas', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(featuremill.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
