"""The workload contacts, held against fair-esm's own `predict_contacts` and its attention."""

import functools
import json
import os
from pathlib import Path
from types import MappingProxyType

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
import yaml
from bench.contacts import save
from bench.elders import elder_of_hugging_face, fair_esm_of, save_elder
from conftest import ROOT
from esm2_models import (
    ALPHABET,
    demo_proteins,
    fair_esm,
    fair_esm_bundled,
    save_fair_esm,
    save_hugging_face,
    tokens_of,
)
from programs import Desk, QuickWorkload, printed_by, working_in, write_fasta
from safetensors.torch import load_file, save_file
from transformers import EsmForMaskedLM

import featuremill
from featuremill.__main__ import main
from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.workload import RecordFailed, option_files
from featuremill.workload import weights as weights_verb
from featuremill.workload.compute import values_of
from featuremill.workloads import contacts
from featuremill.workloads.contacts import attention, columns, contact_maps, sources

CPU = cpu()
ALONE = {"pairs": "none", "maps": False}
"""Options with which there are no contacts."""
PROTEINS = ["MKTAYIAKQRQISFVKSHFSRQ", "ACDEFGHIKLMXBN", "M", "MK", "X-.UZO", *demo_proteins(3, 300)]


def random_network(num_layers=3, width=48, heads=3):
    """Return fair-esm's model with random weights, whose heads look at few residues, and with a
    random regression."""
    network = fair_esm(num_layers, width, heads, seed=3)
    for layer in network.layers:
        layer.self_attn.q_proj.weight *= 2
        layer.self_attn.k_proj.weight *= 2
    return with_regression(network)


def with_regression(network, bias=-1.0):
    torch.manual_seed(7)
    network.contact_head.regression.weight.normal_()
    network.contact_head.regression.bias.fill_(bias)
    return network


@pytest.fixture(scope="module", params=["random", "bundled"])
def network(request, cache):
    """Return the reference, and the model option that gives ours the same weights."""
    is_random = request.param == "random"
    model = random_network() if is_random else with_regression(fair_esm_bundled())
    return model, str(save(model, cache / f"{request.param}.pt"))


def ready(model, cache, **options):
    found = weights_verb.weights_of(weights_verb.convert(model, cache, "contacts"))
    asked = {"dtype": "fp32", "output_dtype": "float32"} | options
    settled = contacts.resolve(contacts.Options(model=model, **asked), CPU, found)
    return settled, contacts.load(settled, [CPU], found), found


def computed(model, cache, payloads, budget=4096, **options):
    settled, loaded, found = ready(model, cache, **options)
    values = values_of(contacts, loaded, payloads, budget)
    assert values.schema.equals(contacts.schema(settled, found))
    return values.to_pylist()


def payloads_of(proteins):
    return [protein.encode() for protein in proteins]


@torch.inference_mode()
def theirs(network, protein):
    return network.predict_contacts(tokens_of(protein))[0].numpy()


@torch.inference_mode()
def their_attention(network, protein):
    found = network(tokens_of(protein), need_head_weights=True)["attentions"]
    return found[0, :, :, 1:-1, 1:-1].numpy()


def check_contacts(model, cache, proteins, expected_of):
    spreads, furthest = [], 0.0
    rows = computed(model, cache, payloads_of(proteins))
    for protein, row in zip(proteins, rows, strict=True):
        expected, found = expected_of(protein), np.array(row["contact_map"])
        assert found.shape == (len(protein),) * 2 and (found == found.T).all()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        furthest = max(furthest, np.abs(found - expected).max())
        spreads.append(expected.std())
    print(f"probabilities at most {furthest:.1e} off, of a spread of {max(spreads):.2f}")
    assert max(spreads) > 0.05, "a map without contrast would show nothing"


def test_contacts_are_those_of_fair_esm(network, cache):
    reference, name = network
    check_contacts(name, cache, PROTEINS, lambda protein: theirs(reference, protein))


def test_padding_in_a_batch_of_fair_esm_changes_nothing_and_neither_do_other_proteins_here(
    network, cache
):
    reference, name = network
    _, _, tokens = ALPHABET.get_batch_converter()([("", protein) for protein in PROTEINS])
    with torch.inference_mode():
        padded = reference.predict_contacts(tokens).numpy()
    _, loaded, _ = ready(name, cache)
    payloads = payloads_of(PROTEINS)
    together = values_of(contacts, loaded, payloads, 4096)
    for number, (protein, row) in enumerate(zip(PROTEINS, together.to_pylist(), strict=True)):
        expected = padded[number, : len(protein), : len(protein)]
        np.testing.assert_allclose(row["contact_map"], expected, rtol=0, atol=1e-5)
        alone = values_of(contacts, loaded, [payloads[number]], 4096)
        assert alone.equals(together.slice(number, 1)), protein
    turned = values_of(contacts, loaded, payloads[::-1], 4096)
    assert turned.to_pylist() == together.to_pylist()[::-1]


def test_attention_is_that_of_each_head_of_each_layer(network, cache):
    reference, name = network
    payloads = payloads_of(PROTEINS)
    chosen = (0, 4, 6)
    for number in chosen:
        payloads[number] += contacts.WITH_ATTENTION
    asked = {"attention_of": ["a"], **ALONE}
    for options in (asked, {"attention_of": ["a"]}):
        _, loaded, _ = ready(name, cache, **options)
        values = values_of(contacts, loaded, payloads, 4096)["attention"]
        for number, cell in enumerate(values):
            if number not in chosen:
                assert len(cell) == 0
                continue
            expected = their_attention(reference, PROTEINS[number])
            np.testing.assert_allclose(columns.stack(cell), expected, rtol=0, atol=1e-5)


def test_tiles_and_layers_on_several_devices_change_only_rounding(network, cache, monkeypatch):
    reference, name = network
    protein = PROTEINS[-1]
    monkeypatch.setitem(contacts.TILE_BYTES, "cpu", tile_bytes := 4 * 7 * len(protein))
    assert len(attention.tiles_of(0, slice(0, len(protein) + 2), tile_bytes)) > 10
    (row,) = computed(name, cache, [protein.encode()])
    np.testing.assert_allclose(row["contact_map"], theirs(reference, protein), rtol=0, atol=1e-5)
    settled, _, found = ready(name, cache)
    spread = contacts.load(settled, [CPU, CPU], found)
    assert len(spread.encoder.stages) == 2
    (again,) = values_of(contacts, spread, [protein.encode()], 4096).to_pylist()
    assert again == row


def test_the_number_of_threads_changes_no_bit(network, cache):
    _, name = network
    _, loaded, _ = ready(name, cache)
    payloads, before = payloads_of(PROTEINS), torch.get_num_threads()
    found = []
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            found.append(values_of(contacts, loaded, payloads, 4096))
    finally:
        torch.set_num_threads(before)
    assert found[0].equals(found[1]) and found[0].equals(found[2])


def test_bf16_stays_near_fp32(cache, network):
    if not CPU.has_bf16:
        pytest.skip("this CPU has no bf16")
    _, name = network
    exact, found = (
        computed(name, cache, payloads_of(PROTEINS), dtype=dtype) for dtype in ("fp32", "bf16")
    )
    differences = [
        np.abs(np.subtract(one["contact_map"], other["contact_map"]))
        for one, other in zip(exact, found, strict=True)
    ]
    largest, mean = max(each.max() for each in differences), differences[-1].mean()
    print(f"bf16: probabilities at most {largest:.1e} off, {mean:.1e} on average")
    assert 0 < largest < 0.1 and mean < 5e-3


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"min_probability": 0.3, "min_separation": 1},
        {"pairs": "top"},
        {"pairs": "top", "pairs_per_residue": 0.2, "min_separation": 12},
        {"min_probability": 1.0},
        {"pairs": "top", "pairs_per_residue": float("inf"), "min_separation": 1},
    ],
)
def test_pairs_are_the_likeliest_of_the_map(network, cache, options):
    _, name = network
    asked = contacts.Options(model=name, **options)
    rows = computed(name, cache, payloads_of(PROTEINS), **options)
    for protein, row in zip(PROTEINS, rows, strict=True):
        found = np.float32(row["contact_map"])
        every = pd.DataFrame(
            [
                (i + 1, j + 1, protein[i], protein[j], found[i, j])
                for i in range(len(protein))
                for j in range(i + asked.min_separation, len(protein))
            ],
            columns=["i", "j", "residue_i", "residue_j", "probability"],
        ).sort_values("probability", ascending=False, kind="stable")
        if asked.pairs == "top":
            most = min(asked.pairs_per_residue * len(protein), len(every))
            expected = every.head(max(1, round(most)))
        else:
            expected = every[every["probability"] >= np.float32(asked.min_probability)]
        told = pd.DataFrame(row["contacts"], columns=every.columns)
        for column in expected.columns[:4]:
            assert told[column].tolist() == expected[column].tolist()
        assert np.float32(told["probability"]).tolist() == expected["probability"].tolist()


def test_a_long_protein_is_cut_or_computed_whole(network, cache):
    reference, name = network
    protein = PROTEINS[-1]
    (cut,) = computed(name, cache, [protein.encode()], max_residues=30)
    np.testing.assert_allclose(cut["contact_map"], theirs(reference, protein[:30]), atol=1e-5)
    (whole,) = computed(name, cache, [protein.encode()], long="full")
    assert len(whole["contact_map"]) == len(protein)
    with pytest.raises(ValueError, match="long"):
        contacts.Options(model=name, long="chunk")


def without_a_number(name, real):
    """Spoil the contacts of one protein, or what its heads attend to."""

    def spoiled(self, *given):
        found = real(self, *given)
        if name == "attention":
            found[1][0, 0, 0, 0] = float("nan")
            return found
        return found * float("nan") if len(found) == len(PROTEINS[1]) else found

    return spoiled


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("_contacts", {}),
        ("attention", {"attention_of": "a"}),
        ("attention", {"attention_of": "a", **ALONE}),
    ],
)
def test_what_is_not_finite_fails_alone(network, cache, monkeypatch, name, options):
    real = getattr(attention.Observer, name)
    monkeypatch.setattr(attention.Observer, name, without_a_number(name, real))
    _, loaded, _ = ready(network[1], cache, **options)
    ends = contacts.WITH_ATTENTION * bool(options)
    payloads = [payload + ends for payload in payloads_of(PROTEINS[:3])]
    values = values_of(contacts, loaded, payloads, 4096)
    one, bad, other = values["reason"].to_pylist()
    assert (one, other) == (None, None) and "not finite" in bad


def test_for_attention_alone_no_other_protein_is_computed(network, cache, monkeypatch):
    _, name = network
    alone = {"attention_of": "a", **ALONE}
    settled, loaded, _ = ready(name, cache, **alone)
    payloads = payloads_of(PROTEINS[:4])
    payloads[2] += contacts.WITH_ATTENTION
    assert [contacts.cost(payload, settled) for payload in payloads] == [1, 1, 3, 1]
    batch = contacts.prepare(loaded, payloads, 4096)
    assert batch.pack.bounds == [0, 3]
    with_contacts, _, _ = ready(name, cache, attention_of="a")
    assert contacts.cost(payloads[0], with_contacts) == len(PROTEINS[0]) + 2
    values = values_of(contacts, loaded, payloads, 4096)["attention"]
    assert [len(each) > 0 for each in values] == [False, False, True, False]
    (expected,) = values_of(contacts, loaded, payloads[2:3], 4096)["attention"].to_pylist()
    assert values[2].as_py() == expected
    monkeypatch.setattr(loaded.encoder, "representations", None)
    others = values_of(contacts, loaded, payloads[:2], 4096)
    assert others["attention"].to_pylist() == [[], []] and "reason" not in others.schema.names


def test_a_batch_that_does_not_fit_into_memory_is_divided(network, cache, monkeypatch):
    _, name = network
    expected = computed(name, cache, payloads_of(PROTEINS[:4]))
    real = attention.Observer._attend

    def attend(self, *rest):
        if len(self._sums) > 2:
            raise torch.OutOfMemoryError("out of memory")
        real(self, *rest)

    monkeypatch.setenv("FEATUREMILL_CACHE", str(cache))
    monkeypatch.setattr(attention.Observer, "_attend", attend)
    options = {"model": name, "dtype": "fp32", "output_dtype": "float32"}
    with pytest.warns(UserWarning, match="memory"):
        table = featuremill.compute(PROTEINS[:4], "contacts", options, device="cpu")
    for row, (_, found) in zip(expected, table.iterrows(), strict=True):
        assert [list(each) for each in found["contact_map"]] == row["contact_map"]
    featuremill.forget_model()


def test_more_numbers_than_a_column_holds_fail_alone(network, cache, monkeypatch):
    reference, name = network
    num_maps = reference.num_layers * reference.attention_heads
    monkeypatch.setattr(columns, "MOST_NUMBERS", num_maps * 18**2)
    _, loaded, _ = ready(name, cache, attention_of="a")
    few = [b"MKTAYIAKQRQISF\n", b"MKTAYIAKQRQISK\n"]
    for chosen in (few, [PROTEINS[-1].encode() + b"\n"]):
        with pytest.raises(RecordFailed, match=r"[0-9] numbers"):
            contacts.prepare(loaded, chosen, 4096)
    for payload in (few[0], PROTEINS[-3][:40].encode()):
        contacts.prepare(loaded, [payload], 4096)


# checkpoints


def test_the_regression_comes_from_every_form_of_a_checkpoint(cache, tmp_path, hub):
    model = random_network()
    of_pt = contacts.Options(model=str(save(model, tmp_path / "fair.pt")))
    beside = tmp_path / "fair-contact-regression.pt"
    assert of_pt.regression == str(beside)
    head = {k: v for k, v in model.state_dict().items() if k.startswith("contact_head.")}
    folder = save_hugging_face(
        model, tmp_path / "face", head={f"esm.{key}": value for key, value in head.items()}
    ).parent
    settings = torch.load(tmp_path / "fair.pt", weights_only=False)
    settings["model"] |= head  # what `torch.save` of fair-esm's whole state dict would have
    torch.save(settings, tmp_path / "whole.pt")
    save_fair_esm(model, tmp_path / "bare.pt")
    save_file({key: value.clone() for key, value in head.items()}, tmp_path / "other.safetensors")
    payloads = payloads_of(PROTEINS[:2])
    expected = computed(str(tmp_path / "fair.pt"), cache, payloads)
    assert computed(str(folder), cache, payloads) == expected
    assert computed(str(tmp_path / "whole.pt"), cache, payloads) == expected
    own = {"regression": str(tmp_path / "other.safetensors")}
    assert computed(str(tmp_path / "bare.pt"), cache, payloads, **own) == expected
    # A published one lies where fair-esm's downloads do.
    name, real = "esm2_t6_8M_UR50D", random_network(6, 320, 20)
    save(real, hub / f"{name}.pt")
    assert contacts.Options(model=name).regression is None
    (row,) = computed(name, tmp_path / "cache", payloads[:1])
    np.testing.assert_allclose(row["contact_map"], theirs(real, PROTEINS[0]), rtol=0, atol=1e-5)


def test_a_published_regression_is_downloaded_beside_its_network(tmp_path, hub, monkeypatch):
    name = "esm2_t6_8M_UR50D"
    save(random_network(6, 320, 20), hub / f"{name}.pt")
    beside = hub / f"{name}-contact-regression.pt"
    content = beside.read_bytes()
    beside.unlink()
    asked = []

    def download(url, path):
        asked.append(url.rpartition("fair-esm/")[2])
        if len(asked) == 1:
            raise OSError("no network")
        Path(path).write_bytes(content)

    monkeypatch.setattr(sources, "download", download)
    with pytest.raises(UserError, match=r"cannot be downloaded here \(no network\); fetch it"):
        weights_verb.convert(name, tmp_path / "cache", "contacts")
    made = weights_verb.convert(name, tmp_path / "cache", "contacts")
    assert made.metadata[sources.HAS_REGRESSION] == "yes" and beside.read_bytes() == content
    assert asked == [f"regression/{name}-contact-regression.pt"] * 2


def test_a_regression_keeps_its_numbers_where_the_network_has_16_bits(cache, tmp_path):
    model = random_network()
    for parameter in model.parameters():
        if parameter is not model.contact_head.regression.weight:
            parameter.copy_(parameter.half().float())
    head = {f"esm.{k}": v for k, v in model.state_dict().items() if k.startswith("contact_head.")}
    turns = model.layers[0].self_attn.rot_emb.inv_freq.half().float()
    head["esm.encoder.layer.0.attention.self.rotary_embeddings.inv_freq"] = turns
    folder = save_hugging_face(model, tmp_path / "half", head=head).parent
    found = load_file(weights_verb.convert(str(folder), cache, "contacts").path)
    assert found["layers.0.qkv.weight"].dtype == torch.float16
    assert torch.equal(
        found["contacts.weight"].flatten(), model.contact_head.regression.weight.flatten()
    )


def test_an_edit_of_the_regression_beside_the_weights_is_another_recipe(tmp_path):
    path = save(random_network(), tmp_path / "fair.pt")
    before = option_files.digests(contacts.Options(model=str(path)))
    assert list(before) == ["regression"]
    save(with_regression(random_network(), bias=0.5), path)
    assert option_files.digests(contacts.Options(model=str(path))) != before
    alone = contacts.Options(model=str(path), attention_of="a", **ALONE)
    assert option_files.digests(alone) == {}


def test_without_a_regression_there_are_no_contacts_and_a_sentence(cache, tmp_path):
    with pytest.raises(ValueError, match=r"mill_t6_8M has no regression for contacts; set model:"):
        contacts.Options(model="mill_t6_8M")
    bare = str(save_fair_esm(random_network(), tmp_path / "bare.pt"))
    with pytest.raises(UserError, match=r"bare.pt has no regression for contacts; put fair-esm's"):
        ready(bare, cache)
    for model in (bare, "mill_t6_8M"):
        (row,) = computed(model, cache, [b"MKTAYI\n"], attention_of="a", **ALONE)
        assert list(row) == ["attention"] and len(row["attention"][0][0]) == 36


def test_what_memory_is_needed_is_known_without_torch():
    said = printed_by("""
        import sys; from featuremill.base.devices import cpu
        from featuremill.workloads import contacts as c
        o = c.Options(model='esm2_t33_650M_UR50D', dtype='fp32')
        print(c.memory_mb(o, cpu(), c.weights_ahead(o), 4096), 'torch' in sys.modules)
    """)
    assert said.split()[1] == "False"


def test_doctor_answers_for_networks_with_and_without_a_regression(cache, monkeypatch, capsys):
    monkeypatch.setenv("FEATUREMILL_CACHE", str(cache))
    for model in ("mill_t6_8M", "esm2_t33_650M_UR50D"):
        main(["doctor", "--model", model, "--workload", "contacts"])
        said = " ".join(capsys.readouterr().out.split())
        assert f"{model} fits " in said and "; it needs about " in said
    found = contacts.weights_ahead(contacts.Options(model=model))

    def told(budget, **more):
        options = contacts.Options(model=model, dtype="fp32", **more)
        return contacts.memory_mb(options, CPU, found, budget)

    for names, most in ((["a"], 1), (["a", "b"], 2), (list("abcdefghi"), 4)):
        attention_mb = told(4096, attention_of=names) - told(4096)
        of_one = 2 * 33 * 20 * 1024**2 / 2**20
        assert 3 * most * of_one < attention_mb < 3.6 * most * of_one
    # Beside sums and probabilities of two batches, a few matrices of the longest protein.
    assert (
        told(8192, max_residues=8190) - told(8192, max_residues=1000)
        > 4 * (2 * 8192 * 7000 + 4 * 8000**2) / 2**20
    )


def test_a_regression_of_another_network_or_none_at_all_is_refused(cache, tmp_path):
    path = str(save(random_network(), tmp_path / "fair.pt"))
    save(random_network(2), tmp_path / "small.pt")
    torch.save({"model": {"lm_head.bias": torch.zeros(3)}}, tmp_path / "other.pt")
    small = (tmp_path / "small-contact-regression.pt").read_bytes()
    for content, said in (
        (small, r"has 6 and 1 numbers, and this network needs 9 \(3 layer"),
        ((tmp_path / "other.pt").read_bytes(), r"no contact_head.regression.weight and bias; give"),
        (b"<html>", r"this regression cannot be read .*; fetch it again"),
    ):
        (tmp_path / "fair-contact-regression.pt").write_bytes(content)
        with pytest.raises(UserError, match=said):
            ready(path, cache)


# ESM-1b and ESM-1v

OF_ESM_1 = [*PROTEINS[:3], PROTEINS[4], "MKTAYIAKQRQISFVK" * 9]


def save_esm_1(path, **shape):
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
    path = save_esm_1(cache / name.replace("_.pt", ".pt"), has_norm="1b" in name)
    return reference(fair_esm_of(path)), str(path)


def test_contacts_of_an_esm_1_are_those_of_its_authors(elder, cache):
    expected_of, model = elder
    check_contacts(model, cache, OF_ESM_1, expected_of)


def test_attention_of_an_esm_1_is_that_of_each_head_of_each_layer(cache):
    path = save_esm_1(cache / "heads.pt")
    settled, loaded, _ = ready(str(path), cache, attention_of="a", **ALONE)
    assert settled.model.startswith("esm1b_t3_w48-")
    values = values_of(contacts, loaded, [OF_ESM_1[0].encode() + contacts.WITH_ATTENTION], 4096)
    expected = their_attention(fair_esm_of(path), OF_ESM_1[0])
    found = columns.stack(values["attention"][0])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_the_regression_of_an_esm_1b_may_be_inside_of_its_file_or_in_one_that_is_named(
    cache, tmp_path
):
    path = save_esm_1(tmp_path / "esm1b.pt")
    payloads, beside = payloads_of(OF_ESM_1), regression_of(path)
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
    other = regression_of(save_esm_1(tmp_path / "other.pt"))
    assert computed(folder, cache, [b"MKTAYI"], regression=str(other))
    alone = {"attention_of": "a", **ALONE}
    (row,) = computed(folder, cache, [b"MKTAYI\n"], **alone)
    assert list(row) == ["attention"]
    with pytest.raises(ValueError, match=r"UR90S_3 has no regression for contacts; set model:"):
        contacts.Options(model="esm1v_t33_650M_UR90S_3")
    assert contacts.Options(model="esm1v_t33_650M_UR90S_3", **alone)


def test_an_esm_1_has_positions_for_1022_residues(cache, tmp_path):
    path = save_esm_1(tmp_path / "esm1b.pt")
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
    place, tmp_path, hub, monkeypatch
):
    name = "esm1b_t33_650M_UR50S"
    path = save_esm_1(tmp_path / f"{name}.pt")
    expected = computed(str(path), tmp_path / "cache", payloads_of(OF_ESM_1[:2]))
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
        assert computed(name, tmp_path / "cache", payloads_of(OF_ESM_1[:2])) == expected


def folder_without_regression(tmp_path):
    """Return a folder as Hugging Face's cache has it, of a network without contact head."""
    folder = tmp_path / "face"
    network = elder_of_hugging_face(folder)
    state = {k: v for k, v in network.state_dict().items() if "contact_head" not in k}
    network.save_pretrained(folder, state_dict=state)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "esm"
    return folder


# records


def test_attention_is_of_the_proteins_that_are_named(tmp_path):
    path = write_fasta(tmp_path / "in.fa", {"sp|P35309|A": "MKTAYI", "b": "ACDEFGHIKL", "c": "M1"})
    more = write_fasta(tmp_path / "more.fa", {"d": "MKTA"})

    def read(*paths, **options):
        options = contacts.Options(model="esm2_t6_8M_UR50D", max_residues=8, **options)
        return list(contacts.records(paths, options)), options

    plain, _ = read(path)
    assert [record.payload for record in plain] == [b"MKTAYI", b"ACDEFGHIKL", b""]
    assert plain[1].note.startswith("longer than 8 residues, truncated")
    (one, other, bad), options = read(path, attention_of=["P35309", "c"])
    assert (one.payload, one.length) == (b"MKTAYI\n", 6) and other == plain[1] and bad.reason
    assert contacts.cost(one.payload, options) == 8 and contacts.cost(other.payload, options) == 10
    assert read(path, more, attention_of="d")[0][-1].payload == b"MKTA\n"
    twice, _ = read(path, attention_of=["sp|P35309|A", "P35309"])
    assert [record.payload for record in twice] == [b"MKTAYI\n", b"ACDEFGHIKL", b""]
    with pytest.raises(UserError, match=r"^options.attention_of: no protein of the inputs is call"):
        read(path, attention_of=["b", "P3530"])


# a run


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory):
    """Have the processes of the contract find few records, a network and a cache of their own."""
    folder = tmp_path_factory.mktemp("contacts")
    save(random_network(), folder / "fair.pt")
    proteins = [protein[:24] for protein in demo_proteins(14)]
    write_fasta(folder / "few.fa", {f"p{n}": protein for n, protein in enumerate(proteins)})
    with working_in(folder, FEATUREMILL_CACHE=folder / "cache"):
        yield folder


@pytest.mark.usefixtures("surroundings")
class TestContacts(QuickWorkload):
    workload = "contacts"
    inputs = ("few.fa",)
    options = MappingProxyType(
        {"model": "fair.pt", "dtype": "fp32", "pairs": "top", "attention_of": ["p3", "p5"]}
    )

    def test_a_run_writes_pairs_maps_and_attention(self, tmp_path_factory):
        run = self._finished(tmp_path_factory)
        folder, rows = run.folder.root, run.table.to_pylist()
        outputs = ["contacts_tsv", "contacts_h5", "attention_h5"]
        assert main(["export", str(folder), "--to", *outputs]) == 0
        found = pd.read_csv(folder / "contacts.tsv", sep="\t")
        assert list(found) == ["id", "i", "j", "residue_i", "residue_j", "probability"]
        assert found["id"].tolist() == [row["id"] for row in rows for _ in row["contacts"]]
        told = [pair["probability"] for row in rows for pair in row["contacts"]]
        np.testing.assert_allclose(found["probability"], told, rtol=1e-6)
        with h5py.File(folder / "contacts.h5") as file:
            assert list(file) == sorted(row["id"] for row in rows)
            for row in rows:
                stored = file[row["id"]]
                assert stored.attrs["original_id"] == row["id"] and stored.dtype == np.float16
                assert np.array_equal(stored[:], np.float16(row["contact_map"]))
                pair = row["contacts"][0]
                likeliest = stored[pair["i"] - 1, pair["j"] - 1]
                assert likeliest == np.float16(pair["probability"])
            assert file.attrs["columns"] == "contact_map"
        with h5py.File(folder / "attention.h5") as file:
            assert list(file) == ["p3", "p5"]
            assert file["p3"].shape == (3, 3, 24, 24)
            assert np.array_equal(file["p5"][1, 2].ravel(), rows[5]["attention"][1][2])


@pytest.fixture
def run(surroundings, tmp_path):
    """Return a function that runs a config with that network, and the desk where it did."""

    def run(options, **config):
        desk = Desk(tmp_path, dict(os.environ))
        options = {"model": str(surroundings / "fair.pt"), **options}
        config |= {"run": "my", "workload": "contacts", "options": options}
        (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
        desk.type("featuremill", "run", "my.yaml", "--cores", "1", "--quiet")
        return desk

    return run


def test_outputs_that_would_be_empty_are_refused(run, tmp_path):
    write_fasta(tmp_path / "in.fa", {"a": "MKTAYIAKQRQ"})
    desk = run({"maps": False}, inputs="in.fa", outputs=["contacts_tsv"])
    said = desk.type("featuremill", "export", "results/my", "--to", "contacts_h5", status=2)
    assert "contacts_h5 needs maps: true" in said.err


def test_each_id_of_each_sample_has_its_own_map(run, tmp_path):
    one, other, third = "MKTAYIAKQRQ", "ACDEFGHIKLMNPQRST", "MKVLAYPPEM"
    sheet = {
        "L1": {"a/b": one, "dup1": other, "dup2": other, ".": "MKTAY", "bad": "M1", "x%2Fy": third},
        "S1": {"dup1": other, "x/y": one, "x%2Fy": other},
    }
    for name, proteins in sheet.items():
        write_fasta(tmp_path / f"{name}.fa", proteins)
    (tmp_path / "samples.tsv").write_text("sample\tfile\nL1\tL1.fa\nS1\tS1.fa\n")
    options = {"dtype": "fp32", "output_dtype": "float32", "pairs": "top", "min_separation": 1}
    options |= {"attention_of": ["dup1", "a/b", "bad"]}
    run(options, samples="samples.tsv", outputs=["contacts_tsv", "contacts_h5", "attention_h5"])
    folder, reference = tmp_path / "results" / "my", random_network()
    listed = pd.read_csv(folder / "contacts.tsv", sep="\t").groupby("id")
    with h5py.File(folder / "contacts.h5") as maps, h5py.File(folder / "attention.h5") as of_heads:
        for name, proteins in sheet.items():
            own = {dataset.attrs["original_id"]: dataset[:] for dataset in maps[name].values()}
            assert own.keys() == proteins.keys() - {"bad"}
            for id, found in own.items():
                expected = theirs(reference, proteins[id])
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
                pairs = listed.get_group(f"{name}/{id}")
                told = found[pairs["i"] - 1, pairs["j"] - 1]
                np.testing.assert_allclose(pairs["probability"], told, rtol=1e-5)
            wanted = {dataset.attrs["original_id"] for dataset in of_heads[name].values()}
            assert wanted == {"dup1", "a/b"} & proteins.keys()


def test_the_report_draws_the_listed_pairs_of_six_proteins(network, cache):
    _, name = network
    _, loaded, _ = ready(name, cache, pairs="top")
    proteins = demo_proteins(8, 120)
    values = values_of(contacts, loaded, payloads_of(proteins), 4096)
    table = values.append_column("id", pa.array([f"p{n}" for n in range(8)]))
    table = table.append_column("length", pa.array(list(map(len, proteins))))
    figures = contacts.figures(table.schema.names, lambda names: iter([table.select(names)]))
    assert [figure.name for figure in figures] == [f"contacts-{n}" for n in range(1, 7)]
    assert figures[0].sentence.endswith(
        "Only the first 6 proteins are drawn; the results have all."
    )
    (panel,) = figures[1].panels
    points = panel.chart["layer"][0].get("data", panel.chart.get("data"))["values"]
    pairs = values["contacts"][1].as_py()
    assert len(points) == len(pairs) == len(proteins[1])
    assert {(p["i"], p["j"]) for p in points} == {(p["i"], p["j"]) for p in pairs}
    assert contacts.figures(["contact_map"], None) == []
    many = contact_maps.Protein("m", 9, [pairs[0]] * (contact_maps.MOST_PAIRS + 1))
    assert "Drawn are the likeliest 3,000." in contact_maps.figure(1, many).sentence


# memory


MEASURED = """
import sys
from pathlib import Path
from featuremill.base.this_process import peak_of_process_mb
from featuremill.base.devices import cpu
from featuremill.workload import weights
from featuremill.workload.compute import values_of
from featuremill.workloads import contacts
model, length, cache = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
found = weights.weights_of(weights.convert(model, cache, "contacts"))
wanted = int(sys.argv[4])
names = [str(n) for n in range(wanted)]
asked = {"dtype": "fp32", "pairs": "top", "max_residues": length - 2, "attention_of": names}
asked = contacts.Options(model=model, **asked)
options = contacts.resolve(asked, cpu(), found)
loaded = contacts.load(options, [cpu()], found)
payloads = [(b"ACDEFGHIKLMNPQRSTVWY" * 999)[n : n + length - 2] for n in range(4096 // length)]
payloads[:wanted] = [payload + contacts.WITH_ATTENTION for payload in payloads[:wanted]]
for _ in range(2):
    values = values_of(contacts, loaded, payloads, 4096)
print(peak_of_process_mb(), contacts.memory_mb(options, cpu(), found, 4096))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("length", "wanted"), [(512, 0), (4096, 0), (1024, 1), (1024, 4)])
def test_the_memory_that_is_told_is_what_it_takes(tmp_path, length, wanted):
    path = save(with_regression(fair_esm(6, 320, 20)), tmp_path / "fair.pt")
    said = printed_by(MEASURED, path, length, tmp_path / "cache", wanted, cwd=ROOT)
    peak, told = map(int, said.split())
    print(f"{length} tokens, attention of {wanted}: {peak} MB, told are {told} MB")
    assert told == pytest.approx(peak, rel=0.2)
