"""The verb weights: conversion, cache, lock, and the ways in which a checkpoint can be unusable."""

import functools
import json
import os
import re
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from esm2_models import (
    ALPHABET,
    BUNDLED,
    fair_esm,
    fair_esm_bundled,
    hugging_face_config,
    relative_l2,
    representations,
    save_fair_esm,
    save_hugging_face,
    tokens_of,
)
from programs import Desk, edit_json
from safetensors.torch import load_file, save_file

from featuremill.base.errors import UserError
from featuremill.store.weights_file import WeightsFile
from featuremill.workload import hugging_face, weights
from featuremill.workloads.encoder import architectures
from featuremill.workloads.esm2 import sources
from featuremill.workloads.esm2.encoder import Encoder
from featuremill.workloads.esm2.folder import ALPHABET as TOKENS
from featuremill.workloads.esm2.packing import pack

TINY = (2, 16, 2)
SEQUENCE = "MKTAYIAKQRXBUZO" * 20


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tiny():
    return fair_esm(*TINY)


def errors_of(entry, expected, dtype=torch.float32):
    """Return how far the converted network is from the states of another one, layer by layer."""
    found = weights.weights_of(entry)
    encoder = Encoder(found.path, found.metadata, [torch.device("cpu")], dtype)
    packed = pack([tokens_of(SEQUENCE)[0].numpy()])
    pairs = encoder.representations(packed, range(len(expected)))
    return [
        float(relative_l2(hidden[: len(state)], state))
        for (_, hidden), state in zip(pairs, expected, strict=True)
    ]


def assert_same_network(entry, reference, dtype=torch.float32):
    """In fp32 4e-7 was measured, whatever the number of threads and the vectors of the CPU
    (SSE4.1 to AVX-512) and of MKL. More than the bound takes another arithmetic: a process that
    lets oneDNN multiply in bf16 (1e-3), or one that rounds otherwise than to nearest (1.1e-5).
    """
    expected = representations(reference, tokens_of(SEQUENCE))
    errors = errors_of(entry, expected, dtype)
    assert max(errors) <= (1e-5 if dtype == torch.float32 else 2e-2), (
        f"{errors}; once more {errors_of(entry, expected, dtype)}; {torch.get_num_threads()} "
        f"threads, precision {torch.get_float32_matmul_precision()}, 1 + 2⁻²⁴ + 2⁻⁴⁰ is "
        f"{(torch.ones(1) + 2**-24 * (1 + 2**-16)).item().hex()}"
    )


def test_verb_writes_what_read_finds(cache, tmp_path, environment):
    output = tmp_path / "weights" / "mill_t6_8M.json"
    words = ("weights", "mill_t6_8M", "--output", output, "--cache", cache)
    for _ in range(2):
        Desk(tmp_path, environment).type("featuremill", *words)
    entry = json.loads(output.read_text())
    source = {"kind": "bundled", "location": "featuremill/mill_t6_8M.safetensors"}
    assert entry["source"].keys() - source.keys() == {"sha256", "bytes"}
    assert source.items() <= entry["source"].items()
    found = weights.read(output)
    assert found.name == "mill_t6_8M" and found.sha256 == entry["sha256"]
    facts = {"architecture": "esm2", "num_layers": "6", "embed_dim": "320"}
    facts |= {"attention_heads": "20"}
    assert found.metadata.keys() - facts.keys() == {"dtype", "license"}
    assert facts.items() <= found.metadata.items()
    assert_same_network(WeightsFile.read(output), fair_esm_bundled())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_fair_esm_checkpoint(cache, tmp_path, tiny, dtype):
    path = save_fair_esm(tiny, tmp_path / "my model.pt", dtype)
    entry = weights.convert(str(path), cache)
    assert entry.metadata["dtype"] == str(dtype).removeprefix("torch.")
    tensors = load_file(entry.path)
    assert {tensor.dtype for tensor in tensors.values()} == {dtype}  # nothing lost, nothing added
    as_stored = {k: v.to(dtype) for k, v in tiny.state_dict().items()}
    rounded = fair_esm(*TINY, as_stored)
    # Rounded rotary frequencies are part of a network that was trained with them.
    assert torch.equal(
        rounded.layers[0].self_attn.rot_emb.inv_freq, tensors["rotary.inv_freq"].float()
    )
    assert_same_network(entry, rounded)
    assert_same_network(entry, rounded, dtype)


def test_the_same_values_are_the_same_weights(cache, tmp_path, tiny):
    (tmp_path / "a").mkdir()
    first = weights.convert(str(save_fair_esm(tiny, tmp_path / "a" / "one.pt")), cache)
    other = weights.convert(str(save_fair_esm(tiny, tmp_path / "other.pt", extra=1)), cache)
    again = weights.convert(str(tmp_path / "a" / "one.pt"), tmp_path / "elsewhere")
    state = {k: v.clone() for k, v in tiny.state_dict().items() if "lm_head" not in k}
    save_file(state, tmp_path / "plain.safetensors", {"attention_heads": "2"})
    plain = weights.convert(str(tmp_path / "plain.safetensors"), cache)
    assert first.source.sha256 != other.source.sha256
    for entry in (other, again, plain):
        assert entry.sha256 == first.sha256
        assert entry.name == first.name  # so the recipe is the same, too
    changed = fair_esm(*TINY)
    changed.layers[1].fc1.bias += 1e-3
    different = weights.convert(str(save_fair_esm(changed, tmp_path / "one.pt")), cache)
    assert different.sha256 != first.sha256 and different.name != first.name


def test_other_checkpoints_and_changed_weights_are_known_by_their_bytes(cache, tmp_path, tiny):
    """Whatever their times are: a person puts older copies back."""
    model = save_fair_esm(tiny, tmp_path / "my.pt")
    changed = fair_esm(*TINY)
    changed.layers[1].fc1.bias += 1e-3
    path, other = tmp_path / "weights.json", tmp_path / "other"
    weights.convert(str(model), cache).write(path)
    assert not weights.are_of_another(path, str(model)) and not weights.lost(path)
    first, about, times = model.read_bytes(), path.read_bytes(), model.stat().st_mtime - 9
    model.write_bytes(save_fair_esm(changed, other).read_bytes())
    os.utime(model, (times, times))
    assert weights.are_of_another(path, str(model)) and not weights.lost(path)
    weights.convert(str(model), cache).write(path)
    assert not weights.are_of_another(path, str(model))
    path.write_bytes(about)
    assert weights.are_of_another(path, str(model))
    assert weights.are_of_another(path, "esm2_t6_8M_UR50D"), "a name"
    model.write_bytes(first)
    assert not weights.are_of_another(path, str(model))
    model.unlink()
    assert not weights.are_of_another(path, str(model)), "nobody knows"
    converted = weights.read(path).path
    converted.write_bytes(bytes([*converted.read_bytes()[:-1], 1]))
    assert weights.lost(path)
    with pytest.raises(UserError, match=r"weights.json: its weights .* were changed since; delete"):
        weights.read(path)


@pytest.mark.parametrize("prefix", ["", "esm."])
def test_hugging_face_checkpoints(cache, tmp_path, tiny, prefix):
    path = save_hugging_face(tiny, tmp_path / "my_esm", prefix)
    assert weights.name_of(str(path)) == "my_esm"
    assert_same_network(weights.convert(str(path), cache), tiny)
    state = load_file(path)
    state["classifier.weight"] = torch.ones(2, 16)
    torch.save(state, path.with_name("pytorch_model.bin"))
    path.unlink()
    entry = weights.convert(str(path.with_name("pytorch_model.bin")), cache)
    assert_same_network(entry, tiny)


def test_transformers_own_folder(cache, tmp_path):
    """What save_pretrained writes today, whatever it calls its buffers."""
    from transformers import EsmConfig, EsmModel

    torch.manual_seed(0)
    config = EsmConfig(**hugging_face_config(fair_esm(*TINY)))
    model = EsmModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path / "saved")
    tokens = tokens_of(SEQUENCE)
    with torch.inference_mode():
        told = model(tokens, torch.ones_like(tokens), output_hidden_states=True).hidden_states
    entry = weights.convert(str(tmp_path / "saved/model.safetensors"), cache)
    assert max(errors_of(entry, [state[0] for state in told])) <= 1e-5


def test_a_folder_from_hugging_face_is_the_same_weights(cache, tmp_path, tiny, monkeypatch):
    """With safetensors, a pickle, or in parts, by its path or by its name, as fair-esm's file."""
    save_fair_esm(tiny, tmp_path / "tiny.pt")
    expected = weights.convert(str(tmp_path / "tiny.pt"), cache).sha256
    whole = save_hugging_face(tiny, tmp_path / "whole")
    state, config = load_file(whole), whole.with_name("config.json").read_text()
    folders = {name: tmp_path / name for name in ("pickle", "parts", "cached")}
    snapshot = "hub/models--who--esm_tiny/snapshots/0123abcd"
    folders["cached"] = tmp_path / snapshot
    for folder in folders.values():
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(config)
    torch.save(state, folders["pickle"] / "pytorch_model.bin")
    save_file(state, folders["cached"] / "model.safetensors")
    halves = {"1.safetensors": sorted(state)[::2], "2.safetensors": sorted(state)[1::2]}
    for name, keys in halves.items():
        save_file({key: state[key] for key in keys}, folders["parts"] / name)
    index = {"weight_map": {key: name for name, keys in halves.items() for key in keys}}
    (folders["parts"] / "model.safetensors.index.json").write_text(json.dumps(index))
    refs = tmp_path / "hub/models--who--esm_tiny/refs"
    refs.mkdir()
    (refs / "main").write_text("0123abcd")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for model in ("whole", "./whole", "whole/", "pickle", "parts", "who/esm_tiny"):
        weights.refuse_missing(model)
        assert weights.is_path(model)
        assert weights.convert(model, cache).sha256 == expected, model
    assert weights.json_of("./whole") == weights.json_of("whole/") == "weights/whole.json"
    halves["1.safetensors"].append(halves["2.safetensors"][0])
    both = {key: state[key] for key in halves["1.safetensors"]}
    save_file(both, folders["parts"] / "1.safetensors")
    with pytest.raises(UserError, match=r"parts: .* two of its files have the same tensor"):
        weights.convert("parts", cache)
    (folders["parts"] / "1.safetensors").unlink()
    with pytest.raises(UserError, match=r"it names 1\.safetensors, which is not there"):
        weights.refuse_missing("parts")


def test_numbers_of_fp16_are_the_same_weights_in_fp32(cache, tmp_path, tiny):
    """fair-esm has the two largest ESM-2 in fp16, and Hugging Face the same numbers in fp32."""
    save_fair_esm(tiny, tmp_path / "tiny.pt", torch.float16)
    expected = weights.convert(str(tmp_path / "tiny.pt"), cache)
    path = save_hugging_face(tiny, tmp_path / "wide")
    name = "esm.encoder.layer.{}.attention.self.rotary_embeddings.inv_freq"
    rotary = {
        name.format(i): layer.self_attn.rot_emb.inv_freq for i, layer in enumerate(tiny.layers)
    }
    state = load_file(path) | rotary
    save_file({key: tensor.half().float() for key, tensor in state.items()}, path)
    entry = weights.convert(str(path.parent), cache)
    assert (entry.sha256, entry.name) == (expected.sha256, expected.name)
    assert entry.metadata == expected.metadata and entry.metadata["dtype"] == "float16"


def test_a_folder_called_like_a_published_model_is_meant_by_its_name(
    cache, tmp_path, hub, monkeypatch
):
    """As `hf download --local-dir` makes it: its recipe is that of the published file."""
    name = "esm2_t6_8M_UR50D"
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    assert not weights.is_path(name), "an empty folder is no model"
    model = fair_esm(6, 320, 20)
    save_hugging_face(model, tmp_path / name)
    file = weights.convert(str(save_fair_esm(model, hub / f"{name}.pt")), cache)
    for typed in (name, f"./{name}"):
        assert weights.is_path(typed) and weights.json_of(typed) == f"weights/{name}.json"
        entry = weights.convert(typed, cache)
        assert (entry.name, entry.sha256, entry.source.kind) == (name, file.sha256, "local")
        assert entry.source.location == str(tmp_path / name)


def test_a_head_is_left_out_and_that_is_said(cache, tmp_path, tiny, caplog):
    caplog.set_level("INFO")
    path = save_hugging_face(tiny, tmp_path / "tuned")
    state = load_file(path)
    expected = weights.convert(str(path.parent), cache).sha256
    assert "left out" not in caplog.text, "everybody's lm_head is no news"
    head = {"classifier.dense.weight": torch.ones(16, 16), "regression.bias": torch.ones(1)}
    save_file(state | head, path)
    assert weights.convert(str(path.parent), cache).sha256 == expected
    assert "classifier and regression left out: features are those of the encoder" in caplog.text


@pytest.mark.parametrize(
    "config, sentence",
    [
        ({"model_type": "bert"}, "its model_type is 'bert', and an ESM-2 has 'esm'"),
        ({"position_embedding_type": "absolute"}, "position_embedding_type absolute"),
        ({"layer_norm_eps": 1e-12}, "layer_norm_eps 1e-12, where an ESM-2 has 1e-05"),
        ({"token_dropout": None}, "token_dropout None"),
        ({"is_decoder": True}, "is_decoder True"),
        ({"layer_norm_eps": ...}, "layer_norm_eps 1e-12"),  # where nothing is said, transformers'
        ({"position_embedding_type": ...}, "position_embedding_type absolute"),
        ({"token_dropout": ...}, "token_dropout False"),
        ({"vocab_list": ["<cls>", "<pad>"]}, "its token 2 is missing, and ESM-2's is '<eos>'"),
    ],
)
def test_a_folder_of_another_network_is_refused_before_any_job(tmp_path, tiny, config, sentence):
    path = save_hugging_face(tiny, tmp_path / "other").with_name("config.json")
    edit_json(path, **config)
    with pytest.raises(UserError) as caught:
        weights.refuse_missing(str(path.parent))
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and sentence in text
    assert text.endswith("the workload esmc takes ESM C, and encoder takes BERT, T5, ModernBERT, "
                         "ESM-1b and the Nucleotide Transformer (docs/encoders.md).")  # fmt: skip


def with_token(id, token):
    return [*TOKENS[:id], token, *TOKENS[id + 1 :]]


@pytest.mark.parametrize(
    "tokens, sentence",
    [
        (TOKENS, None),
        (with_token(4, "A"), "its token 4 is 'A', and ESM-2's is 'L'"),
        (TOKENS[:-1], "its token 32 is missing, and ESM-2's is '<mask>'"),
        ([*TOKENS, "J"], "it has 34 tokens, and ESM-2 has 33"),
    ],
)
@pytest.mark.parametrize("kind", ["vocab.txt", "tokenizer.json"])
def test_a_folder_with_other_tokens_is_refused(cache, tmp_path, tiny, kind, tokens, sentence):
    path = save_hugging_face(tiny, tmp_path / "x").with_name(kind)
    if kind == "vocab.txt":
        path.write_text("\n".join(tokens))
    else:
        words = {token: id for id, token in enumerate(tokens) if id}
        added = [{"content": tokens[0], "id": 0}]
        path.write_text(json.dumps({"model": {"vocab": words}, "added_tokens": added}))
    if sentence is None:
        weights.convert(str(path.parent), cache)
        path.write_text("{")
        with pytest.raises(UserError, match=r"tokenizer.json: it cannot|vocab.txt: its token 0"):
            weights.convert(str(path.parent), cache)
        return
    for model in (path.parent, path.with_name("model.safetensors")):
        with pytest.raises(UserError, match=re.escape(f"{path}: {sentence}")):
            weights.convert(str(model), cache)


def test_the_alphabet_of_a_folder_is_fair_esm_s():
    assert list(TOKENS) == ALPHABET.all_toks


def test_a_published_model_may_lie_in_the_cache_of_hugging_face(cache, tmp_path, hub, monkeypatch):
    """Its name there means what its name here does; a file of fair-esm's goes first."""
    name = "esm2_t6_8M_UR50D"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = tmp_path / f"models--facebook--{name}"
    model = fair_esm_bundled()
    path = save_hugging_face(model, found / "snapshots" / "c0ffee")
    (found / "refs").mkdir()
    (found / "refs" / "main").write_text("c0ffee\n")
    for typed in (name, f"facebook/{name}"):
        assert not weights.is_path(typed)
        assert weights.json_of(typed) == f"weights/{name}.json"
        entry = weights.convert(typed, cache)
        assert (entry.name, entry.source.kind) == (name, "published")
        assert entry.source.location == f"facebook/{name}"
    path.unlink()  # as where only its config was looked at
    assert sources.locate(name).path == hub / f"{name}.pt"
    (tmp_path / "facebook" / name).mkdir(parents=True)
    assert weights.is_path(f"facebook/{name}"), "a folder that is there is meant"


@pytest.mark.parametrize(
    ("model", "workload", "sentence"),
    [
        ("facebook/esm2_t6_8M", "esm2", "as the name of a model, write esm2_t6_8M_UR50D."),
        ("./esm2_t6_8M_UR50D", "esm2", "as the name of a model, write esm2_t6_8M_UR50D."),
        ("who/what", "esm2", "if it is a name on Hugging Face, type hf download who/what here"),
        ("who/what", "encoder", "if it is a name on Hugging Face, type hf download who/what here"),
        ("./what", "esm2", "what: this file does not exist; check the path"),
        ("what", "encoder", "there is no such file or folder; name the one with the weights."),
        ("empty", "esm2", "there are no weights in this folder; it needs model.safetensors"),
    ],
)
def test_what_is_nowhere_is_refused_with_what_to_do(
    model, workload, sentence, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=re.escape(sentence)):
        weights.refuse_missing(model, workload)


@pytest.mark.parametrize("shape", [(6, 320, 20), TINY])
def test_heads_of_published_shapes_need_no_config_and_others_do(cache, tmp_path, shape):
    path = save_hugging_face(fair_esm(*shape), tmp_path / "esm")
    (path.parent / "config.json").unlink()
    if shape == TINY:
        with pytest.raises(UserError, match=r"put its config\.json beside it"):
            weights.convert(str(path), cache)
        return
    assert weights.convert(str(path), cache).metadata["attention_heads"] == "20"


def test_a_published_name_is_taken_from_the_hub_folder(cache, hub):
    model = fair_esm(6, 320, 20)
    path = save_fair_esm(model, hub / "esm2_t6_8M_UR50D.pt")
    entry = weights.convert("esm2_t6_8M_UR50D", cache)
    assert entry.name == "esm2_t6_8M_UR50D" and entry.metadata["license"] == "MIT"
    assert_same_network(entry, model)
    local = weights.convert(str(path), cache)
    assert (local.name, local.sha256) == (entry.name, entry.sha256)
    path.unlink()
    assert weights.convert("esm2_t6_8M_UR50D", cache) == entry


def test_no_network_is_one_sentence_that_says_what_to_do(cache, hub, monkeypatch):
    monkeypatch.setattr(sources, "URL", "http://127.0.0.1:9/{name}.pt")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9/mirror/")
    monkeypatch.setattr(hugging_face, "PAUSE_SECONDS", 0.0)
    with pytest.raises(UserError) as caught:
        weights.convert("esm2_t12_35M_UR50D", cache)
    text = str(caught.value)
    assert text.startswith("http://127.0.0.1:9/esm2_t12_35M_UR50D.pt: cannot be downloaded here")
    assert "options: model: /path/esm2_t12_35M_UR50D.pt" in text
    assert str(hub) in text and "\n" not in text and not list(hub.iterdir())


@pytest.mark.parametrize("place", ["whole", "in parts", "as fair-esm"])
def test_a_published_model_comes_from_hugging_face_or_as_fair_esm_has_it(
    place, cache, tmp_path, hub, monkeypatch
):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    name, served = "esm2_t6_8M_UR50D", tmp_path / "served"
    model, there = fair_esm(6, 320, 20), served / "facebook" / name / "resolve" / "main"
    there.parent.mkdir(parents=True)
    if place == "as fair-esm":
        there.mkdir()
        save_fair_esm(model, served / f"{name}.pt")
    else:
        save_hugging_face(model, there)
        if place == "in parts":
            (there / "model.safetensors").rename(there / "part-1.safetensors")
            names = load_file(there / "part-1.safetensors")
            index = {"weight_map": dict.fromkeys(names, "part-1.safetensors")}
            (there / "model.safetensors.index.json").write_text(json.dumps(index))
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(served))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr(sources, "URL", address + "/{name}.pt")
        entry = weights.convert(name, cache)
        server.shutdown()
    assert_same_network(entry, model)
    expected = weights.convert(str(save_fair_esm(model, tmp_path / "local.pt")), tmp_path / "other")
    assert entry.sha256 == expected.sha256, "the recipe does not depend on the address"
    again = weights.convert(name, tmp_path / "again")  # from what was downloaded
    assert again.sha256 == entry.sha256


def test_two_processes_convert_once(cache, tmp_path, environment):
    desk, path = Desk(tmp_path, environment), save_fair_esm(fair_esm(12, 240, 4), tmp_path / "m.pt")
    words = ("featuremill", "weights", path, "--cache", cache, "--output")
    processes = [desk.start(*words, f"{number}.json") for number in range(3)]
    logs = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], logs
    assert sum("converting " in log for log in logs) == 1
    assert sum("found converted" in log for log in logs) == 2
    entries = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(3)]
    assert entries[0] == entries[1] == entries[2]


def test_damaged_cache_is_converted_again(cache, caplog):
    first = weights.convert("mill_t6_8M", cache)
    path = weights.weights_of(first).path
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert weights.convert("mill_t6_8M", cache) == first
    assert path.read_bytes() == good
    assert [r.levelname for r in caplog.records if "damaged" in r.message] == ["WARNING"]
    path.unlink()
    assert weights.convert("mill_t6_8M", cache) == first
    path.with_suffix(".json").write_text("{")
    assert weights.convert("mill_t6_8M", cache) == first


def test_read_says_how_to_heal(cache, tmp_path):
    entry = weights.convert("mill_t6_8M", cache)
    output = tmp_path / "w.json"
    for text in ("{", "[]", json.dumps({**entry.as_json(), "path": "/nowhere"})):
        output.write_text(text)
        with pytest.raises(UserError, match=r"delete .*w\.json and run again"):
            weights.read(output)
    output.write_text(json.dumps(entry.as_json()))
    assert weights.read(output).path.exists()
    of_another = r"w\.json: these weights have the layout esm2-1, and scores reads esm2-lm_head-1;"
    with pytest.raises(UserError, match=of_another):
        weights.read(output, "scores")
    with weights.read(output).path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(UserError, match="gone or incomplete"):
        weights.read(output)


def test_cache_folder_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("FEATUREMILL_CACHE", raising=False)
    for name, folder, cache in (
        ("HOME", "models/me", "models/me/.cache/featuremill"),
        ("XDG_CACHE_HOME", "/xdg", "/xdg/featuremill"),
        ("FEATUREMILL_CACHE", "/mine", "/mine"),
    ):
        monkeypatch.setenv(name, folder)
        assert str(weights.cache_folder()) == cache
    assert weights.cache_folder(tmp_path) == tmp_path
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--cache"):
        weights.convert("mill_t6_8M", tmp_path / "file")


def test_names():
    assert weights.name_of("mill_t6_8M") == "mill_t6_8M"
    assert weights.name_of("/data/esm2_t6_8M_UR50D.pt") == "esm2_t6_8M_UR50D"
    assert weights.name_of("./mein Modell.safetensors") == "mein_Modell"
    assert weights.name_of("nets/fine/model.safetensors") == "fine"
    hints = {"esm2_t6_8M": "'esm2_t6_8M_UR50D'", "ProtT5": "Rostlab/prot_t5", "ours": "mill_t6_8M"}
    for wrong, hint in hints.items():
        with pytest.raises(UserError, match=re.escape(hint)):
            weights.name_of(wrong)


def loaded(model, folder):
    """Return a checkpoint of fair-esm's, and what is in it."""
    path = save_fair_esm(model, folder / "m.pt")
    return path, torch.load(path, weights_only=False)


def without(key):
    return lambda state: {k: v for k, v in state.items() if not k.endswith(key)}


def changed(key, value):
    return lambda state: {k: value(v) if k.endswith(key) else v for k, v in state.items()}


@pytest.mark.parametrize(
    "change, reason",
    [
        (without("embed_tokens.weight"), "no tensor embed_tokens.weight"),
        (without("layers.1.fc1.bias"), "no tensor layers.1.fc1.bias"),
        (without("emb_layer_norm_after.weight"), "no tensor emb_layer_norm_after.weight"),
        (changed("layers.0.fc2.weight", lambda v: v[:, 1:]), r"shape \(16, 63\) and not"),
        (changed("embed_tokens.weight", lambda v: v[:20]), "has 20 rows, where an ESM-2 has 33"),
        (lambda s: {f"module.{k}": v for k, v in s.items()}, r"of a Distri.* take the prefix off"),
        (lambda s: {f"_orig_mod.{k}": v for k, v in s.items()}, "those of a torch.compile"),
        (changed("k_proj.bias", lambda v: v.double()), "float64"),
        (changed("1.self_attn.rot_emb.inv_freq", lambda v: v / 2), "differ in their rotary"),
        (changed("inv_freq", lambda v: v[:3]), "do not fit"),
        (lambda s: s | {"encoder.sentence_encoder.embed_positions.weight": torch.ones(2)}, "older"),
        (lambda s: s | {"encoder.layers.0.lora_A": torch.ones(2)}, "lora_A is no part"),
        (lambda s: s | {"x": "text"}, "no dictionary of tensors"),
        (lambda s: {}, "no dictionary of tensors"),
    ],
)
def test_other_networks_are_refused(cache, tmp_path, tiny, change, reason):
    path, raw = loaded(tiny, tmp_path)
    raw["model"] = change(raw["model"])
    torch.save(raw, path)
    with pytest.raises(UserError, match=reason) as caught:
        weights.convert(str(path), cache)
    assert str(caught.value).startswith(f"{path}: this is not a usable ESM-2 checkpoint: ")


def test_what_stands_in_place_of_weights_is_named(cache, tmp_path, tiny):
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 26\n"
    for name in ("model.safetensors", "pytorch_model.bin"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text(pointer)
        with pytest.raises(UserError, match=rf"{name}: .* it is a git-lfs pointer.* git lfs pull"):
            weights.convert(str(folder), cache)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    save_file({"lora_A.weight": torch.ones(2)}, adapter / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"adapter: this is an adapter \(LoRA\).*merge_and_unload"):
        weights.convert(str(adapter), cache)
    with pytest.raises(UserError, match=r"adapter: this is an adapter \(LoRA\)"):
        architectures.config_of(adapter)
    of_trainer = {"epoch": 1, "state_dict": {"model.x": torch.ones(2)}}
    torch.save(of_trainer, tmp_path / "light.ckpt")
    with pytest.raises(UserError, match=r"a checkpoint of a trainer .* without a prefix"):
        weights.convert(str(tmp_path / "light.ckpt"), cache)


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"token_dropout": False}, "token_dropout False"),
        ({"encoder_layers": 3}, "num_layers 2, its settings have 3"),
        ({"encoder_attention_heads": 4}, "do not fit"),
        ({"encoder_attention_heads": 0}, None),
    ],
)
def test_settings_must_fit_the_tensors(cache, tmp_path, tiny, settings, reason):
    path = save_fair_esm(tiny, tmp_path / "m.pt", **settings)
    if reason is None:  # the rotary frequencies tell
        assert weights.convert(str(path), cache).metadata["attention_heads"] == "2"
        return
    with pytest.raises(UserError, match=reason):
        weights.convert(str(path), cache)


class Evil:
    """A pickle that would run a command."""

    def __reduce__(self):
        return (print, ("executed",))


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize(
    "kind, reason",
    [
        ("empty", "it is empty"),
        ("html", "it is a web page"),
        ("text", "cannot be read safely"),
        ("cut", "cut short|cannot be read safely"),
        ("evil", "cannot be read safely"),
        ("tensor", "no dictionary|cannot be read safely"),
    ],
)
def test_files_of_other_kinds(cache, tmp_path, tiny, kind, reason, suffix, capfd):
    path = tmp_path / f"file{suffix}"
    whole = save_fair_esm(tiny, tmp_path / "m.pt") if suffix == ".pt" else BUNDLED
    saved = {"evil": {"model": Evil()}, "tensor": torch.ones(3)}
    if kind in saved:
        torch.save(saved[kind], path)
    else:
        contents = {
            "empty": b"",
            "html": b"\n<!DOCTYPE html><html><body>404</body></html>",
            "text": b"hello world " * 100,
            "cut": whole.read_bytes()[: whole.stat().st_size // 2],
        }
        path.write_bytes(contents[kind])
    with pytest.raises(UserError, match=reason) as caught:
        weights.convert(str(path), cache)
    assert "\n" not in str(caught.value)
    assert "executed" not in capfd.readouterr().out
    assert not [p for p in cache.rglob("*") if p.suffix == ".safetensors"]


def test_missing_file(cache):
    with pytest.raises(UserError, match=r"^/nowhere/at_all\.pt: this file does not exist"):
        weights.convert("/nowhere/at_all.pt", cache)


def test_old_checkpoint_outside_of_a_zip(cache, tmp_path, tiny):
    """torch.save before 1.6 wrote a bare pickle, which cannot be memory-mapped."""
    path, raw = loaded(tiny, tmp_path)
    torch.save(raw, path, _use_new_zipfile_serialization=False)
    assert_same_network(weights.convert(str(path), cache), tiny)


def test_older_esm_is_named_as_such(cache, tmp_path):
    torch.save({"args": 1, "model": {"x": torch.ones(1)}}, tmp_path / "esm1b.pt")
    with pytest.raises(UserError, match="older network"):
        weights.convert(str(tmp_path / "esm1b.pt"), cache)
