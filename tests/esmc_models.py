"""transformers' ESM C with random weights, and its checkpoints in the layouts that there are."""

import json

import torch
from bench.esmc import HEAD_DIM
from esm2_models import tokens_of
from safetensors.torch import save_file

ALPHABET = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - | <mask>"
RESEARCH_NAMES = {
    "embed_tokens.": "embed.",
    "layers.": "transformer.blocks.",
    "norm.": "transformer.norm.",
    "input_layernorm.weight": "attn.layernorm_qkv.layer_norm_weight",
    "input_layernorm.bias": "attn.layernorm_qkv.layer_norm_bias",
    "self_attn.q_norm.": "attn.q_ln.",
    "self_attn.k_norm.": "attn.k_ln.",
    "self_attn.o_proj.": "attn.out_proj.",
    "post_attention_layernorm.weight": "ffn.layer_norm_weight",
    "post_attention_layernorm.bias": "ffn.layer_norm_bias",
    "mlp.down_proj.weight": "ffn.fc2_weight",
}
HEAD = {"dense": "0", "layer_norm": "2", "decoder": "3"}
"""transformers' parts of the head, and their places in the others'."""
PACKAGE_NAMES = {
    "layernorm_qkv.layer_norm_": "layernorm_qkv.0.",
    "layernorm_qkv.weight": "layernorm_qkv.1.weight",
    "ffn.layer_norm_": "ffn.0.",
    "ffn.fc1_weight": "ffn.1.weight",
    "ffn.fc2_weight": "ffn.3.weight",
}


def esmc(num_layers, width, feed_forward, seed=0):
    """Return transformers' model with its head; norms differ from 1 and 0, so each one counts."""
    from transformers import EsmcConfig, EsmcForMaskedLM  # more than the tests of a GPU have

    torch.manual_seed(seed)
    config = EsmcConfig(
        hidden_size=width,
        num_hidden_layers=num_layers,
        num_attention_heads=width // HEAD_DIM,
        intermediate_size=feed_forward,
    )
    model = EsmcForMaskedLM(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def states_of(model, sequence):
    """Return transformers' hidden states (layers + 1, tokens, width) of one sequence."""
    with torch.inference_mode():
        states = model.esmc(tokens_of(sequence), output_hidden_states=True).hidden_states
    return torch.cat(states).numpy()


def research_state(model, is_of_package=False):
    """Return the tensors under the names of a research folder, or of the package esm."""
    state = model.esmc.state_dict()
    found = {}
    for layer in range(model.config.num_hidden_layers):
        old, new = f"layers.{layer}.", f"transformer.blocks.{layer}."
        qkv = [state.pop(f"{old}self_attn.{part}_proj.weight") for part in "qkv"]
        found[f"{new}attn.layernorm_qkv.weight"] = torch.cat(qkv)
        halves = [state.pop(f"{old}mlp.{part}_proj.weight") for part in ("gate", "up")]
        found[f"{new}ffn.fc1_weight"] = torch.cat(halves)
        if not is_of_package:
            found[f"{new}attn.layernorm_qkv._extra_state"] = torch.zeros(0, dtype=torch.uint8)
    for key, tensor in state.items():
        for old, new in RESEARCH_NAMES.items():
            key = (
                new + key.removeprefix(old)
                if key.startswith(old)
                else key.replace("." + old, "." + new)
            )
        found[key] = tensor
    head = {
        f"{HEAD[part]}.{kind}": tensor.clone()
        for key, tensor in model.lm_head.state_dict().items()
        for part, kind in [key.split(".")]
    }
    if not is_of_package:
        found = {f"esmc.{key}": tensor.clone() for key, tensor in found.items()}
        return found | {f"lm_head.{key}": tensor for key, tensor in head.items()}
    for old, new in PACKAGE_NAMES.items():
        found = {key.replace(old, new): tensor for key, tensor in found.items()}
    return found | {f"sequence_head.{key}": tensor for key, tensor in head.items()}


def save_research(model, folder):
    """Write a folder as the research folders are."""
    folder.mkdir()
    save_file(research_state(model), folder / "model.safetensors")
    config = model.config
    told = {
        "architectures": ["ESMCForMaskedLM"],
        "model_type": "esmc",
        "d_model": config.hidden_size,
        "n_heads": config.num_attention_heads,
        "n_layers": config.num_hidden_layers,
        "vocab_size": 64,
    }
    (folder / "config.json").write_text(json.dumps(told))
    return folder


def save_package(model, folder):
    """Write a folder as the package esm fetches them."""
    path = folder / "data" / "weights" / "esmc_2024_12_v0.pth"
    path.parent.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    torch.save(research_state(model, is_of_package=True), path)
    return folder
