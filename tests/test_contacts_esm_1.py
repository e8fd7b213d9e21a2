"""Contacts of ESM-1b and ESM-1v, held against fair-esm's and transformers' `predict_contacts`."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from bench.elders import ALPHABET, elder_of_hugging_face, fair_esm_of, save_elder
from safetensors.torch import load_file
from transformers import EsmForMaskedLM

from featuremill.__main__ import main
from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.workload import weights as weights_verb
from featuremill.workload.compute import values_of
from featuremill.workloads import contacts
from featuremill.workloads.contacts import columns, sources

CPU = cpu()
PROTEINS = ["MKTAYIAKQRQISFVKSHFSRQ", "ACDEFGHIKLMXBN", "M", "X-.UZO", "MKTAYIAKQRQISFVK" * 9]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


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


class Reference:
    """What the authors' program says, or transformers'."""

    def __init__(self, network):
        self.network = network

    def __call__(self, protein):
        _, _, tokens = ALPHABET.get_batch_converter()([("", protein)])
        with torch.inference_mode():
            if isinstance(self.network, EsmForMaskedLM):
                found = self.network.predict_contacts(tokens, torch.ones_like(tokens))
            else:
                found = self.network.predict_contacts(tokens)
        return found[0].numpy()

    def attention(self, protein):
        _, _, tokens = ALPHABET.get_batch_converter()([("", protein)])
        with torch.inference_mode():
            found = self.network(tokens, need_head_weights=True)["attentions"]
        return found[0, :, :, 1:-1, 1:-1].numpy()


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
        return Reference(network), str(cache / name)
    path = save(cache / name.replace("_.pt", ".pt"), has_norm="1b" in name)
    return Reference(fair_esm_of(path)), str(path)


def ready(model, cache, **options):
    found = weights_verb.weights_of(weights_verb.convert(model, cache, "contacts"))
    asked = {"dtype": "fp32", "output_dtype": "float32"} | options
    settled = contacts.resolve(contacts.Options(model=model, **asked), CPU, found)
    return settled, contacts.load(settled, [CPU], found), found


def computed(model, cache, payloads, **options):
    settled, loaded, found = ready(model, cache, **options)
    values = values_of(contacts, loaded, payloads, 4096)
    assert values.schema.equals(contacts.schema(settled, found))
    return values.to_pylist()


def payloads_of(proteins):
    return [protein.encode() for protein in proteins]


def test_contacts_of_an_esm_1_are_those_of_its_authors(elder, cache):
    reference, model = elder
    furthest = spread = 0.0
    for protein, row in zip(PROTEINS, computed(model, cache, payloads_of(PROTEINS)), strict=True):
        expected, found = reference(protein), np.array(row["contact_map"])
        assert found.shape == (len(protein),) * 2 and (found == found.T).all()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        furthest = max(furthest, np.abs(found - expected).max())
        spread = max(spread, expected.std())
    print(f"probabilities at most {furthest:.1e} off, of a spread of {spread:.2f}")
    assert spread > 0.05, "a map without contrast would show nothing"


def test_attention_of_an_esm_1_is_that_of_each_head_of_each_layer(cache):
    path = save(cache / "heads.pt")
    options = {"attention_of": "a", "pairs": "none", "maps": False}
    settled, loaded, _ = ready(str(path), cache, **options)
    assert settled.model.startswith("esm1b_t3_w48-")
    values = values_of(contacts, loaded, [PROTEINS[0].encode() + contacts.WITH_ATTENTION], 4096)
    expected = Reference(fair_esm_of(path)).attention(PROTEINS[0])
    found = columns.stack(values["attention"][0])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_the_regression_of_an_esm_1b_may_be_inside_of_its_file_or_in_one_that_is_named(
    cache, tmp_path
):
    path = save(tmp_path / "esm1b.pt")
    expected = computed(str(path), cache, payloads_of(PROTEINS))
    beside = regression_of(path)
    whole = torch.load(path, weights_only=False)
    whole["model"] |= torch.load(beside)["model"]
    torch.save(whole, tmp_path / "whole.pt")
    assert computed(str(tmp_path / "whole.pt"), cache, payloads_of(PROTEINS)) == expected
    named = beside.rename(tmp_path / "named.pt")
    with pytest.raises(UserError, match=r"esm1b.pt has no regression for contacts; put fair-esm's"):
        ready(str(path), cache)
    found = computed(str(path), cache, payloads_of(PROTEINS), regression=str(named))
    assert found == expected


def test_random_numbers_in_the_folder_of_an_esm_1v_are_no_regression(cache, tmp_path):
    elder_of_hugging_face(tmp_path / "folder", has_norm=False)
    folder = str(tmp_path / "folder")
    assert any("contact_head" in key for key in load_file(Path(folder, "model.safetensors")))
    with pytest.raises(UserError, match=r"no regression for contacts \(none was published for ESM"):
        ready(folder, cache)
    other = regression_of(save(tmp_path / "other.pt"))
    assert computed(folder, cache, [b"MKTAYI"], regression=str(other))
    alone = {"pairs": "none", "maps": False, "attention_of": "a"}
    (row,) = computed(folder, cache, [b"MKTAYI\n"], **alone)
    assert list(row) == ["attention"]
    with pytest.raises(ValueError, match=r"UR90S_3 has no regression for contacts; set model:"):
        contacts.Options(model="esm1v_t33_650M_UR90S_3")
    assert contacts.Options(model="esm1v_t33_650M_UR90S_3", **alone)


def test_an_esm_1_has_positions_for_1022_residues(cache, tmp_path):
    path = save(tmp_path / "esm1b.pt")
    model = str(path)
    protein = ("MKTAYIAKQRQISFVKSHFSRQ" * 50)[:1030]
    (row,) = computed(model, cache, [protein.encode()])
    expected = Reference(fair_esm_of(path))(protein[:1022])
    np.testing.assert_allclose(row["contact_map"], expected, rtol=0, atol=1e-5)
    Path(tmp_path, "in.fa").write_text(f">a\n{protein}\n")
    (record,) = contacts.records([tmp_path / "in.fa"], contacts.Options(model=model))
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
