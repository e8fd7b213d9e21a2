"""The workload encoder on networks that transformers does not have, against their published
arithmetic, one sequence at a time."""

import numpy as np
import published_arithmetic as published
import pytest
import torch
from encoder_models import dna
from esm2_models import cosines, demo_proteins, relative_l2
from safetensors.torch import load_file, save_file

from featuremill.base.errors import UserError
from featuremill.lease.devices import cpu
from featuremill.workload import plain_weights, weights
from featuremill.workloads import encoder
from featuremill.workloads.encoder import architectures, padding, vocabulary

pytestmark = pytest.mark.filterwarnings("ignore:The following device_map keys")
CPU = cpu()
FP32_L2, BF16_COSINE = 1e-5, 0.9995


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    return {name: published.write(folder / name, name) for name in published.CONFIGS}


def loaded(folder, alphabet, **options):
    given = {"model": str(folder), "alphabet": alphabet, "dtype": "fp32"} | options
    found = weights.weights_of(plain_weights.look(str(folder), True, 1))
    resolved = encoder.resolve(encoder.Options.model_validate(given), CPU, found)
    return encoder.load(resolved, [CPU], found)


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


def sequences(name):
    if published.ALPHABETS[name] == "nucleotides":
        return [*dna(4, 200), "ACGTNNACGTACGT", "ACG"]
    return [*(text[:70] for text in demo_proteins(4, 90)), "M", "MKUZOBX"]


@pytest.mark.parametrize("name", published.CONFIGS)
def test_every_layer_is_that_of_the_published_arithmetic_alone_and_in_any_batch(folders, name):
    letters, tensors = sequences(name), load_file(folders[name] / "model.safetensors")
    ids = [tokens_of(name, text) for text in letters]
    expected = [published.hidden_states(name, tensors, each) for each in ids]
    for dtype in ("fp32", "bf16") if CPU.has_bf16 else ("fp32",):
        model = loaded(folders[name], published.ALPHABETS[name], dtype=dtype)
        tokens = [model.vocabulary.tokens(text.encode()) for text in letters]
        assert [each.tolist() for each in tokens] == ids
        layers = range(published.LAYERS + 1)
        for most_filling in (0.0, 1.0):
            for group in padding.groups(tokens, model.vocabulary, 4096, most_filling):
                hidden = model.encoder.hidden_states(group.tokens_BT, group.is_token_BT, layers)
                for row, place in enumerate(group.places):
                    for layer in layers:
                        ours = hidden[layer][row, : len(ids[place])]
                        theirs = expected[place][layer].float()
                        if dtype == "fp32":
                            assert relative_l2(ours, theirs) <= FP32_L2
                        else:
                            assert cosines(ours, theirs).min() >= BF16_COSINE


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


def test_glm2_s_tokens_are_known_where_its_folder_has_none(folders):
    words = vocabulary.of(folders["glm2"], "gLM2")
    assert (words.first, words.last, words.size, words.pad) == ((33,), (), 37 - 3, 1)
