"""The roof: the encoder's matrix products alone, and on a GPU one large product."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.engines import BYTES
from bench.engines.hugging_face import NUMBER_TYPES
from bench.place import Place, Stopwatch
from bench.shapes import Shape

Product = Callable[[Tensor], Tensor]
Pack = Callable[[Tensor, int], Product]
"""(weight, rows that will be multiplied with it) → the product."""
MATMUL_SIZE = 8192
ENOUGH_BYTES = 2**30
"""Of weights, so that no cache holds them: layers beyond that take turns with the same ones."""
TRIALS = 4
"""Of each kernel: whichever a disturbance made slower must not be passed over."""


class Gemms:
    """All products with weights of one batch, layer by layer, each from memory and no cache.

    On a CPU the fastest of torch's kernels for them: plain, oneDNN's packed, MKL's packed.
    """

    def __init__(self, shape: Shape, place: Place, dtype: str, num_rows: int) -> None:
        self.name = f"GEMMs alone {dtype}"
        self.dtype = dtype
        self.num_rows = num_rows
        self._place = place
        self._num_layers = shape.num_layers
        kind: dict[str, Any] = {"device": place.device, "dtype": NUMBER_TYPES[dtype]}
        width = shape.width
        torch.manual_seed(0)
        self._narrow = torch.randn(num_rows, width, **kind)
        self._wide = torch.randn(num_rows, 4 * width, **kind)
        sizes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
        weights = [
            [torch.randn(out, into, **kind) * into**-0.5 for into, out in sizes]
            for _ in range(
                min(shape.num_layers, 1 + ENOUGH_BYTES // (12 * width**2 * BYTES[dtype]))
            )
        ]
        self.kernel, self._layers = self._fastest(weights)

    def run(self) -> float:
        """Return the seconds of one batch."""
        return self._batch([self._layers[i % len(self._layers)] for i in range(self._num_layers)])

    @torch.inference_mode()
    def _batch(self, layers: list[list[Product]]) -> float:
        self._place.synchronize()
        started = time.perf_counter()
        for qkv, out, up, down in layers:
            qkv(self._narrow)
            out(self._narrow)
            up(self._narrow)
            down(self._wide)
        self._place.synchronize()
        return time.perf_counter() - started

    def _fastest(self, weights: list[list[Tensor]]) -> tuple[str, list[list[Product]]]:
        found: dict[str, tuple[float, list[list[Product]]]] = {}
        kinds: dict[str, Pack] = {"linear": _plain}
        if self._place.device == "cpu":
            kinds |= {"oneDNN packed": _onednn, "MKL packed": _mkl}
        for name, product in kinds.items():
            try:
                layers = [[product(weight, self.num_rows) for weight in row] for row in weights[:2]]
                found[name] = min(self._batch(layers) for _ in range(TRIALS)), layers
            except (RuntimeError, AttributeError):
                continue  # a kernel that this build of torch does not have for this number type
        name = min(found, key=lambda name: found[name][0])
        rest = [[kinds[name](weight, self.num_rows) for weight in row] for row in weights[2:]]
        return name, found[name][1] + rest


def _plain(weight: Tensor, _: int) -> Product:
    return lambda rows: F.linear(rows, weight)


def _onednn(weight: Tensor, num_rows: int) -> Product:
    operators: Any = torch.ops.mkldnn
    packed = operators._reorder_linear_weight(weight, num_rows)
    return lambda rows: operators._linear_pointwise(rows, packed, None, "none", [], "")


def _mkl(weight: Tensor, num_rows: int) -> Product:
    operators: Any = torch.ops.mkl
    packed = operators._mkl_reorder_linear_weight(weight.to_mkldnn(), num_rows)
    return lambda rows: operators._mkl_linear(rows, packed, weight, None, num_rows)


class Matmul:
    """One square product in 16 bits: the rate that MFU is a share of."""

    def __init__(self, place: Place, dtype: str, size: int = MATMUL_SIZE) -> None:
        torch.manual_seed(0)
        self._place, self._size = place, size
        kind: dict[str, Any] = {"device": place.device, "dtype": NUMBER_TYPES[dtype]}
        self._left, self._right = (torch.randn(size, size, **kind) for _ in range(2))
        for _ in range(3):
            self._left @ self._right

    def run(self, repeats: int = 30) -> float:
        """Return TFLOP/s."""
        with Stopwatch(self._place) as watch:
            for _ in range(repeats):
                self._left @ self._right
        return repeats * 2 * self._size**3 / watch.seconds / 1e12
