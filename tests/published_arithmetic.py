"""Encoders that transformers does not have, written here a second time: plain sums in float64, one
sequence at a time, by the arithmetic and the names of what their authors published. Folders of them
have random weights of true layouts."""

import json
import math

import torch
from encoder_models import kmers
from safetensors.torch import save_file

WIDTH, LAYERS, HEADS = 64, 3, 4
INNER = {"nt2": 96, "segment_nt": 96, "amplify": 176, "glm2": 176}
"""Width between the halves of the feed forward: of AMPLIFY and gLM2 two thirds of four widths,
rounded up to their multiple."""
NT2_TOKENS = ["<unk>", "<pad>", "<mask>", "<cls>", "<eos>", "<bos>", *kmers(6), *"ATCGN"]
AMPLIFY_TOKENS = [
    *("<pad>", "<unk>", "<mask>", "<bos>", "<eos>", "|"),
    *"XBOUZJLAGVSERTIDPKQNFYMHWC",
]
ESM_CONFIG = {
    "model_type": "esm", "hidden_size": WIDTH, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "intermediate_size": 96, "pad_token_id": 1, "mask_token_id": 2,
    "layer_norm_eps": 1e-12, "emb_layer_norm_before": False, "token_dropout": False,
    "max_position_embeddings": 2050, "position_embedding_type": "rotary", "vocab_size": 4107,
    "add_bias_fnn": False, "auto_map": {"AutoModel": "modeling_esm.EsmModel"},
}  # fmt: skip
CONFIGS = {
    "nt2": ESM_CONFIG,
    "segment_nt": ESM_CONFIG | {"features": ["exon"], "rescaling_factor": None},
    "amplify": {
        "model_type": "AMPLIFY", "hidden_size": WIDTH, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "intermediate_size": 4 * WIDTH, "norm_eps": 1e-5,
        "hidden_act": "SwiGLU", "rms_norm": True, "layer_norm_after_embedding": False,
        "layer_norm_before_last_layer": True, "vocab_size": 27, "ffn_bias": False,
        "att_bias": False, "max_length": 2048,
    },
    "glm2": {
        "model_type": "gLM2", "dim": WIDTH, "depth": LAYERS, "heads": HEADS, "vocab_size": 37,
        "swiglu_multiple_of": 16, "ffn_dim_multiplier": None, "norm_eps": 1e-5,
    },
}  # fmt: skip
CONFIGS["amplify"]["vocab_size"] = len(AMPLIFY_TOKENS)
ALPHABETS = dict.fromkeys(CONFIGS, "proteins") | {"nt2": "nucleotides", "segment_nt": "nucleotides"}


def shapes(name):
    """Return the shape of each weight by its published name."""
    config, inner = CONFIGS[name], INNER[name]
    if name in ("nt2", "segment_nt"):
        found = {"esm.embeddings.word_embeddings.weight": (4107, WIDTH)}
        found["esm.embeddings.position_embeddings.weight"] = (2050, WIDTH)
        for layer in range(LAYERS):
            at = f"esm.encoder.layer.{layer}"
            for part in ("attention.self.query", "attention.self.key", "attention.self.value",
                         "attention.output.dense"):  # fmt: skip
                found |= {f"{at}.{part}.weight": (WIDTH, WIDTH), f"{at}.{part}.bias": (WIDTH,)}
            for part in ("attention.LayerNorm", "LayerNorm"):
                found |= {f"{at}.{part}.weight": (WIDTH,), f"{at}.{part}.bias": (WIDTH,)}
            found[f"{at}.attention.self.rotary_embeddings.inv_freq"] = (WIDTH // HEADS // 2,)
            found[f"{at}.intermediate.dense.weight"] = (2 * inner, WIDTH)
            found[f"{at}.output.dense.weight"] = (WIDTH, inner)
        norm = "esm.encoder.emb_layer_norm_after"
        found |= {f"{norm}.weight": (WIDTH,), f"{norm}.bias": (WIDTH,)}
        head = "lm_head.bias" if name == "nt2" else "unet.down.0.weight"
        return found | {head: (7,)}
    if name == "amplify":
        found = {"encoder.weight": (config["vocab_size"], WIDTH)}
        for layer in range(LAYERS):
            at = f"transformer_encoder.{layer}"
            found |= {f"{at}.{part}.weight": (WIDTH, WIDTH) for part in ("q", "k", "v", "wo")}
            found |= {
                f"{at}.ffn.w12.weight": (2 * inner, WIDTH),
                f"{at}.ffn.w3.weight": (WIDTH, inner),
            }
            found |= {f"{at}.{norm}.weight": (WIDTH,) for norm in ("attention_norm", "ffn_norm")}
        return found | {"layer_norm_2.weight": (WIDTH,), "decoder.weight": (7, 9)}
    found = {"glm2.tok_embeddings.weight": (37, WIDTH)}
    for layer in range(LAYERS):
        at = f"glm2.encoder.layers.{layer}"
        found |= {f"{at}.attention.wqkv.weight": (3 * WIDTH, WIDTH)}
        found |= {f"{at}.attention.wo.weight": (WIDTH, WIDTH)}
        found |= {f"{at}.feed_forward.{part}.weight": (inner, WIDTH) for part in ("w1", "w3")}
        found |= {f"{at}.feed_forward.w2.weight": (WIDTH, inner)}
        found |= {f"{at}.{norm}.weight": (WIDTH,) for norm in ("attention_norm", "ffn_norm")}
    return found | {"lm_head.norm.weight": (WIDTH,), "lm_head.proj_output.weight": (37, WIDTH)}


def write(folder, name, **changes):
    """Write a folder with random weights, as the authors lay theirs out."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name] | changes))
    random_numbers, tensors = torch.Generator().manual_seed(5), {}
    for key, shape in shapes(name).items():
        numbers = torch.randn(shape, generator=random_numbers)
        if key.endswith("inv_freq"):
            numbers = 1 / 10000 ** (torch.arange(0, 2 * shape[0], 2) / (2 * shape[0]))
        elif len(shape) == 1:
            numbers = 0.1 * numbers + (1.0 if key.endswith("weight") else 0.0)
        elif "embed" not in key and key != "encoder.weight":
            numbers = numbers / shape[-1] ** 0.5
        tensors[key] = numbers
    save_file(tensors, folder / "model.safetensors")
    if tokens := {"nt2": NT2_TOKENS, "segment_nt": NT2_TOKENS, "amplify": AMPLIFY_TOKENS}.get(name):
        (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    if tokens is NT2_TOKENS:
        (folder / "tokenizer_config.json").write_text('{"eos_token": null}')
    return folder


def attention(query_TE, key_TE, value_TE, turned):
    """Return attention of all heads, one after the other."""
    width = WIDTH // HEADS
    heads = []
    for head in range(HEADS):
        query, key, value = (
            x[:, head * width : (head + 1) * width] for x in (query_TE, key_TE, value_TE)
        )
        scores = turned(query) @ turned(key).T / math.sqrt(width)
        heads.append(scores.softmax(-1) @ value)
    return torch.cat(heads, -1)


def halves_turned(head_Td):
    """Rotary positions as RoFormer's code has them: a half with the other one."""
    length, width = head_Td.shape
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    cosines, sines = (torch.cat([part, part], -1).double() for part in (angles.cos(), angles.sin()))
    first, second = head_Td.chunk(2, -1)
    return head_Td * cosines + torch.cat([-second, first], -1) * sines


def neighbours_turned(head_Td):
    """The same as a product of complex numbers, as LLaMA's code has it."""
    length, width = head_Td.shape
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex128)
    numbers = torch.view_as_complex(head_Td.reshape(length, -1, 2).contiguous())
    return torch.view_as_real(numbers * turns).flatten(1)


def layer_norm(x, weight, bias):
    return (x - x.mean(-1, keepdim=True)) / (
        x.var(-1, keepdim=True, correction=0) + 1e-12
    ).sqrt() * weight + bias


def rms_norm(x, weight):
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


def silu(x):
    return x / (1 + torch.exp(-x))


def hidden_states(name, tensors, ids):
    """Return hidden_TE of the embeddings and of each layer of one sequence."""
    weights = {key: tensor.double() for key, tensor in tensors.items()}
    return {"nt2": _nt2, "segment_nt": _nt2, "amplify": _amplify, "glm2": _glm2}[name](weights, ids)


def _nt2(weights, ids):
    hidden = weights["esm.embeddings.word_embeddings.weight"][ids]
    states = [hidden]
    for layer in range(LAYERS):

        def part(name, at=f"esm.encoder.layer.{layer}"):
            return weights[f"{at}.{name}.weight"], weights.get(f"{at}.{name}.bias", 0.0)

        def linear(x, name, part=part):
            weight, bias = part(name)
            return x @ weight.T + bias

        normed = layer_norm(hidden, *part("attention.LayerNorm"))
        projected = (linear(normed, f"attention.self.{name}") for name in ("query", "key", "value"))
        hidden = hidden + linear(attention(*projected, halves_turned), "attention.output.dense")
        gate, value = linear(layer_norm(hidden, *part("LayerNorm")), "intermediate.dense").chunk(
            2, -1
        )
        hidden = hidden + linear(silu(gate) * value, "output.dense")
        states.append(hidden)
    norm = "esm.encoder.emb_layer_norm_after"
    states[-1] = layer_norm(hidden, weights[f"{norm}.weight"], weights[f"{norm}.bias"])
    return states


def _amplify(weights, ids):
    hidden = weights["encoder.weight"][ids]
    states = [hidden]
    for layer in range(LAYERS):
        own = {key.removeprefix(f"transformer_encoder.{layer}.").removesuffix(".weight"): weight
               for key, weight in weights.items()}  # fmt: skip
        normed = rms_norm(hidden, own["attention_norm"])
        projected = (normed @ own[name].T for name in "qkv")
        hidden = hidden + attention(*projected, neighbours_turned) @ own["wo"].T
        gate, value = (rms_norm(hidden, own["ffn_norm"]) @ own["ffn.w12"].T).chunk(2, -1)
        hidden = hidden + (silu(gate) * value) @ own["ffn.w3"].T
        states.append(hidden)
    return states


def _glm2(weights, ids):
    hidden = weights["glm2.tok_embeddings.weight"][ids]
    states = [hidden]
    for layer in range(LAYERS):
        own = {key.removeprefix(f"glm2.encoder.layers.{layer}.").removesuffix(".weight"): weight
               for key, weight in weights.items()}  # fmt: skip
        projected = (rms_norm(hidden, own["attention_norm"]) @ own["attention.wqkv"].T).chunk(3, -1)
        hidden = hidden + attention(*projected, halves_turned) @ own["attention.wo"].T
        normed = rms_norm(hidden, own["ffn_norm"])
        inner = silu(normed @ own["feed_forward.w1"].T) * (normed @ own["feed_forward.w3"].T)
        hidden = hidden + inner @ own["feed_forward.w2"].T
        states.append(hidden)
    return states
