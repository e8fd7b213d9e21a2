"""The encoder over packed sequences, without padding, language-model head or attention maps.

Numerics are those of fair-esm 2.0.0 (ESM-2, ESM-1b, ESM-1v) and of transformers 5.23 (ESM C,
SaProt) in fp32. With bf16 and fp16, only the matrix products and the tensors between them are in 16
bits: residual stream, LayerNorm, rotary and softmax stay in fp32.

Shape legend: T tokens of all sequences, D width, F inner width of the feed-forward layers, H heads,
d width of a head, P positions, f = d/2 pairs of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from featuremill.workload import loading
from featuremill.workload.spread import DIRECT, dealt, each_tensor, on_device
from featuremill.workloads.esm2 import triton_cache
from featuremill.workloads.esm2.architecture import sizes_of
from featuremill.workloads.esm2.attention import Backend
from featuremill.workloads.esm2.fallbacks import Fallbacks, LinearWeights, fault_of, fault_of_copies
from featuremill.workloads.esm2.kernels.reference import NORM_EPSILON
from featuremill.workloads.esm2.layout import FIRST_NORM, POSITIONS
from featuremill.workloads.esm2.matmul import Product
from featuremill.workloads.esm2.packing import Packed
from featuremill.workloads.esm2.stages import Block, Layer, Norm, Stage
from featuremill.workloads.esm2.tokens import PAD

__all__ = ["Encoder"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
KEPT_IN_TRAINING = 1 - 0.15 * 0.8
"""Token dropout scales embeddings by the share that training did not mask, at inference too."""
PRODUCTS = ("qkv", "out", "up", "down")
"""Names of the linear layers of a layer in a file of weights."""
ADDED = ("out", "down")
"""Linear layers whose output is added to the residual stream."""
Get = Callable[[str], Tensor]
"""A function that returns a tensor of the file of weights by its name."""


class Encoder:
    """A network from a file of `featuremill weights`, with its layers on one device or several.

    The embedding is on the first device, the final LayerNorm on the last.
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, str],
        devices: Sequence[torch.device],
        dtype: torch.dtype,
        num_rows: int = 0,
        attention: Backend | None = None,
        prefix: str = "",
    ) -> None:
        """Products are also tested with `num_rows`, the rows of a batch, unless it is 0.
        `attention` replaces all methods for attention. `prefix` precedes all names in the file."""
        self.dtype = dtype
        self._num_rows = num_rows
        self._attention = attention
        sizes = sizes_of(metadata)
        self.architecture = sizes.architecture
        self.num_layers, self.num_heads = sizes.num_layers, sizes.num_heads
        self.width, self.head_dim = sizes.width, sizes.head_dim
        self.device = devices[0]
        self._turns_Pf2: dict[torch.device, Tensor] = {}
        with loading.part("device"):
            for device in devices:
                torch.zeros(1, device=device)
        with safe_open(path, framework="pt") as file:
            self._read(lambda name: file.get_tensor(prefix + name), devices)

    @property
    def backend(self) -> str:
        """The methods for attention, products and the rest, for the receipt."""
        return " | ".join(sorted({stage.name for stage in self.stages if stage.layers}))

    def _read(self, get: Get, devices: Sequence[torch.device]) -> None:
        embedding = get("embed_tokens.weight").float()
        if self.architecture.has_token_dropout:
            embedding = embedding * KEPT_IN_TRAINING
            embedding[[self.architecture.mask, PAD]] = 0
        self.embedding = embedding.to(devices[0])
        self.positions_PD: Tensor | None = None
        if self.architecture.num_positions:
            self.positions_PD = get(POSITIONS)[PAD + 1 :].to(devices[0], torch.float32)
        self.first_norm: Norm | None = None
        if self.architecture.norms_embedding:
            self.first_norm = _norm(get, FIRST_NORM, devices[0])
        self.frequencies_f = get("rotary.inv_freq").float()
        self.final_norm = _norm(get, "final_norm", devices[-1])
        self.stages: list[Stage] = []
        for device, numbers in zip(devices, dealt([1] * self.num_layers, devices), strict=True):
            self.stages.append(self._stage(get, device, numbers))

    def _stage(self, get: Get, device: torch.device, numbers: range) -> Stage:
        """Return these layers on `device`, with the fastest methods that pass their tests there."""
        with loading.part("methods"):
            fallbacks = Fallbacks(device, self.dtype, self.num_heads, self.head_dim)
            if self._attention:
                fallbacks.attention = [self._attention]
        copies = DIRECT  # the first device gets no copies
        if self.stages:
            while fault := fault_of_copies(fallbacks.copies[0], self.stages[-1].device, device):
                fallbacks.step_down(fault)
            copies = fallbacks.copies[0]
        while True:
            ways = (fallbacks.attention[0], fallbacks.products[0], fallbacks.kernels[0], copies)
            stage = Stage(device, [], [None], *ways)
            fault = None
            for number in numbers:
                with loading.part("weights"):
                    layer = self._layer(get, number, device, stage.form)
                    stage.append(layer)
                if number in (numbers[0], numbers[-1]):
                    triton_cache.wait_for_key()
                    exact = self._exact(get, number, device)
                    what = (self.embedding, self._rotary, self.dtype, self._num_rows)
                    if fault := fault_of(stage, layer, exact, *what):
                        break
            if not fault:
                return stage
            fallbacks.step_down(fault)

    def _layer(
        self,
        get: Get,
        number: int,
        device: torch.device,
        form: type[Product],
    ) -> Layer:
        products = {name: form(*self._weights(get, number, name, device)) for name in PRODUCTS}
        prefix = f"layers.{number}."
        query_key_norm_2D = None
        if self.architecture.norms_query_and_key:
            weight = get(f"{prefix}query_key_norm.weight").to(device, torch.float32)
            query_key_norm_2D = self._neighbours(weight).view(2, -1)
        return Layer(
            query_key_norm_2D=query_key_norm_2D,
            is_gated=self.architecture.is_gated,
            attention_norm=_norm(get, f"{prefix}attention_norm", device),
            feed_forward_norm=_norm(get, f"{prefix}feed_forward_norm", device),
            **products,
        )

    def _exact(self, get: Get, number: int, device: torch.device) -> LinearWeights:
        """Return the weights of a layer's linear layers in fp32, for tests."""
        exact = {}
        for name in PRODUCTS:
            weight_OI, bias_O = self._weights(get, number, name, device)
            exact[name] = weight_OI.float(), bias_O.float()
        return exact

    def _weights(
        self, get: Get, number: int, name: str, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return weight and bias of a linear layer in the computing dtype, rounded on `device`."""
        weight_OI, bias_O = (
            get(f"layers.{number}.{name}.{part}").to(device) for part in ("weight", "bias")
        )
        divisor = self.architecture.divisor(self.num_layers)
        if name in ADDED and divisor != 1:
            weight_OI, bias_O = weight_OI.float() / divisor, bias_O.float() / divisor
        if name == "qkv":
            weight_OI, bias_O = self._neighbours(weight_OI), self._neighbours(bias_O)
        return weight_OI.to(self.dtype), bias_O.to(self.dtype)

    def _neighbours(self, rows: Tensor) -> Tensor:
        """Reorder the rows of query and key, which come first, so that the two numbers of each
        rotary pair are neighbours.

        Element i of a head is rotated with i + d/2 (NeoX halves); as neighbours they are one
        complex number. Query times key does not change, as both are reordered alike.
        """
        turned, others = rows.tensor_split((2 * self.width,))
        halves = turned.reshape(2, self.num_heads, 2, self.head_dim // 2, -1)
        return torch.cat((halves.transpose(2, 3).reshape(turned.shape), others))

    @torch.inference_mode()
    def representations(
        self, pack: Packed, wanted: Collection[int]
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield (layer, hidden_TD in fp32) for each wanted layer, in order.

        A hidden state is on the device of its layer; it is overwritten when the next one is
        requested. Rows from `pack.bounds[-1]` on are undefined.
        """
        pack = on_device(pack, self.device)
        residual_TD = F.embedding(pack.tokens_T, self.embedding)
        if pack.unmasked_T1 is not None and self.architecture.has_token_dropout:
            residual_TD /= pack.unmasked_T1
        if self.positions_PD is not None:
            residual_TD += F.embedding(pack.positions_T, self.positions_PD)
        if self.first_norm is not None:
            residual_TD = F.layer_norm(residual_TD, (self.width,), *self.first_norm, NORM_EPSILON)
        if 0 in wanted:
            yield 0, residual_TD
        number = 0
        for stage in self.stages:
            if number >= max(wanted):
                break
            pack = each_tensor(pack, stage.bring)
            residual_TD = stage.bring(residual_TD)
            blocks = stage.blocks(residual_TD)
            layers = stage.layers[: max(wanted) - number]
            heads = (3, self.num_heads, self.head_dim)
            qkv_T3Hd: Tensor | None = None
            for layer, following in zip_longest(layers, layers[1:]):
                number += 1
                with stage.current():
                    if qkv_T3Hd is None:
                        first = self._heads(stage, layer, pack)
                        qkv_T3Hd = stage.rows(first, blocks, heads, self.dtype)
                    rotary_Pf2 = self._rotary(pack.longest, stage.device)
                    context_TD = stage.attend(layer, qkv_T3Hd, pack, rotary_Pf2).flatten(1)
                    into = qkv_T3Hd if len(blocks) > 1 else None
                    qkv_T3Hd = None  # free memory for long proteins
                    add = self._add(stage, layer, context_TD)
                    if following is None or number in wanted:
                        stage.each(add, blocks)
                    else:  # a block continues while it is in a cache
                        both = _after(add, self._heads(stage, following, pack))
                        qkv_T3Hd = stage.rows(both, blocks, heads, self.dtype, into)
                        del both
                    del context_TD, add, into
                if number in wanted and number < self.num_layers:
                    yield number, _whole(blocks)
            if number == self.num_layers:
                yield number, self._final(stage, blocks)
            elif number < max(wanted):
                residual_TD = _whole(blocks)

    def _heads(
        self, stage: Stage, layer: Layer, pack: Packed
    ) -> Callable[[Block, Tensor | None], Tensor]:
        """Return the function that computes qkv_T3Hd of a block, with query and key rotated by
        position if attention does not do that."""
        rotary_Pf2 = self._rotary(pack.longest, stage.device)

        def compute(block: Block, into: Tensor | None) -> Tensor:
            normed_TD = block.stream.norm(stage.kernels, *layer.attention_norm, self.dtype)
            qkv_T3Hd = layer.qkv(normed_TD).view(-1, 3, self.num_heads, self.head_dim)
            if not stage.rotates_in_attention(layer):
                positions_T = block.rows_of(pack.positions_T)
                stage.kernels.rotate_(qkv_T3Hd, rotary_Pf2, positions_T, layer.query_key_norm_2D)
            return qkv_T3Hd if into is None else into.copy_(qkv_T3Hd)

        return compute

    def _add(self, stage: Stage, layer: Layer, context_TD: Tensor) -> Callable[[Block], None]:
        """Return the function that adds attention and feed-forward to a residual block."""

        def compute(block: Block) -> None:
            stream = block.stream
            stream.add(layer.out, block.rows_of(context_TD))
            normed_TD = stream.norm(stage.kernels, *layer.feed_forward_norm, self.dtype)
            hidden_TF = layer.hidden(normed_TD, stage.kernels)
            del normed_TD
            stream.add(layer.down, hidden_TF)

        return compute

    def _final(self, stage: Stage, blocks: list[Block]) -> Tensor:

        def compute(block: Block, into: Tensor | None) -> Tensor:
            normed_TD = block.stream.norm(stage.kernels, *self.final_norm, torch.float32)
            return normed_TD if into is None else into.copy_(normed_TD)

        with stage.current():
            return stage.rows(compute, blocks, (self.width,), torch.float32)

    def mean_rows(self, hidden_TD: Tensor, starts_N: Tensor, ends_N: Tensor) -> Tensor:
        """Return means_ND of rows [start, end), on the device of `hidden_TD`."""
        stage = next(stage for stage in self.stages if stage.device == hidden_TD.device)
        with stage.current():
            return stage.kernels.mean_rows(hidden_TD, starts_N, ends_N)

    def _rotary(self, num_positions: int, device: torch.device) -> Tensor:
        """Return cosine and sine of the angle of each pair at each position, in fp32."""
        known_Pf2 = self._turns_Pf2.get(device)
        if known_Pf2 is None or len(known_Pf2) < num_positions:
            positions_P = torch.arange(num_positions, dtype=torch.float32)
            angles_Pf = torch.outer(positions_P, self.frequencies_f)
            known_Pf2 = torch.stack((angles_Pf.cos(), angles_Pf.sin()), -1).to(device)
            self._turns_Pf2[device] = known_Pf2
        return known_Pf2


def _after(
    first: Callable[[Block], None], then: Callable[[Block, Tensor | None], Tensor]
) -> Callable[[Block, Tensor | None], Tensor]:

    def compute(block: Block, into: Tensor | None) -> Tensor:
        first(block)
        return then(block, into)

    return compute


def _whole(blocks: list[Block]) -> Tensor:
    """Return the residual stream with all outputs added; later steps may overwrite it."""
    rows_TD = [block.stream.whole() for block in blocks]
    return rows_TD[0] if len(rows_TD) == 1 else torch.cat(rows_TD)


def _norm(get: Get, name: str, device: torch.device) -> Norm:
    return Norm(*(get(f"{name}.{part}").to(device, torch.float32) for part in ("weight", "bias")))
