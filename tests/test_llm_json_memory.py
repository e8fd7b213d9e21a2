"""What a language model takes: by its config alone, beside what torch allocates."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
import transformers
from conftest import ROOT
from decoder_models import write
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from featuremill.lease.devices import cpu
from featuremill.workload import Device, find_workload
from featuremill.workloads.llm_json import memory

llm_json = find_workload("llm_json")
CPU, MIB = cpu(), 2**20
CONTEXT, REPLY = 512, 8
SHAPE = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 768,
    "max_position_embeddings": CONTEXT,
}
GPT2 = {"n_embd": 256, "n_layer": 4, "n_head": 8, "n_positions": CONTEXT}


class Living(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make, while they live."""

    def __init__(self):
        super().__init__()
        self.peak = 0
        self._known = {}

    def __torch_dispatch__(self, operation, types, arguments=(), more=None):
        made = operation(*arguments, **(more or {}))
        given = {each.untyped_storage()._cdata for each in tree_leaves((arguments, more))
                 if isinstance(each, torch.Tensor)}  # fmt: skip
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in given:
                    self._known[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._known = {key: one for key, one in self._known.items() if not one[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._known.values()))
        return made


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "prompt.jinja").write_text("{{ note }}")
    (tmp_path / "schema.json").write_text(
        json.dumps({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"],
                    "additionalProperties": False})  # fmt: skip
    )
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


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize(
    ("name", "shape"), [("llama", SHAPE), ("gemma2", SHAPE), ("qwen3", SHAPE), ("gpt2", GPT2)]
)
def test_the_estimate_is_within_30_per_cent_of_what_lives_at_once(place, name, shape, rows):
    folder = write(place / name, name, **shape)
    options, ahead = asked(folder, batch_rows=rows)
    model = llm_json.load(options, [CPU], ahead)
    held = sum(each.nbytes for each in model.engine._network.parameters())
    assert memory.weights_bytes(memory.size_of(ahead), options) == pytest.approx(held, rel=0.02)
    given = llm_json.prepare(model, prompts(rows), 10**9)
    least = min(len(each.tokens) for each in given)
    assert CONTEXT - REPLY >= max(len(each.tokens) for each in given)
    assert least > 0.8 * (CONTEXT - REPLY), "prompts are long"
    with Living() as living, torch.inference_mode():
        model.engine.replies(given, 1)
    estimated = llm_json.memory_mb(options, CPU, ahead, 0) - memory.CPU_PROCESS_MB
    print(name, rows, least, held/MIB, living.peak/MIB, estimated)
    assert estimated == pytest.approx((held + living.peak) / MIB, rel=0.3)
