"""ESM-2's network for training: fair-esm's parameter names and arithmetic, without fair-esm.

Shapes: B rows of T tokens, D width, H heads of K = D / H, M positions to predict, V vocabulary.
A row holds one protein's crop or several, and no token sees another crop's. Linear layers and GELU
of the layers run in `dtype` (bfloat16); the residual stream, LayerNorms, rotation, logits and, on a
CPU, attention in float32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from shards import MASK, NUM_TOKENS
from torch import Tensor, nn
from torch.nn import functional

EPSILON = 1e-5
ROTARY_BASE = 10000.0


class Shape(NamedTuple):
    """The size of a network."""

    num_layers: int = 6
    width: int = 320
    num_heads: int = 20


class Attention(nn.Module):
    """Self-attention with rotary position embedding, in halves as fair-esm does."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            setattr(self, name, nn.Linear(shape.width, shape.width))

    def forward(self, x_BTD: Tensor, angles: tuple[Tensor, Tensor], sees: Tensor) -> Tensor:
        """Return what attention adds; `sees` (B, 1, T, T) says which tokens see which."""
        B, T, D = x_BTD.shape
        layers = (self.q_proj, self.k_proj, self.v_proj)
        weight = torch.cat([layer.weight for layer in layers]).to(x_BTD.dtype)
        bias = torch.cat([layer.bias for layer in layers]).to(x_BTD.dtype)
        turned, v = functional.linear(x_BTD, weight, bias).split((2 * D, D), -1)
        turned = Rotate.apply(turned.view(B, T, 2 * self.num_heads, -1).float(), *angles)
        q, k = turned.to(attention_dtype(x_BTD)).transpose(1, 2).chunk(2, 1)
        v = v.to(q.dtype).view(B, T, self.num_heads, -1).transpose(1, 2)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=sees).to(x_BTD.dtype)
        return linear(self.out_proj, out.transpose(1, 2).reshape(B, T, D))


def attention_dtype(x: Tensor) -> torch.dtype:
    """Return attention's number type: on a CPU float32, where bfloat16's backward is 8 x slower."""
    return torch.float32 if x.device.type == "cpu" else x.dtype


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Apply a layer in the number type of `x`."""
    return functional.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))


class Rotate(torch.autograd.Function):
    """Turn the halves of each head's vectors (B, T, H, K) by their angles (T, C = K / 2).

    The gradient is turned back by the same two lines, which spares a CPU the graph of six ops.
    """

    @staticmethod
    def forward(ctx: Any, x_BTHK: Tensor, cosine_TC: Tensor, sine_TC: Tensor) -> Tensor:
        ctx.save_for_backward(cosine_TC, sine_TC)
        return rotate(x_BTHK, cosine_TC, sine_TC)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cosine_TC, sine_TC = ctx.saved_tensors
        return rotate(gradients[0], cosine_TC, -sine_TC), None, None


def rotate(x_BTHK: Tensor, cosine_TC: Tensor, sine_TC: Tensor) -> Tensor:
    """Return the halves (C numbers each) of each head's vectors turned by angles (T, C)."""
    cosine, sine = cosine_TC[:, None], sine_TC[:, None]
    left, right = x_BTHK.chunk(2, -1)
    turned = torch.empty_like(x_BTHK)
    turned_left, turned_right = turned.chunk(2, -1)
    turned_left.copy_(left).mul_(cosine).addcmul_(right, sine, value=-1)
    turned_right.copy_(right).mul_(cosine).addcmul_(left, sine)
    return turned


class Layer(nn.Module):
    """A pre-LayerNorm transformer layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.self_attn_layer_norm = nn.LayerNorm(shape.width, EPSILON)
        self.fc1 = nn.Linear(shape.width, 4 * shape.width)
        self.fc2 = nn.Linear(4 * shape.width, shape.width)
        self.final_layer_norm = nn.LayerNorm(shape.width, EPSILON)


class Head(nn.Module):
    """What makes logits of the last hidden state; its last weights are the embedding's."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.dense = nn.Linear(shape.width, shape.width)
        self.layer_norm = nn.LayerNorm(shape.width, EPSILON)
        self.bias = nn.Parameter(torch.zeros(NUM_TOKENS))


class Network(nn.Module):
    """ESM-2 with its language-model head."""

    def __init__(self, shape: Shape, dtype: torch.dtype, seed: int) -> None:
        """Draw small random weights: N(0, 0.02), and less where the residual stream is added to."""
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.embed_tokens = nn.Embedding(NUM_TOKENS, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.emb_layer_norm_after = nn.LayerNorm(shape.width, EPSILON)
        self.lm_head = Head(shape)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim == 2:
                    is_last = name.endswith(("out_proj.weight", "fc2.weight"))
                    deviation = 0.02 / (2 * shape.num_layers) ** 0.5 if is_last else 0.02
                    parameter.normal_(0, deviation, generator=generator)
                elif name.endswith("bias"):
                    parameter.zero_()

    def angles(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the rotary table's cosines and sines (T, K / 2), in float32."""
        width = self.shape.width // self.shape.num_heads
        exponents = torch.arange(0, width, 2, device=device).float() / width
        angle = torch.outer(torch.arange(length, device=device).float(), ROTARY_BASE**-exponents)
        return angle.cos(), angle.sin()

    def forward(
        self, tokens_BT: Tensor, scale_BT: Tensor, crops_BT: Tensor, positions_M: Tensor
    ) -> Tensor:
        """Return logits_MV (float32) at flat `positions_M`.

        `scale_BT` is the factor of token dropout, `crops_BT` which crop of its row a token is of.
        """
        sees = (crops_BT[:, :, None] == crops_BT[:, None, :])[:, None]
        scale_BT = scale_BT.masked_fill(tokens_BT == MASK, 0.0)
        x = functional.embedding(tokens_BT, self.embed_tokens.weight) * scale_BT[..., None]
        angles = self.angles(tokens_BT.shape[1], tokens_BT.device)
        for layer in self.layers:
            hidden = layer.self_attn_layer_norm(x).to(self.dtype)
            x = x + layer.self_attn(hidden, angles, sees)
            if layer is self.layers[-1]:
                x = x.flatten(0, 1)[positions_M]  # nothing after this point looks sideways
            hidden = linear(layer.fc1, layer.final_layer_norm(x).to(self.dtype))
            x = x + linear(layer.fc2, functional.gelu(hidden))
        hidden = linear(self.lm_head.dense, self.emb_layer_norm_after(x).to(self.dtype)).float()
        hidden = self.lm_head.layer_norm(functional.gelu(hidden))
        logits: Tensor = functional.linear(hidden, self.embed_tokens.weight, self.lm_head.bias)
        return logits


def save(network: Network, path: Path, metadata: dict[str, str]) -> None:
    """Write bfloat16 safetensors, the same bytes for the same values; renamed when complete.

    `lm_head.weight` is not in the file: it is `embed_tokens.weight`.
    """
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
    blobs: list[bytes] = []
    end = 0
    for name, parameter in sorted(network.state_dict().items()):
        tensor = parameter.detach().to("cpu", torch.bfloat16).contiguous()
        blobs.append(tensor.view(torch.int16).numpy().astype("<i2").tobytes())
        start, end = end, end + len(blobs[-1])
        offsets = [start, end]
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(np.array(len(text), "<u8").tobytes() + text + b"".join(blobs))
    partial.replace(path)
