"""The ESM-2 encoder over packed sequences, without padding, language-model head or attention maps.

Numerics are those of fair-esm 2.0.0 in fp32. In bf16 and fp16 only the matrix products and what
passes between them are narrow: residual stream, LayerNorm, rotary and softmax stay in fp32.

Shape legend: T tokens of all sequences, D width, H heads, d width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from featuremill.workloads.esm2 import attention
from featuremill.workloads.esm2.kernels import twins
from featuremill.workloads.esm2.packing import Packed
from featuremill.workloads.esm2.tokens import MASK, PAD

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
KEPT_IN_TRAINING = 1 - 0.15 * 0.8
"""Token dropout scales embeddings by the share that training did not mask, at inference too."""


class Linear(NamedTuple):
    """Weight (out, in) and bias (out) of a product, or scale and shift of a LayerNorm."""

    weight: Tensor
    bias: Tensor


class Layer(NamedTuple):
    """One pre-LayerNorm transformer block."""

    attention_norm: Linear
    qkv: Linear
    out: Linear
    feed_forward_norm: Linear
    up: Linear
    down: Linear


class Encoder:
    """ESM-2 on one device, read from a file that `featuremill weights` made."""

    def __init__(
        self, path: Path, metadata: Mapping[str, str], device: torch.device, dtype: torch.dtype
    ) -> None:
        self.device, self.dtype = device, dtype
        self.num_layers = int(metadata["num_layers"])
        self.num_heads = int(metadata["attention_heads"])
        self.width = int(metadata["embed_dim"])
        self.head_dim = self.width // self.num_heads
        self.backend = attention.choose(device, dtype, self.num_heads, self.head_dim)
        with safe_open(path, framework="pt") as file:
            self._read(file.get_tensor)
        self._turns_Pf2 = torch.empty(0, device=device)

    def _read(self, get: Callable[[str], Tensor]) -> None:
        embedding = get("embed_tokens.weight").float() * KEPT_IN_TRAINING
        embedding[[MASK, PAD]] = 0
        self.embedding = embedding.to(self.device)
        self.frequencies_d = get("rotary.inv_freq").to(self.device, torch.float32)
        self.final_norm = self._linear(get, "final_norm", torch.float32)
        self.layers = [self._layer(get, f"layers.{i}.") for i in range(self.num_layers)]

    def _layer(self, get: Callable[[str], Tensor], prefix: str) -> Layer:
        norms = ("attention_norm", "feed_forward_norm")
        parts = {
            part: self._linear(get, prefix + part, torch.float32 if part in norms else self.dtype)
            for part in Layer._fields
        }
        parts["qkv"] = Linear(*(self._neighbours(tensor) for tensor in parts["qkv"]))
        return Layer(**parts)

    def _linear(self, get: Callable[[str], Tensor], name: str, dtype: torch.dtype) -> Linear:
        weight, bias = get(f"{name}.weight"), get(f"{name}.bias")
        return Linear(weight.to(self.device, dtype), bias.to(self.device, dtype))

    def _neighbours(self, qkv: Tensor) -> Tensor:
        """Reorder rows of query and key so that each pair that rotary turns stands side by side.

        ESM-2 turns element i of a head with i + d/2 (NeoX halves); as neighbours they are one
        complex number. Query times key stays what it was, as both are reordered alike.
        """
        qkv = qkv.view(3, self.num_heads, 2, self.head_dim // 2, -1)
        reordered = torch.cat((qkv[:2].transpose(2, 3).reshape(2, -1), qkv[2:].reshape(1, -1)))
        return reordered.view(3 * self.width, -1).squeeze(-1)

    @torch.inference_mode()
    def representations(
        self, pack: Packed, wanted: Collection[int]
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield (layer, hidden_TD in fp32) for each wanted layer, in order.

        A hidden state is overwritten when the next one is asked for. Rows from `pack.bounds[-1]`
        on mean nothing.
        """
        residual_TD = F.embedding(pack.tokens_T, self.embedding)
        if pack.unmasked_T1 is not None:
            residual_TD /= pack.unmasked_T1
        if 0 in wanted:
            yield 0, residual_TD
        turns_Pf2 = self._turns(pack)
        for number, layer in enumerate(self.layers[: max(wanted)], 1):
            self._attend(layer, residual_TD, turns_Pf2, pack)
            self._feed_forward(layer, residual_TD)
            if number in wanted:
                is_last = number == self.num_layers
                yield number, self._norm(self.final_norm, residual_TD) if is_last else residual_TD

    def _attend(self, layer: Layer, residual_TD: Tensor, turns_Pf2: Tensor, pack: Packed) -> None:
        normed_TD = self._norm(layer.attention_norm, residual_TD).to(self.dtype)
        qkv_T3Hd = F.linear(normed_TD, *layer.qkv).view(-1, 3, self.num_heads, self.head_dim)
        twins.rotate_(qkv_T3Hd, turns_Pf2, pack.positions_T)
        context_TD = self.backend.attend(qkv_T3Hd, pack).flatten(1)
        residual_TD += F.linear(context_TD, *layer.out)

    def _feed_forward(self, layer: Layer, residual_TD: Tensor) -> None:
        normed_TD = self._norm(layer.feed_forward_norm, residual_TD).to(self.dtype)
        # The erf form; torch evaluates it in fp32 for narrow types too.
        residual_TD += F.linear(F.gelu(F.linear(normed_TD, *layer.up)), *layer.down)

    def _norm(self, norm: Linear, residual_TD: Tensor) -> Tensor:
        return F.layer_norm(residual_TD, residual_TD.shape[-1:], *norm, twins.NORM_EPSILON)

    def _turns(self, pack: Packed) -> Tensor:
        """Return cosine and sine of each position's angles, from fp32 angles."""
        if len(self._turns_Pf2) < pack.longest:
            positions_P = torch.arange(pack.longest, device=self.device, dtype=torch.float32)
            angles_Pf = torch.outer(positions_P, self.frequencies_d)
            self._turns_Pf2 = torch.stack((angles_Pf.cos(), angles_Pf.sin()), 2)
        return self._turns_Pf2
