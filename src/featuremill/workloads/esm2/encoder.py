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
from featuremill.workloads.esm2.packing import Packed
from featuremill.workloads.esm2.tokens import MASK, PAD

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
NORM_EPSILON = 1e-5
KEPT_IN_TRAINING = 1 - 0.15 * 0.8
"""Token dropout scales embeddings by the share that training did not mask, at inference too."""

SERIAL_ELEMENTS = 32_000
"""Fewer elements than torch's grain size (32,768): work that it does not share between threads."""


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
        self._rotations_Pd = torch.empty(0, device=device)

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
        rotation_T1D = self._rotation(pack)
        for number, layer in enumerate(self.layers[: max(wanted)], 1):
            self._attend(layer, residual_TD, rotation_T1D, pack)
            self._feed_forward(layer, residual_TD)
            if number in wanted:
                is_last = number == self.num_layers
                yield number, self._norm(self.final_norm, residual_TD) if is_last else residual_TD

    def _attend(
        self, layer: Layer, residual_TD: Tensor, rotation_T1D: Tensor, pack: Packed
    ) -> None:
        normed_TD = self._norm(layer.attention_norm, residual_TD).to(self.dtype)
        qkv_T3D = F.linear(normed_TD, *layer.qkv).view(-1, 3, self.width)
        rotate(qkv_T3D[:, :2], rotation_T1D)
        qkv_T3Hd = qkv_T3D.view(-1, 3, self.num_heads, self.head_dim)
        context_TD = self.backend.attend(qkv_T3Hd, pack).flatten(1)
        residual_TD += F.linear(context_TD, *layer.out)

    def _feed_forward(self, layer: Layer, residual_TD: Tensor) -> None:
        normed_TD = self._norm(layer.feed_forward_norm, residual_TD).to(self.dtype)
        # The erf form; torch evaluates it in fp32 for narrow types too.
        residual_TD += F.linear(F.gelu(F.linear(normed_TD, *layer.up)), *layer.down)

    def _norm(self, norm: Linear, residual_TD: Tensor) -> Tensor:
        return F.layer_norm(residual_TD, residual_TD.shape[-1:], *norm, NORM_EPSILON)

    def _rotation(self, pack: Packed) -> Tensor:
        """Return each token's turns of all heads as complex numbers, from fp32 angles."""
        if len(self._rotations_Pd) < pack.longest:
            positions_P = torch.arange(pack.longest, device=self.device, dtype=torch.float32)
            angles_Pd = torch.outer(positions_P, self.frequencies_d)
            self._rotations_Pd = torch.complex(angles_Pd.cos(), angles_Pd.sin())
        turns_T1d = self._rotations_Pd[pack.positions_T].unsqueeze(1)
        return turns_T1d.expand(-1, self.num_heads, -1).flatten(1).unsqueeze(1)


def rotate(qk_T2D: Tensor, rotation_T1D: Tensor) -> None:
    """Turn query and key in place, in fp32; neighbours in D make one complex number."""
    wide_T2D = qk_T2D.float()
    pairs_T2D = torch.view_as_complex(wide_T2D.view(*wide_T2D.shape[:2], -1, 2))
    rows = len(pairs_T2D)
    if wide_T2D.device.type == "cpu":
        # Numbers at the end of a thread's share go through other code, which rounds otherwise.
        rows = SERIAL_ELEMENTS // pairs_T2D[0].numel()
    for start in range(0, len(pairs_T2D), rows):
        pairs_T2D[start : start + rows].mul_(rotation_T1D[start : start + rows])
    if wide_T2D is not qk_T2D:
        qk_T2D.copy_(wide_T2D)
