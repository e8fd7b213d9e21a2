"""MosaicBERT against a forward in float64 from the papers, one sequence and one head at a time."""

import functools
import json
import math

import numpy as np
import pytest
import torch
from encoder_models import bpe, dna, loaded
from esm2_models import cosines, relative_l2
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.workload.compute import values_of
from featuremill.workloads import encoder
from featuremill.workloads.encoder.mosaicbert import MosaicBert, alibi_slopes, attention_bias

DNABERT2 = {
    "alibi_starting_size": 512,
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 2,
    "vocab_size": 4096,
}
"""What config.json of zhihan1996/DNABERT-2-117M says of the encoder."""
SMALL = {
    **DNABERT2,
    "alibi_starting_size": 8,
    "hidden_size": 96,
    "intermediate_size": 64,
    "layer_norm_eps": 1e-2,
    "num_hidden_layers": 3,
    "vocab_size": 50,
}
CONFIGS = {"12 heads": SMALL, "3 heads": SMALL | {"num_attention_heads": 3}, "DNABERT-2": DNABERT2}
HEADS = ("12 heads", "3 heads")
SLOPES = {
    3: (-4, -8, -2),
    4: (-2, -4, -6, -8),
    6: (-2, -4, -6, -8, -1, -3),
    8: (-1, -2, -3, -4, -5, -6, -7, -8),
    12: (-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5),
    16: tuple(-head / 2 for head in range(1, 17)),
}
"""Powers of two: those that the code of Press et al. prints for so many heads."""
OF_EMBEDDINGS = {
    "word_embeddings.weight": (4096, 768),
    "token_type_embeddings.weight": (2, 768),
    "LayerNorm.weight": (768,),
    "LayerNorm.bias": (768,),
}
OF_A_LAYER = {
    "attention.self.Wqkv.weight": (2304, 768),
    "attention.self.Wqkv.bias": (2304,),
    "attention.output.dense.weight": (768, 768),
    "attention.output.dense.bias": (768,),
    "attention.output.LayerNorm.weight": (768,),
    "attention.output.LayerNorm.bias": (768,),
    "mlp.gated_layers.weight": (6144, 768),
    "mlp.wo.weight": (768, 3072),
    "mlp.wo.bias": (768,),
    "mlp.layernorm.weight": (768,),
    "mlp.layernorm.bias": (768,),
}
PUBLISHED = {f"embeddings.{name}": shape for name, shape in OF_EMBEDDINGS.items()} | {
    f"encoder.layer.{number}.{name}": shape
    for number in range(12)
    for name, shape in OF_A_LAYER.items()
}
"""Names and shapes of DNABERT-2's checkpoint, below `bert.`."""
POOLER = 768 * 768 + 768


@functools.cache
def model_of(name):
    return random_weights(MosaicBert(CONFIGS[name]).eval())


def random_weights(model):
    """Give an encoder weights by which no norm and no bias is trivial."""
    random = torch.Generator().manual_seed(1)
    for key, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=random)
        if parameter.dim() == 1:
            values = 0.3 * values + ("norm.weight" in key.lower())
        elif "embeddings" not in key:
            values *= parameter.shape[1] ** -0.5
        parameter.data = values
    return model


@functools.cache
def tokens_of(name, length):
    return np.random.default_rng(length).integers(0, CONFIGS[name]["vocab_size"], length)


erf = np.vectorize(math.erf, otypes=[float])


def normed(x, weight, bias, eps):
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + eps) * weight + bias


def forward(state, config, tokens):
    """Return hidden_LTE, the embeddings and then each layer, in float64."""
    weights = {key: value.double().numpy() for key, value in state.items()}
    width, num_heads = config["hidden_size"], config["num_attention_heads"]
    inner, eps = config["intermediate_size"], config["layer_norm_eps"]
    size = width // num_heads
    places = np.arange(len(tokens))
    distances = np.abs(places[:, None] - places[None, :])

    def norm(x, key):
        return normed(x, weights[f"{key}.weight"], weights[f"{key}.bias"], eps)

    def product(x, key):
        return x @ weights[f"{key}.weight"].T + weights.get(f"{key}.bias", 0.0)

    words, types = "embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight"
    states = [norm(weights[words][tokens] + weights[types][0], "embeddings.LayerNorm")]
    for number in range(config["num_hidden_layers"]):
        x, layer = states[-1], f"encoder.layer.{number}"
        qkv = product(x, f"{layer}.attention.self.Wqkv")
        heads = []
        for head in range(num_heads):
            first = head * size
            q, k, v = (qkv[:, part * width + first :][:, :size] for part in range(3))
            logits = q @ k.T / math.sqrt(size) - 2.0 ** SLOPES[num_heads][head] * distances
            shares = np.exp(logits - logits.max(-1, keepdims=True))
            heads.append(shares / shares.sum(-1, keepdims=True) @ v)
        attended = product(np.concatenate(heads, -1), f"{layer}.attention.output.dense")
        x = norm(x + attended, f"{layer}.attention.output.LayerNorm")
        both = product(x, f"{layer}.mlp.gated_layers")
        gate, up = both[:, :inner], both[:, inner:]
        gated = gate * 0.5 * (1 + erf(gate / math.sqrt(2))) * up
        states.append(norm(x + product(gated, f"{layer}.mlp.wo"), f"{layer}.mlp.layernorm"))
    return np.stack(states)


@functools.cache
def exact(name, length):
    return forward(model_of(name).state_dict(), CONFIGS[name], tokens_of(name, length))


def alone(model, tokens):
    return torch.stack(model(torch.tensor(tokens)[None]))[:, 0].numpy()


@functools.cache
def alone_of(name, length):
    return alone(model_of(name), tokens_of(name, length))


def in_batch(name, lengths, starts, width):
    """Return the states of each sequence, computed together with anything in place of padding."""
    vocab_size = CONFIGS[name]["vocab_size"]
    tokens = torch.randint(vocab_size, (len(lengths), width))
    is_token = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        tokens[row, start : start + length] = torch.tensor(tokens_of(name, length))
        is_token[row, start : start + length] = True
    states = torch.stack(model_of(name)(tokens, is_token))
    return [states[:, row, is_token[row]].numpy() for row in range(len(lengths))]


def differences(values, expected):
    """Return the relative L2 norm of the difference in each layer."""
    return [relative_l2(*pair) for pair in zip(values, expected, strict=True)]


def cosines_of_means(values, expected):
    """Return the cosine of the means over tokens in each layer."""
    return cosines(*(np.mean(states, 1, dtype=float) for states in (values, expected)))


@pytest.mark.parametrize("num_heads", SLOPES)
def test_slopes_are_those_of_the_authors(num_heads):
    assert alibi_slopes(num_heads) == [2.0**power for power in SLOPES[num_heads]]


@pytest.mark.parametrize("num_tokens", [1, 8, 21])
def test_cuda_takes_the_bias_as_it_is(num_tokens):
    """Rows begin where its kernels read; and without padding one bias is for all sequences."""
    is_token = torch.ones(3, num_tokens, dtype=torch.bool)
    for padding, num_sequences in ((None, 1), (is_token, 3)):
        bias = attention_bias(12, num_tokens, padding, torch.bfloat16, torch.device("cpu"))
        assert bias.shape == (num_sequences, 12, num_tokens, num_tokens)
        assert bias.dtype == torch.bfloat16 and bias.stride(-1) == 1
        assert not any(stride % 8 for stride in bias.stride()[:-1])


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("length", [1, 2, 7, 8, 40, 129])
def test_one_sequence_equals_the_papers(name, length):
    values = alone_of(name, length)  # of tensors without gradients, which NumPy does not take
    assert values.dtype == np.float32 and values.shape == exact(name, length).shape
    assert max(differences(values, exact(name, length))) < 1e-5


@pytest.mark.parametrize("name", HEADS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_sequence_has_its_values_in_any_batch(name, data):
    """Whatever its neighbours, in any order, with padding on any side."""
    lengths = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    width = max(lengths) + data.draw(st.integers(0, 9))
    starts = [data.draw(st.integers(0, width - length)) for length in lengths]
    for length, values in zip(lengths, in_batch(name, lengths, starts, width), strict=True):
        assert max(differences(values, exact(name, length))) < 1e-5
        assert max(differences(values, alone_of(name, length))) < 1e-6


@pytest.mark.parametrize("name", HEADS)
def test_any_length_goes(name):
    """Also where whole blocks of a kernel are padding, before and behind."""
    lengths = [513, 3, 1100, 40]
    batch = in_batch(name, lengths, [0, 1097, 0, 530], 1100)
    for length, values in zip(lengths, batch, strict=True):
        assert max(differences(values, exact(name, length))) < 1e-5
        assert max(differences(values, alone_of(name, length))) < 1e-6


@functools.cache
def bf16_of(name):
    model = MosaicBert(CONFIGS[name])
    model.load_state_dict(model_of(name).state_dict())
    return model.to(torch.bfloat16)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("length", [1, 40, 1100])
def test_bf16_stays_close(name, length):
    values = alone(bf16_of(name), tokens_of(name, length))
    assert values.dtype == np.float32
    assert min(cosines_of_means(values, exact(name, length))) > 0.9995


def test_embeddings_and_norms_of_bf16_are_computed_in_fp32():
    narrow = bf16_of("12 heads")
    expected = forward(narrow.state_dict(), SMALL, tokens_of("12 heads", 40))
    assert differences(alone(narrow, tokens_of("12 heads", 40)), expected)[0] < 1e-6


def test_bf16_has_its_values_in_a_batch():
    model, tokens = bf16_of("12 heads"), torch.randint(50, (2, 60))
    is_token = torch.arange(60) < torch.tensor([[60], [23]])
    states = torch.stack(model(tokens, is_token))[:, 1, :23].numpy()
    assert min(cosines_of_means(states, alone(model, tokens[1, :23].tolist()))) > 0.9999


def test_names_and_shapes_are_the_published_ones():
    with torch.device("meta"):
        model = MosaicBert(DNABERT2)
    assert {key: tuple(value.shape) for key, value in model.state_dict().items()} == PUBLISHED
    # What is published counts the pooler, which DNABERT-2 lacks and transformers makes up.
    assert sum(parameter.numel() for parameter in model.parameters()) + POOLER == 117_068_544


def test_weights_are_put_in_place_of_nothing(tmp_path):
    """Built on the meta device and filled from a file, with no buffer left behind."""
    state = {f"bert.{key}": value for key, value in model_of("12 heads").state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    with torch.device("meta"):
        model = MosaicBert(SMALL)
    read = load_file(tmp_path / "model.safetensors")
    bare = {key.removeprefix("bert."): value for key, value in read.items()}
    model.load_state_dict(bare, strict=True, assign=True)
    assert list(model.buffers()) == []
    assert np.array_equal(alone(model, tokens_of("12 heads", 40)), alone_of("12 heads", 40))


def test_a_bert_is_no_mosaicbert():
    from transformers import BertConfig, BertModel

    of_bert = {key: value for key, value in SMALL.items() if key != "alibi_starting_size"}
    state = BertModel(BertConfig(**of_bert), add_pooling_layer=False).state_dict()
    with pytest.raises(RuntimeError, match="position_embeddings") as error:
        MosaicBert(SMALL).load_state_dict(state, strict=True)
    assert "Wqkv" in str(error.value) and "gated_layers" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_act": "silu"}, "config.json: hidden_act is 'silu', and only 'gelu'"),
        ({"num_attention_heads": 7}, "hidden_size 96 does not divide by num_attention_heads 7"),
        ({"layer_norm_eps": None}, "config.json: layer_norm_eps is missing"),
    ],
)
def test_a_config_of_something_else_is_refused(changes, sentence):
    config = {key: value for key, value in (SMALL | changes).items() if value is not None}
    with pytest.raises(UserError, match=sentence):
        MosaicBert(config)


@pytest.mark.slow
def test_the_true_shape_equals_the_papers():
    """Alone, a sequence of some tokens is multiplied by another kernel than in a batch, and after
    twelve layers the order of its sums shows a little."""
    lengths = [100, 37, 600, 8]
    batch = in_batch("DNABERT-2", lengths, [0] * 4, 600)
    for length, values in zip(lengths, batch, strict=True):
        expected = exact("DNABERT-2", length)
        assert max(differences(alone_of("DNABERT-2", length), expected)) < 1e-5
        assert max(differences(values, expected)) < 1e-5
        assert max(differences(values, alone_of("DNABERT-2", length))) < 2e-6
        narrow = alone(bf16_of("DNABERT-2"), tokens_of("DNABERT-2", length))
        assert min(cosines_of_means(narrow, expected)) > 0.9995


def published(folder, as_dnabert_s):
    """Write the folder of a small MosaicBERT as DNABERT-2 or DNABERT-S is laid out; return its
    tokenizer and its tensors."""
    config = {**SMALL, "model_type": "bert", "vocab_size": 200, "pad_token_id": 0}
    config["auto_map"] = {"AutoModel": "bert_layers.BertModel"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "bert_layers.py").write_text("raise SystemExit('code of the folder was run')")
    state = random_weights(MosaicBert(config)).state_dict()
    if as_dnabert_s:
        more = {"pooler.dense.weight": torch.zeros(96, 96), "pooler.dense.bias": torch.zeros(96)}
        torch.save(state | more, folder / "pytorch_model.bin")
    else:
        prefixed = {f"bert.{key}": value for key, value in state.items()}
        prefixed["cls.predictions.decoder.bias"] = torch.zeros(200)
        save_file(prefixed, folder / "model.safetensors")
    tokenizer = bpe()
    if as_dnabert_s:  # its file pads all to 2,000 tokens, with a token that is none
        tokenizer.enable_truncation(20)
        tokenizer.enable_padding(length=20, pad_id=3)
    tokenizer.save(str(folder / "tokenizer.json"))
    return bpe(), state, config


@pytest.mark.parametrize("as_dnabert_s", [False, True], ids=["DNABERT-2", "DNABERT-S"])
def test_the_workload_encoder_computes_it_by_its_published_layout(tmp_path, as_dnabert_s):
    tokenizer, state, config = published(tmp_path, as_dnabert_s)
    given = {"pool": ["mean", "mean_all"], "alphabet": "nucleotides"}
    given |= {"layers": list(range(config["num_hidden_layers"] + 1))}
    letters = dna(5, 300)
    payloads = [text.encode() for text in letters]

    def computed(dtype):
        return values_of(encoder, loaded(tmp_path, dtype=dtype, **given), payloads, 400)

    values = computed("fp32")
    for text, row in zip(letters, values.to_pylist(), strict=True):
        states = forward(state, config, np.array(tokenizer.encode(text).ids))
        for layer, hidden in enumerate(states):
            for pool, expected in (("mean_all", hidden.mean(0)), ("mean", hidden[1:-1].mean(0))):
                assert relative_l2(row[f"{pool}_layer_{layer}"], expected) < 1e-5
    if cpu().has_bf16:
        for narrow, exact in zip(computed("bf16").columns, values.columns, strict=True):
            one, other = (np.stack(column.to_pylist()) for column in (narrow, exact))
            assert cosines(one, other).min() > 0.9995
        assert not np.array_equal(one, other), "nothing is narrow"
