"""Contacts of ESM-1b and ESM-1v, held against fair-esm's and transformers' `predict_contacts`."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.elders import elder_of_hugging_face, fair_esm_of, save_elder
from esm2_models import tokens_of
from programs import write_fasta
from safetensors.torch import load_file
from test_contacts import (
    ALONE,
    check_contacts,
    computed,
    payloads_of,
    ready,
    their_attention,
    theirs,
)
from transformers import EsmForMaskedLM

from featuremill.__main__ import main
from featuremill.base.errors import UserError
from featuremill.workload import weights as weights_verb
from featuremill.workload.compute import values_of
from featuremill.workloads import contacts
from featuremill.workloads.contacts import columns, sources

PROTEINS = ["MKTAYIAKQRQISFVKSHFSRQ", "ACDEFGHIKLMXBN", "M", "X-.UZO", "MKTAYIAKQRQISFVK" * 9]


def save(path, **shape):
    """Write a network whose heads look at few residues, and a regression of numbers of 1."""
    save_elder(path, **shape)
    whole = torch.load(path, weights_only=False)
    for key, tensor in whole["model"].items():
        if key.endswith(("q_proj.weight", "k_proj.weight")):
            tensor *= 2
    torch.save(whole, path)
    beside = regression_of(path)
    found = torch.load(beside)
    torch.manual_seed(7)
    found["model"]["contact_head.regression.weight"].normal_()
    found["model"]["contact_head.regression.bias"].fill_(-1.0)
    torch.save(found, beside)
    return path


def regression_of(path):
    return path.with_name(f"{path.stem}-contact-regression.pt")


def reference(network):
    """Return a function that tells the contacts by the authors' program, or transformers'."""
    if not isinstance(network, EsmForMaskedLM):
        return functools.partial(theirs, network)

    @torch.inference_mode()
    def contacts(protein):
        tokens = tokens_of(protein)
        return network.predict_contacts(tokens, torch.ones_like(tokens))[0].numpy()

    return contacts


@pytest.fixture(scope="module", params=["ESM-1b .pt", "ESM-1v .pt", "ESM-1b folder"])
def elder(request, cache):
    """Return the reference, and the model option that gives ours its weights. No name has esm1v:
    fair-esm reads no regression beside such a file."""
    name = request.param.replace(" ", "_").replace("-1v", "-v")
    if request.param.endswith("folder"):
        network = elder_of_hugging_face(cache / name)
        network.set_attn_implementation("eager")
        torch.manual_seed(7)
        network.esm.contact_head.regression.weight.normal_()
        network.save_pretrained(cache / name)
        return reference(network), str(cache / name)
    path = save(cache / name.replace("_.pt", ".pt"), has_norm="1b" in name)
    return reference(fair_esm_of(path)), str(path)


def test_contacts_of_an_esm_1_are_those_of_its_authors(elder, cache):
    expected_of, model = elder
    check_contacts(model, cache, PROTEINS, expected_of)


def test_attention_of_an_esm_1_is_that_of_each_head_of_each_layer(cache):
    path = save(cache / "heads.pt")
    settled, loaded, _ = ready(str(path), cache, attention_of="a", **ALONE)
    assert settled.model.startswith("esm1b_t3_w48-")
    values = values_of(contacts, loaded, [PROTEINS[0].encode() + contacts.WITH_ATTENTION], 4096)
    expected = their_attention(fair_esm_of(path), PROTEINS[0])
    found = columns.stack(values["attention"][0])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_the_regression_of_an_esm_1b_may_be_inside_of_its_file_or_in_one_that_is_named(
    cache, tmp_path
):
    path = save(tmp_path / "esm1b.pt")
    payloads, beside = payloads_of(PROTEINS), regression_of(path)
    expected = computed(str(path), cache, payloads)
    whole = torch.load(path, weights_only=False)
    whole["model"] |= torch.load(beside)["model"]
    torch.save(whole, tmp_path / "whole.pt")
    assert computed(str(tmp_path / "whole.pt"), cache, payloads) == expected
    named = beside.rename(tmp_path / "named.pt")
    with pytest.raises(UserError, match=r"esm1b.pt has no regression for contacts; put fair-esm's"):
        ready(str(path), cache)
    assert computed(str(path), cache, payloads, regression=str(named)) == expected


def test_random_numbers_in_the_folder_of_an_esm_1v_are_no_regression(cache, tmp_path):
    elder_of_hugging_face(tmp_path / "folder", has_norm=False)
    folder = str(tmp_path / "folder")
    assert any("contact_head" in key for key in load_file(Path(folder, "model.safetensors")))
    with pytest.raises(UserError, match=r"no regression for contacts \(none was published for ESM"):
        ready(folder, cache)
    other = regression_of(save(tmp_path / "other.pt"))
    assert computed(folder, cache, [b"MKTAYI"], regression=str(other))
    alone = {"attention_of": "a", **ALONE}
    (row,) = computed(folder, cache, [b"MKTAYI\n"], **alone)
    assert list(row) == ["attention"]
    with pytest.raises(ValueError, match=r"UR90S_3 has no regression for contacts; set model:"):
        contacts.Options(model="esm1v_t33_650M_UR90S_3")
    assert contacts.Options(model="esm1v_t33_650M_UR90S_3", **alone)


def test_an_esm_1_has_positions_for_1022_residues(cache, tmp_path):
    path = save(tmp_path / "esm1b.pt")
    protein, model = ("MKTAYIAKQRQISFVKSHFSRQ" * 50)[:1030], str(path)
    (row,) = computed(model, cache, [protein.encode()])
    expected = reference(fair_esm_of(path))(protein[:1022])
    np.testing.assert_allclose(row["contact_map"], expected, rtol=0, atol=1e-5)
    path = write_fasta(tmp_path / "in.fa", {"a": protein})
    (record,) = contacts.records([path], contacts.Options(model=model))
    assert record.note.startswith("longer than 1022 residues, truncated")
    for options, part in (
        ({"long": "full"}, r"options.long: an ESM-1. has .* for 1,022 residues only; set long: tr"),
        ({"max_residues": 1023}, r"options.max_residues: an ESM-1. has positions for 1,022"),
    ):
        with pytest.raises(UserError, match=part):
            ready(model, cache, **options)
        with pytest.raises(UserError, match=part):
            contacts.records([], contacts.Options(model=model, **options))


def test_the_name_of_an_esm_1_is_known_before_there_are_files(capsys, monkeypatch, cache):
    monkeypatch.setenv("FEATUREMILL_CACHE", str(cache))
    name = "esm1b_t33_650M_UR50S"
    for model in (name, f"facebook/{name}"):
        assert weights_verb.json_of(model, "contacts") == f"weights/{name}-contacts.json"
        ahead = contacts.weights_ahead(contacts.Options(model=model))
        assert ahead.metadata["architecture"] == "esm1b"
    place = sources.locate(name)
    assert place.location.endswith(f"/{name}.pt") and place.kind == "published"
    for model in ("esm1b", "ESM-1b", "esm1b_t33_650M_UR50D"):
        with pytest.raises(UserError, match=rf"did you mean '{name}'\? There are {name}"):
            weights_verb.name_of(model, "contacts")
    with pytest.raises(UserError, match="did you mean 'esm1v_t33_650M_UR90S_1'"):
        weights_verb.name_of("ESM-1v", "contacts")
    for model in (name, "esm1v_t33_650M_UR90S_1"):
        main(["doctor", "--model", model, "--workload", "contacts"])
        said = " ".join(capsys.readouterr().out.split())
        assert f"{model} fits " in said and "; it needs about " in said


@pytest.mark.parametrize("place", ["torch", "hugging face"])
def test_a_published_esm_1b_and_its_regression_lie_where_fair_esm_has_them(
    place, tmp_path, monkeypatch
):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    name, hub = "esm1b_t33_650M_UR50S", tmp_path / "torch/hub/checkpoints"
    hub.mkdir(parents=True)
    path = save(tmp_path / f"{name}.pt")
    expected = computed(str(path), tmp_path / "cache", payloads_of(PROTEINS[:2]))
    content, given = regression_of(path).read_bytes(), path
    if place == "torch":
        given = path.rename(hub / path.name)
    else:
        given = folder_without_regression(tmp_path)
        monkeypatch.setattr(sources.of_esm2, "cached", lambda model: given)

    def download(url, target):
        assert url.endswith(f"/fair-esm/regression/{name}-contact-regression.pt")
        Path(target).write_bytes(content)

    monkeypatch.setattr(sources, "download", download)
    made = weights_verb.convert(name, tmp_path / "cache", "contacts")
    assert made.metadata[sources.HAS_REGRESSION] == "yes" and made.metadata["license"] == "MIT"
    assert (hub / f"{name}-contact-regression.pt").read_bytes() == content
    if place == "torch":
        assert computed(name, tmp_path / "cache", payloads_of(PROTEINS[:2])) == expected


def folder_without_regression(tmp_path):
    """Return a folder as Hugging Face's cache has it, of a network without contact head."""
    folder = tmp_path / "face"
    network = elder_of_hugging_face(folder)
    state = {k: v for k, v in network.state_dict().items() if "contact_head" not in k}
    network.save_pretrained(folder, state_dict=state)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "esm"
    return folder
