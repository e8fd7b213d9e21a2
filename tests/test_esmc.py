"""The ESM C workload against transformers' network, a sequence at a time."""

import functools
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from esm2_models import cosines, demo_proteins, relative_l2, save_hugging_face, tokens_of
from esm2_models import fair_esm as esm2_model
from esmc_models import ALPHABET, save_package, save_research, states_of
from esmc_models import esmc as random_model
from programs import edit_json, printed_by
from safetensors.torch import load_file
from test_esm2 import BOUNDS_ON_CUDA, assert_cuda_equals_its_twin, every_layer, run

from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.workload import weights
from featuremill.workloads import esm2, esmc
from featuremill.workloads.esm2 import kernels, matmul, stages
from featuremill.workloads.esm2.folder import ALPHABET_OF_ESM_C as TOKENS
from featuremill.workloads.esm2.kernels import reference
from featuremill.workloads.esm2.packing import pack

CPU = cpu()
SMALL = (3, 128, 384)
"""Layers, width, and that of the feed forward."""
SHAPES = {"300M": (4, 960, 2560), "600M": (3, 1152, 3072)}
"""Of true width, with few of the layers."""
ODD = ["M", "MKXBUZO.-LV"]
BOUND = 1e-5
LEAST_COSINE = 0.9995


@pytest.fixture(autouse=True)
def two_threads():
    torch.set_num_threads(2)


@pytest.fixture(scope="module")
def model():
    return random_model(*SMALL)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """Return a folder as transformers writes it: the head beside the encoder."""
    folder = tmp_path_factory.mktemp("models") / "small"
    model.save_pretrained(folder)
    from transformers import EsmcTokenizer  # more than the tests of a GPU have

    EsmcTokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def found(folder, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return weights.weights_of(weights.convert(str(folder), cache, "esmc"))


loaded = functools.partial(every_layer, workload=esmc)
rows_of = functools.partial(run, workload=esmc)


def compared(found, model, dtype, sequences):
    """Return the largest relative L2 of a sequence's layer, and the lowest cosine of a token."""
    worst, lowest = 0.0, 1.0
    for sequence, row in zip(sequences, rows_of(loaded(dtype, found), sequences), strict=True):
        for layer, expected in enumerate(states_of(model, sequence)):
            residues = row[f"residues_layer_{layer}"]
            pairs = [
                (residues, expected[1:-1]),
                (row[f"bos_layer_{layer}"], expected[0]),
                (row[f"mean_layer_{layer}"], expected[1:-1].mean(0)),
            ]
            worst = max(worst, *(relative_l2(ours, theirs) for ours, theirs in pairs))
            lowest = min(lowest, *(float(cosines(*pair).min()) for pair in pairs))
    return worst, lowest


def test_each_layer_equals_transformers(found, model):
    sequences = [*demo_proteins(4, 300), *ODD]
    worst, _ = compared(found, model, "fp32", sequences)
    assert worst <= BOUND
    worst, lowest = compared(found, model, "bf16", sequences)
    assert worst <= 1.5e-2 and lowest >= LEAST_COSINE


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shape", SHAPES)
def test_true_widths_equal_transformers(tmp_path, shape):
    model = random_model(*SHAPES[shape])
    model.save_pretrained(tmp_path / "model")
    entry = weights.convert(str(tmp_path / "model"), tmp_path / "cache", "esmc")
    sequences = [*demo_proteins(6, 700), *ODD]
    for dtype in ("fp32", "bf16"):
        worst, lowest = compared(weights.weights_of(entry), model, dtype, sequences)
        print(f"{shape} {dtype}: relative L2 {worst:.1e}, lowest cosine {lowest:.6f}")
        assert worst <= (BOUND if dtype == "fp32" else 1.5e-2)
        assert lowest >= (1 - 1e-8 if dtype == "fp32" else LEAST_COSINE)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_bits_depend_neither_on_the_batch_nor_on_threads(found, dtype, monkeypatch):
    model = loaded(dtype, found)
    long, *others = demo_proteins(3, 400)
    sequences = ["M", "MK", "MKVLAAGIVG", long[:61], long[:62], long, *others]

    def bits(sequences):
        rows = rows_of(model, sequences)
        return [{name: value.tobytes() for name, value in row.items()} for row in rows]

    together = bits(sequences)
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        assert bits(sequences[::-1]) == together[::-1]
        for sequence, expected in zip(sequences[:6], together, strict=False):
            assert bits([sequence]) == [expected]
    monkeypatch.setattr(stages, "BLOCK_BYTES", 1)  # blocks as small as they get
    assert bits(sequences) == together


def test_without_what_is_compiled_the_values_are_the_same(found, monkeypatch):
    [expected] = rows_of(loaded("fp32", found), [demo_proteins(1, 200)[0]])
    monkeypatch.setenv("FEATUREMILL_WITHOUT", "llvm,onednn")
    model = loaded("fp32", found)
    assert model.backend.endswith("products: torch; rest: torch")
    [row] = rows_of(model, [demo_proteins(1, 200)[0]])
    assert all(relative_l2(row[name], expected[name]) <= 2e-6 for name in expected)


def test_a_mask_is_a_token_like_others(found, model):
    tokens = tokens_of("MKV<mask>LA<mask>G")
    network = loaded("fp32", found).encoder
    packed = pack([tokens[0].numpy()])
    layers = range(network.num_layers + 1)
    with torch.inference_mode():
        states = model.esmc(tokens, output_hidden_states=True).hidden_states
    for (_, hidden), expected in zip(network.representations(packed, layers), states, strict=True):
        assert relative_l2(hidden[: len(tokens[0])], expected[0]) <= BOUND


@pytest.mark.parametrize(
    "operation, named", [("gate", "gate"), ("rotate_", "rotary"), ("up", "product")]
)
def test_an_operation_of_esm_c_that_is_wrong_steps_down(
    found, monkeypatch, caplog, operation, named
):
    """Each is right for ESM-2: only the norm of query and key is left out, or the gate is wrong."""
    ways = {
        "gate": lambda halves: reference.gate(halves) * 1.001,
        "rotate_": lambda qkv, turns, positions, _: reference.rotate_(qkv, turns, positions),
    }

    class Bad(matmul.Plain):
        name = "bad products"

        def __call__(self, rows):
            outputs = super().__call__(rows)
            return outputs * 1.001 if outputs.shape[1] == 2 * SMALL[2] else outputs

    if operation == "up":
        monkeypatch.setattr(matmul, "forms", lambda *_: [Bad, matmul.Plain])
    else:
        bad = kernels.TORCH._replace(name="bad", **{operation: ways[operation]})
        monkeypatch.setattr(kernels, "ways", lambda *_: [bad, kernels.TORCH])
    model = loaded("fp32", found)
    (record,) = caplog.records
    assert f": {named} of bad" in record.getMessage() and "bad" not in model.backend


# Layouts.


def test_every_layout_gives_the_same_weights(found, folder, model, tmp_path, caplog):
    caplog.set_level("INFO")
    model.save_pretrained(tmp_path / "shards", max_shard_size="300KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    research, package = save_research(model, tmp_path / "r"), save_package(model, tmp_path / "p")
    (pth,) = package.glob("data/weights/*.pth")
    model.esmc.save_pretrained(tmp_path / "bare")
    places = (tmp_path / "shards", research, package, pth, tmp_path / "bare")
    for place in (*places, folder / "model.safetensors"):
        entry = weights.convert(str(place), tmp_path / "cache", "esmc")
        assert (entry.sha256, entry.name) == (found.sha256, found.name), place
        assert entry.metadata == found.metadata
    assert "left out" not in caplog.text, "everybody's head is no news"
    assert found.name == f"esmc_t3_w128-{found.sha256[:8]}"
    facts = {"architecture": "esmc", "num_layers": "3", "embed_dim": "128"}
    facts |= {"attention_heads": "2", "feed_forward": "384", "dtype": "float32"}
    assert found.metadata == facts


def test_the_alphabet_is_transformers_s(model):
    from transformers import EsmcTokenizer  # more than the tests of a GPU have

    tokenizer = EsmcTokenizer()
    assert list(TOKENS) == ALPHABET.split() == tokenizer.convert_ids_to_tokens(range(33))
    text = "LAGVSERTIDPKQNFYMHWCXBUZO.-"
    assert tokenizer(text)["input_ids"] == tokens_of(text)[0].tolist()


@pytest.mark.parametrize(
    "config, sentence",
    [
        ({"model_type": "esm"}, "its model_type is 'esm', and an ESM C has 'esmc'"),
        ({"hidden_act": "gelu"}, "hidden_act gelu, where an ESM C has silu"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"vocab_size": 33}, "vocab_size 33"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "rope_parameters"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "rope_parameters"),
    ],
)
def test_a_folder_of_another_network_is_refused_before_any_job(tmp_path, folder, config, sentence):
    path = Path(shutil.copy(folder / "config.json", tmp_path))
    edit_json(path, **config)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UserError) as caught:
        weights.refuse_missing(str(tmp_path), "esmc")
    assert str(caught.value).startswith(f"{path}: ") and sentence in str(caught.value)
    assert "the workload esm2 takes ESM-2, and encoder" in str(caught.value)


def test_each_workload_names_the_one_that_takes_the_folder(tmp_path, folder):
    with pytest.raises(UserError, match=r"has 'esm'; the workload esmc takes ESM C"):
        weights.refuse_missing(str(folder))
    other = save_hugging_face(esm2_model(2, 16, 2), tmp_path / "esm2").parent
    with pytest.raises(UserError, match=r"has 'esmc'; the workload esm2 takes ESM-2"):
        weights.refuse_missing(str(other), "esmc")


def test_a_folder_with_other_tokens_is_refused(tmp_path, folder):
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    weights.refuse_missing(str(tmp_path), "esmc")
    path = tmp_path / "tokenizer.json"
    text = path.read_text().replace('"L"', '"J"')
    path.unlink()
    path.write_text(text)
    with pytest.raises(UserError, match=r"its token 4 is 'J', and ESM C's is 'L'"):
        weights.refuse_missing(str(tmp_path), "esmc")


def without(key):
    return lambda state: state.pop(key)


def reshaped(key, *shape):
    return lambda state: state.update({key: torch.zeros(shape)})


LAYER = "esmc.layers.1."


@pytest.mark.parametrize(
    "spoil, sentence",
    [
        (without("esmc.embed_tokens.weight"), "it has no tensor embed_tokens.weight"),
        (without(f"{LAYER}self_attn.q_norm.weight"), "no tensor layers.1.self_attn.q_norm.weight"),
        (without(f"{LAYER}mlp.gate_proj.weight"), "no tensor layers.1.mlp.gate_proj.weight"),
        (without("esmc.layers.0.mlp.down_proj.weight"), "no tensor layers.0.mlp.down_proj"),
        (reshaped("esmc.embed_tokens.weight", 33, 128), "has the shape (33, 128) and not (64, 128"),
        (reshaped(f"{LAYER}mlp.up_proj.bias", 384), "mlp.up_proj.bias is no part of an ESM C"),
        (reshaped("esmc.layers.3.norm.weight", 1), "num_layers 4, its settings have 3"),
        (reshaped("esmc.layers.0.mlp.down_proj.weight", 128, 300), "feed forward is 300 wide"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path, folder, spoil, sentence):
    state = load_file(folder / "model.safetensors")
    spoil(state)
    shutil.copy(folder / "config.json", tmp_path)
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        weights.convert(str(tmp_path), tmp_path / "cache", "esmc")
    assert "not a usable ESM C checkpoint" in str(caught.value)


# Names.


def test_a_name_is_looked_up_in_the_cache_of_hugging_face(tmp_path, folder, found, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("FEATUREMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^esmc_300m: .* hf download biohub/ESMC-300M here, or"):
        weights.refuse_missing("esmc_300m", "esmc")
    with pytest.raises(UserError, match=r"did you mean 'esmc_600m'\? There are esmc_300m"):
        weights.name_of("600m", "esmc")
    assert weights.suggested("esmc") == ""
    place = tmp_path / "hub/models--biohub--ESMC-300M"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("c0ffee\n")
    (place / "snapshots").mkdir()
    (place / "snapshots" / "c0ffee").symlink_to(folder)
    for name in ("esmc_300m", "biohub/ESMC-300M"):
        weights.refuse_missing(name, "esmc")
        entry = weights.convert(name, workload="esmc")
        assert (entry.sha256, entry.name) == (found.sha256, found.name)
    assert weights.suggested("esmc") == "esmc_300m"
    (place / "snapshots" / "c0ffee").unlink()
    weights.refuse_missing("esmc_300m", "esmc")  # what was converted is enough
    ahead = esmc.weights_ahead(esmc.Options(model="esmc_300m"))
    assert ahead.metadata == found.metadata
    with pytest.raises(UserError, match=r"^esmc_300m: .* hf download biohub/ESMC-300M here, or"):
        weights.refuse_missing("esmc_300m", "scores")  # that has no head
    assert weights.convert("esmc_300m", workload="esmc").sha256 == found.sha256


def test_planning_needs_no_torch(folder):
    code = f"""
        import sys
        from featuremill.workloads import esmc
        from featuremill.workload import Weights, weights
        from featuremill.base.devices import cpu
        from pathlib import Path
        weights.refuse_missing({str(folder)!r}, "esmc")
        facts = dict(architecture="esmc", num_layers="3", embed_dim="128", attention_heads="2",
                     feed_forward="384", dtype="float32")
        found = Weights("w", Path("w"), "", facts)
        options = esmc.resolve(esmc.Options(), cpu(), found)
        assert type(options) is esmc.Options and options.max_residues == 2046
        assert esmc.schema(options, found).names == ["mean_layer_3"]
        assert esmc.memory_mb(options, cpu(), found, 4096) > 400
        assert esmc.unit_work(found, 300).operations > 3 * 2 * (4 * 128**2 + 3 * 128 * 384)
        assert not {{"torch", "esm", "safetensors"}} & set(sys.modules), sorted(sys.modules)
    """
    printed_by(code, env={**os.environ, "PYTHONPATH": str(Path(esm2.__file__).parents[3])})


def test_estimates_are_of_the_numbers_in_the_file(found, folder):
    ahead = esmc.weights_ahead(esmc.Options(model=str(folder)))
    assert ahead.metadata == found.metadata
    num_bytes = sum(t.nbytes for t in load_file(found.path).values())
    assert abs(esmc.weights_mb(found) * 2**20 / num_bytes - 1) < 0.01


def test_ways_are_those_of_a_load(found):
    ways = esmc.ways(CPU, found)
    assert ways == esm2.ways(CPU, found)
    model = esmc.load(esmc.Options(dtype=ways["dtype"]), [CPU], found)
    expected = [f"attention: {ways['attention']}", f"products: {ways['products']}"]
    assert model.backend == "; ".join([*expected, f"rest: {ways['kernels']}"])


# On a GPU: the same functions against their CPU twin.


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, bound_l2", BOUNDS_ON_CUDA)
def test_cuda_equals_its_cpu_twin(tmp_path, dtype, bound_l2):
    random_model(*SHAPES["300M"]).save_pretrained(tmp_path / "model")
    entry = weights.convert(str(tmp_path / "model"), tmp_path / "cache", "esmc")
    sequences = [*demo_proteins(20), *ODD, "X" * 3000]
    assert_cuda_equals_its_twin(weights.weights_of(entry), sequences, dtype, bound_l2)
