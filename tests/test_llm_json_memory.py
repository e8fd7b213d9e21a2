"""What a language model takes: by its config alone, beside what torch allocates."""

import json

import pytest
import torch
import transformers
from decoder_models import WIDE, write
from living import Living
from test_llm_json import object_of

from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.workload import Device, find_workload
from featuremill.workloads.llm_json import memory

llm_json = find_workload("llm_json")
CPU, MIB = cpu(), 2**20
CONTEXT, REPLY = 512, 8
SHAPE = {**WIDE, "max_position_embeddings": CONTEXT}
GPT2 = {"n_embd": 256, "n_layer": 4, "n_head": 8, "n_positions": CONTEXT}


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "prompt.jinja").write_text("{{ note }}")
    (tmp_path / "schema.json").write_text(json.dumps(object_of(a={"type": "string"})))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(folder, device=CPU, **more):
    """Return the resolved options, and what is known of the model before it is hashed."""
    options = llm_json.Options.model_validate(
        {"model": str(folder), "prompt": "prompt.jinja", "json_schema": "schema.json",
         "chat": False, "max_tokens": REPLY, "context": CONTEXT, "dtype": "fp32"} | more
    )  # fmt: skip
    ahead = llm_json.weights_ahead(options)
    return llm_json.resolve(options, device, ahead), ahead


def prompts(count):
    """Return as many prompts, each about as long as the context has room for."""
    return [f"{number}{'0 ' * ((CONTEXT - REPLY - 10) // 2)}".encode() for number in range(count)]


@pytest.mark.parametrize("rows", [1, 24])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("llama", SHAPE), ("gemma2", SHAPE), ("qwen3", SHAPE), ("gpt2", GPT2), ("olmo2", SHAPE)],
)
def test_the_estimate_is_within_30_per_cent_of_what_lives_at_once(place, name, shape, rows):
    folder = write(place / name, name, **shape)
    options, ahead = asked(folder, batch_rows=rows)
    model = llm_json.load(options, [CPU], ahead)
    held = sum(each.nbytes for each in model.engine._network.parameters())
    assert memory.weights_bytes(memory.size_of(ahead), options) == pytest.approx(held, rel=0.02)
    given = llm_json.prepare(model, prompts(rows), 10**9)
    least = min(len(each.tokens) for each in given)
    assert max(len(each.tokens) for each in given) <= CONTEXT - REPLY
    assert least > 0.8 * (CONTEXT - REPLY), "prompts are long"
    with Living() as living, torch.inference_mode():
        model.engine.replies(given, 1)
    estimated = llm_json.memory_mb(options, CPU, ahead, 0) - memory.CPU_PROCESS_MB
    assert estimated == pytest.approx((held + living.peak) / MIB, rel=0.3)


def shape_of(folder, name):
    """Return the network of a kind in the size of its usual config, without memory for it."""
    config = transformers.CONFIG_MAPPING[name]()
    config.save_pretrained(folder)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


COUNTED = ("mixtral", "olmo2", "opt", "bloom", "jamba", "mamba")


@pytest.mark.parametrize("name", ["llama", "gemma2", "phi3", "gpt2", "gpt_neox", *COUNTED])
def test_quantised_or_not_the_numbers_are_those_of_the_network(tmp_path, name):
    """bitsandbytes takes the modules of products, the head left out; a scale is of 64 numbers."""
    from transformers.pytorch_utils import Conv1D

    network = shape_of(tmp_path, name)
    size = memory.size_of_config(tmp_path)
    numbers = {each.data_ptr() or id(each): each.numel() for each in network.parameters()}
    whole = sum(numbers.values())
    head = network.get_output_embeddings()
    products = sum(
        each.weight.numel()
        for each in network.modules()
        if isinstance(each, torch.nn.Linear | Conv1D) and each is not head
    )
    told = {"model": "m", "prompt": "p", "json_schema": "s", "dtype": "bf16"}
    for quantize, each in {"none": 2, "8bit": 1, "4bit": 0.5625}.items():
        options = llm_json.Options.model_construct(**told, quantize=quantize)
        expected = products * each + (whole - products) * 2
        assert memory.weights_bytes(size, options) == pytest.approx(expected, rel=0.01)


def test_rows_at_once_are_as_many_as_a_gpu_holds(place):
    folder = write(place / "llama", "llama", **SHAPE)

    def needed(memory_mb, **more):
        gpu = Device("cuda", "GPU-0", "a GPU", True, 0, memory_mb, 100)
        options, ahead = asked(folder, gpu, **more)
        return llm_json.memory_mb(options, gpu, ahead, 0)

    few, many, unknown = (needed(mb) for mb in (790, 80_000, 0))
    assert needed(80_000, batch_rows=1) < few < 790 < many == unknown
    assert many == needed(80_000, batch_rows=64)
    vllm = needed(80_000, engine="vllm")
    assert vllm > needed(80_000, batch_rows=1), "a tenth of the GPU is not vLLM's"


@pytest.mark.parametrize("told", [{}, {"num_hidden_layers": 3}])
def test_a_config_that_tells_no_size_is_refused(tmp_path, told):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "new"} | told))
    with pytest.raises(UserError, match="no num_hidden_layers or no hidden_size"):
        memory.size_of_config(tmp_path)
