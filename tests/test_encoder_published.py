"""The workload encoder on networks that transformers does not have, against their published
arithmetic, one sequence at a time."""

import encoder_models
import numpy as np
import published_arithmetic as published
import pytest
import torch
from encoder_models import all_layers, dna, lowest_cosine, most_off, rows_of
from esm2_models import demo_proteins, relative_l2
from safetensors.torch import load_file, save_file

from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.workloads import encoder
from featuremill.workloads.encoder import architectures, vocabulary

pytestmark = pytest.mark.filterwarnings("ignore:The following device_map keys")
CPU = cpu()
FP32_L2, BF16_COSINE = 1e-5, 0.9995


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    return {name: published.write(folder / name, name) for name in published.CONFIGS}


def loaded(folder, alphabet, **options):
    return encoder_models.loaded(folder, alphabet=alphabet, **options)


def tokens_of(name, letters):
    """Return the ids that the authors' tokenizer gives."""
    if name == "amplify":
        words = {token: id for id, token in enumerate(published.AMPLIFY_TOKENS)}
        return [3, *(words.get(letter, 1) for letter in letters), 4]
    if name == "glm2":
        words = "LAGVSERTIDPKQNFYMHWCXBUZOatcg"
        return [33, *(4 + words.index(letter) if letter in words else 3 for letter in letters)]
    words = {token: id for id, token in enumerate(published.NT2_TOKENS)}
    ids, place = [3], 0
    while place < len(letters):
        token = letters[place : place + 6]
        token = token if token in words else letters[place]
        ids.append(words[token])
        place += len(token)
    return ids


TRUE_WIDTHS = {
    "nt2": (1024, 16, 4096, {"intermediate_size": 4096}),
    "amplify": (960, 15, 2560, {"intermediate_size": 3840}),
    "glm2": (1280, 20, 3584, {"swiglu_multiple_of": 256}),
}
"""Width, heads and inner width of Nucleotide Transformer v2 500M, AMPLIFY 350M and gLM2 650M, and
what else their configs say of them."""


def sequences(name):
    if published.ALPHABETS[name] == "nucleotides":
        return [*dna(4, 200), "ACGTNNACGTACGT", "ACG"]
    return [*(text[:70] for text in demo_proteins(4, 90)), "M", "MKUZOBX"]


@pytest.mark.parametrize("name", published.CONFIGS)
def test_every_layer_is_that_of_the_published_arithmetic_alone_and_in_any_batch(folders, name):
    for dtype, worst, lowest in compared(folders[name], name):
        assert worst <= FP32_L2 if dtype == "fp32" else lowest >= BF16_COSINE


@pytest.mark.slow
@pytest.mark.parametrize("name", TRUE_WIDTHS)
def test_true_widths_are_those_of_the_published_arithmetic(tmp_path, monkeypatch, name):
    width, heads, inner, more = TRUE_WIDTHS[name]
    for key, value in {"WIDTH": width, "HEADS": heads, "LAYERS": 2}.items():
        monkeypatch.setattr(published, key, value)
    monkeypatch.setitem(published.INNER, name, inner)
    of_glm2 = {"dim": width, "heads": heads, "depth": 2}
    of_others = {"hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": 2}
    sizes = of_glm2 if name == "glm2" else of_others
    folder = published.write(tmp_path / name, name, **sizes, **more)
    for dtype, worst, lowest in compared(folder, name):
        print(f"{name} {dtype}: relative L2 {worst:.1e}, lowest cosine {lowest:.6f}")
        assert worst <= FP32_L2 if dtype == "fp32" else lowest >= BF16_COSINE


def compared(folder, name):
    """Yield for each dtype the largest relative L2 of a layer, and the lowest cosine of a token,
    alone and in batches."""
    letters, tensors = sequences(name), load_file(folder / "model.safetensors")
    ids = [tokens_of(name, text) for text in letters]
    exact = (published.hidden_states(name, tensors, each) for each in ids)
    expected = [[state.float() for state in states] for states in exact]
    for dtype in ("fp32", "bf16") if CPU.has_bf16 else ("fp32",):
        model = loaded(folder, published.ALPHABETS[name], dtype=dtype)
        tokens = [model.vocabulary.tokens(text.encode()) for text in letters]
        assert [each.tolist() for each in tokens] == ids
        found = [all_layers(model, letters, most_filling) for most_filling in (0.0, 1.0)]
        worst = max(most_off(each, expected) for each in found)
        yield dtype, worst, min(lowest_cosine(each, expected) for each in found)


def test_bases_are_small_letters_to_glm2(folders, tmp_path):
    path = tmp_path / "in.fa"
    path.write_text(">one\nACGUACGN\n")
    for alphabet, payload in (("nucleotides", b"acgtacgn"), ("proteins", b"ACGUACGN")):
        model = loaded(folders["glm2"], alphabet)
        (record,) = encoder.records([path], model.options)
        assert record.payload == payload
        own = model.vocabulary.own(payload)
        assert ((own >= 29).sum() == 7) == (alphabet == "nucleotides")
        assert ("not in the model's vocabulary" in record.note) == (alphabet == "nucleotides")


@pytest.mark.parametrize(("name", "most"), [("nt2", 12282), ("amplify", 2046), ("glm2", 4095)])
def test_as_many_letters_as_a_network_was_trained_with_are_taken(folders, name, most):
    model = loaded(folders[name], published.ALPHABETS[name])
    assert model.options.max_residues == most


@pytest.mark.parametrize(
    ("name", "changes", "part"),
    [
        ("amplify", {"hidden_act": "relu"}, "its hidden_act is 'relu'.* with 'SwiGLU' only"),
        ("amplify", {"rms_norm": False}, "its rms_norm is False"),
        ("amplify", {"num_attention_heads": 5}, "does not make 5 heads"),
        ("amplify", {"intermediate_size": None}, "it lacks or has a wrong"),
        ("glm2", {"swiglu_multiple_of": 256}, "of another shape: layers.0.down.weight"),
        ("segment_nt", {"rescaling_factor": 2.5}, "its rescaling_factor is 2.5"),
        ("nt2", {"add_bias_fnn": True}, "missing: encoder.layer.0.intermediate.dense.bias"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path, name, changes, part):
    folder = published.write(tmp_path / name, name, **changes)
    with pytest.raises(UserError, match=part):
        loaded(folder, published.ALPHABETS[name])


def test_the_weights_tell_a_gate_that_the_config_does_not(folders, tmp_path):
    """Folders that were saved anew may have lost `add_bias_fnn`."""
    folder = published.write(tmp_path / "nt2", "nt2")
    biased = load_file(folder / "model.safetensors")
    for layer in range(published.LAYERS):
        at = f"esm.encoder.layer.{layer}"
        biased[f"{at}.intermediate.dense.bias"] = torch.zeros(192)
        biased[f"{at}.output.dense.bias"] = torch.zeros(published.WIDTH)
    save_file(biased, folder / "model.safetensors")
    config = {key: value for key, value in published.ESM_CONFIG.items() if key != "add_bias_fnn"}
    (folder / "config.json").write_text(published.json.dumps(config))
    assert not architectures.facts_of(folder).architecture.is_gated
    values = [
        model.encoder.hidden_states(torch.tensor([[3, 9, 10]]), None, [3])[3].numpy()
        for model in (loaded(path, "nucleotides") for path in (folder, folders["nt2"]))
    ]
    assert np.array_equal(*values)


def test_an_element_is_on_the_strand_that_the_prefix_says(folders):
    letters = demo_proteins(1, 60)[0][:40]
    tensors = load_file(folders["glm2"] / "model.safetensors")
    for prefix, strand in (("", 33), ("<+>", 33), ("<->", 34)):
        model = loaded(folders["glm2"], "proteins", pool=["mean", "mean_all", "cls"], prefix=prefix)
        ids = [strand, *tokens_of("glm2", letters)[1:]]
        state = published.hidden_states("glm2", tensors, ids)[-1]
        (row,) = rows_of(model, [letters.encode()])
        expected = {"mean": state[1:].mean(0), "mean_all": state.mean(0), "cls": state[0]}
        for pool, vector in expected.items():
            assert relative_l2(torch.tensor(row[f"{pool}_layer_3"]), vector.float()) <= FP32_L2
    with pytest.raises(UserError, match=r"take one of <\+>, <->\."):
        loaded(folders["glm2"], "proteins", prefix="<mask>")


def test_glm2_s_tokens_are_known_where_its_folder_has_none(folders):
    words = vocabulary.load(folders["glm2"], "gLM2")
    assert (words.first, words.last, words.size, words.pad) == ((33,), (), 37 - 3, 1)
