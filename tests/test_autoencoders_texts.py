"""sae on the states of a network of language: cfg.json names the network and the hook, the page
shows tokens in their texts, and a published autoencoder is applied to what it is of alone."""

import csv
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from conftest import ROOT
from programs import Desk, sentence_of
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from featuremill import __main__, features
from featuremill.steps.autoencoders import card, network, origin, texts
from featuremill.workloads import encoder
from featuremill.workloads.encoder import architectures

PLACE = "results/texts_sae/autoencoders/tokens"
ODD = "Größer <script>alert(1)</script> & naïve   fever — 12 days, “worse” at night. " * 3


@pytest.fixture(scope="module")
def desk(tmp_path_factory, environment):
    """Return a folder in which config/examples/texts_sae.yaml was computed, with two odd texts."""
    folder = tmp_path_factory.mktemp("texts")
    shutil.copytree(ROOT / "config", folder / "config")
    desk = Desk(folder, environment)
    code = "import runpy; runpy.run_path('config/examples/llm_json.py', run_name='__main__')"
    desk.type("-c", code, "random_llm")
    with (folder / "random_llm/notes.csv").open("a", newline="") as file:
        csv.writer(file).writerows([["odd", ODD], ["lines", "Seen\nagain\tin a week"]])
    desk.type("featuremill", "run", "config/examples/texts_sae.yaml", "--cores", "1")
    return desk


@pytest.fixture
def run(desk, monkeypatch):
    monkeypatch.chdir(desk.folder)
    return desk.folder / "results/texts_sae"


def test_cfg_json_names_the_network_and_the_hook(desk, run):
    config = json.loads((desk.folder / PLACE / "cfg.json").read_text())
    assert config["architecture"] == "jumprelu" and "k" not in config
    told = config["metadata"]
    assert (told["model_name"], told["hook_name"]) == ("model", "blocks.0.hook_resid_post")
    shapes = {n: tuple(t.shape) for n, t in load_file(desk.folder / PLACE / card.WEIGHTS).items()}
    assert shapes == network.sizes(64, 64, "jumprelu")


def test_the_last_state_is_at_no_hook_and_other_networks_have_none(monkeypatch):
    options = SimpleNamespace(layers=(0, 1, 4))

    def hooks(is_causal):
        facts = SimpleNamespace(architecture=SimpleNamespace(is_causal=is_causal), num_layers=4)
        monkeypatch.setattr(architectures, "facts_of", lambda _: facts)
        return encoder.hooks(options, SimpleNamespace(path=None))

    found = hooks(is_causal=True)
    of_tokens = {name: hook for name, hook in found.items() if name.startswith("tokens")}
    first = ["blocks.0.hook_resid_pre", "blocks.0.hook_resid_post"]
    assert of_tokens == {f"tokens_layer_{n}": hook for n, hook in enumerate(first)}
    assert not any(name.startswith("mean") for name in found)
    assert hooks(is_causal=False) is None


def test_a_changed_tokenizer_or_config_names_nothing(desk, run, tmp_path, monkeypatch):
    shutil.copytree(desk.folder, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    path = tmp_path / "copy/random_llm/model/tokenizer.json"
    here = tmp_path / "copy/results/texts_sae"
    weights = next((tmp_path / "copy/weights").glob("*.json"))
    told = json.loads(weights.read_text())
    told["path"] = str(path.parent)
    told.pop("seal", None)
    weights.write_text(json.dumps(told))
    assert origin.find(here).model == "model"
    path.write_text(path.read_text().replace('"dropout":null', '"dropout": null').swapcase())
    assert origin.find(here) == origin.Origin()
    assert texts.contexts_of(here, "tokens_layer_1", [("visit01", 3)]) == {}


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("google/gemma-2-2b", "google/gemma-2-2b"),
        ("/data/models--google--gemma-2-2b/snapshots/0123abc", "google/gemma-2-2b"),
        ("/data/my_llama", "my_llama"),
    ],
)
def test_a_model_is_named_as_others_name_it(model, name):
    assert origin.name_of(model) == name


def test_the_page_shows_each_features_strongest_tokens_in_their_texts(desk, run):
    path = desk.folder / PLACE / "features.tsv"
    table = pd.read_csv(path, sep="\t", keep_default_na=False, quoting=3)
    notes = pd.read_csv(desk.folder / "random_llm/notes.csv").set_index("id")["note"]
    tokenizer = Tokenizer.from_file(str(desk.folder / "random_llm/model/tokenizer.json"))
    tensors = load_file(desk.folder / PLACE / card.WEIGHTS)
    vectors = pd.read_parquet(run / "embeddings.parquet").set_index("id")["tokens_layer_1"]
    assert len(table) > 100 and (table["at"] != "").any()
    for row in table[::7].itertuples():
        text, (begin, end) = notes[row.id], (0, 0)
        states = torch.tensor(np.stack(vectors[row.id]).astype(np.float32))
        z = network.features(tensors, states, network.Form("jumprelu"))[:, row.feature]
        assert z[row.place - 1].item() == pytest.approx(z.max().item(), rel=1e-4)
        begin, end = tokenizer.encode(text, add_special_tokens=False).offsets[row.place - 1]
        if "\n" in text:
            continue
        assert row.at == text[begin:end] and text[:begin].endswith(row.before)
        assert text[end:].startswith(row.behind)
        assert len(row.before) <= 60 >= len(row.behind)
    page = (desk.folder / PLACE / "report.html").read_text()
    assert "<mark>" in page and "<script>alert" not in page


def test_contexts_are_escaped_whole_words_on_one_line(desk, run):
    places = {("odd", 110), ("odd", 0), ("lines", 6)}
    found = texts.contexts_of(run, "tokens_layer_1", [*places, ("none", 0), ("odd", 10**6)])
    assert set(found) == places
    assert found["odd", 0].before == "" and found["odd", 0].at == "G"
    words = set(ODD.split())
    middle = found["odd", 110]
    assert middle.before.startswith(" ") and set(middle.before.split()[:-1]) <= words
    assert set(middle.behind.split()[1:]) <= words
    assert "\n" not in "".join(found["lines", 6])


def test_without_the_texts_the_page_still_lists_records(desk, run, tmp_path):
    shutil.copytree(desk.folder / "results", tmp_path / "results")
    shutil.rmtree(tmp_path / "results/texts_sae/store/shards")
    here = tmp_path / "results/texts_sae"
    assert texts.contexts_of(here, "tokens_layer_1", [("visit01", 3)]) == {}


# Published autoencoders


@pytest.fixture
def published(desk, tmp_path):
    """Return what writes a folder as SAELens does."""

    def write(architecture="standard", of="model", hook="blocks.0.hook_resid_post", **more):
        folder = tmp_path / "published"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        drawn = torch.Generator().manual_seed(0)
        sizes = network.sizes(64, 32, "jumprelu" if architecture == "jumprelu" else "topk")
        tensors = {n: torch.randn(shape, generator=drawn) for n, shape in sizes.items()}
        save_file(tensors, folder / "sae_weights.safetensors")
        config = {"architecture": architecture, "d_in": 64, "d_sae": 32, **more}
        config["metadata"] = {"sae_lens_version": "6.0.0", "model_name": of, "hook_name": hook}
        (folder / "cfg.json").write_text(json.dumps(config))
        return folder, tensors

    return write


@pytest.mark.parametrize(
    ("architecture", "more"),
    [
        ("standard", {}),
        ("standard", {"apply_b_dec_to_input": False}),
        ("jumprelu", {}),
        ("topk", {"k": 5}),
        ("topk", {"k": 5, "rescale_acts_by_decoder_norm": True}),
        ("standard", {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 5}}),
    ],
)
def test_a_published_autoencoder_is_applied_to_the_states_of_its_hook(
    desk, run, published, tmp_path, architecture, more
):
    folder, tensors = published(architecture, **more)
    output = tmp_path / "active.parquet"
    words = ["sae", "encode", str(run), "--sae", str(folder), "--output", str(output)]
    assert __main__.main(words) == 0
    t = {name: tensor.numpy().astype(np.float64) for name, tensor in tensors.items()}
    vectors = pd.read_parquet(run / "embeddings.parquet").set_index("id")["tokens_layer_1"]
    table = pq.read_table(output).to_pylist()
    assert [row["id"] for row in table] == vectors.index.tolist()
    for row in table[::5]:
        x = np.stack(vectors[row["id"]]).astype(np.float64)
        pre = (x - t["b_dec"] * more.get("apply_b_dec_to_input", True)) @ t["W_enc"] + t["b_enc"]
        if "rescale_acts_by_decoder_norm" in more:
            pre *= np.linalg.norm(t["W_dec"], axis=1)
        z = np.maximum(pre, 0)
        if architecture == "jumprelu":
            z *= pre > t["threshold"]
        if "k" in str(more):
            z *= pre >= np.sort(pre, 1)[:, -5:][:, :1]
        highest = z.max(0)
        ours = {entry["feature"]: entry["value"] for entry in row["features"]}
        assert sorted(ours) == np.flatnonzero(highest).tolist()
        np.testing.assert_allclose([*ours.values()], highest[highest > 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"of": "gpt2-small"}, "is of the model gpt2-small, and tokens_layer_1 of model; "),
        ({"of": ""}, "is of the model (not named), and"),
        ({"hook": "blocks.1.hook_resid_post"}, "is of blocks.1.hook_resid_post, and no vectors"),
        ({"hook": ""}, "is of a place that it does not name, and no vectors"),
        ({"architecture": "gated"}, "its architecture is 'gated', and those that can be"),
        ({"normalize_activations": "layer_norm"}, "its normalize_activations is 'layer_norm'"),
        ({"d_sae": 33}, "by cfg.json its W_enc has the shape (64, 33), and it is (64, 32)"),
        ({"architecture": "topk"}, "k is None and no number above 0"),
    ],
)
def test_a_published_autoencoder_of_something_else_is_refused(
    run, published, tmp_path, capfd, given, sentence
):
    folder, _ = published(**given)
    words = ["encode", run, "--sae", folder, "--output", tmp_path / "a.parquet"]
    assert sentence in sentence_of(capfd, "sae", *words)
    if "is of" in sentence:
        assert __main__.main(["sae", *map(str, words), "--any-recipe"]) == 0
    said = sentence_of(capfd, "sae", "report", run, "--sae", folder, "--any-recipe")
    assert "no sae.json" in said or "is of" not in sentence


def test_a_published_autoencoder_of_another_width_is_refused_always(
    run, published, tmp_path, capfd
):
    folder, tensors = published(d_in=48)
    narrow = {"W_enc": tensors["W_enc"][:48].clone(), "b_dec": tensors["b_dec"][:48].clone()}
    narrow |= {"W_dec": tensors["W_dec"][:, :48].clone(), "b_enc": tensors["b_enc"]}
    save_file(narrow, folder / "sae_weights.safetensors")
    words = ["encode", run, "--sae", folder, "--output", tmp_path / "a.parquet", "--any-recipe"]
    said = sentence_of(capfd, "sae", *words)
    assert "has 64 numbers a vector, and " in said
    assert said.endswith("take vectors of the network and layer that it is of.")
    assert features.open_parts(run).column.width == 64
