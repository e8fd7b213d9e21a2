"""The roof: the encoder's matrix products alone, and on a GPU one large product."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.engines.hugging_face import NUMBER_TYPES
from bench.shapes import Shape

Product = Callable[[Tensor], Tensor]
Pack = Callable[[Tensor, int], Product]
"""(weight, rows that will be multiplied with it) → the product."""
MATMUL_SIZE = 8192


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


class Stopwatch:
    """Measures what the GPU does in the block, by its own events."""

    def __enter__(self) -> Stopwatch:
        event: Any = torch.cuda.Event
        self._start, self._end = event(enable_timing=True), event(enable_timing=True)
        torch.cuda.synchronize()
        self._start.record()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.record()
        torch.cuda.synchronize()
        self.seconds = float(self._start.elapsed_time(self._end)) / 1000


class Gemms:
    """All products with weights of one batch, layer by layer, each layer with its own weights.

    On a CPU the fastest of torch's kernels for them: plain, oneDNN's packed, MKL's packed.
    """

    def __init__(self, shape: Shape, device: str, dtype: str, num_rows: int) -> None:
        self.name = f"GEMMs alone {dtype}"
        self.dtype = dtype
        self.num_rows = num_rows
        self._device = device
        kind: dict[str, Any] = {"device": device, "dtype": NUMBER_TYPES[dtype]}
        width = shape.width
        torch.manual_seed(0)
        self._narrow = torch.randn(num_rows, width, **kind)
        self._wide = torch.randn(num_rows, 4 * width, **kind)
        sizes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
        weights = [
            [torch.randn(out, into, **kind) * into**-0.5 for into, out in sizes]
            for _ in range(shape.num_layers)
        ]
        self.kernel, self._layers = self._fastest(weights)

    def run(self) -> float:
        """Return the seconds of one batch."""
        synchronize(self._device)
        started = time.perf_counter()
        self._batch(self._layers)
        synchronize(self._device)
        return time.perf_counter() - started

    @torch.inference_mode()
    def _batch(self, layers: list[list[Product]]) -> None:
        for qkv, out, up, down in layers:
            qkv(self._narrow)
            out(self._narrow)
            up(self._narrow)
            down(self._wide)

    def _fastest(self, weights: list[list[Tensor]]) -> tuple[str, list[list[Product]]]:
        found: dict[str, tuple[float, list[list[Product]]]] = {}
        kinds: dict[str, Pack] = {"linear": _plain}
        if self._device == "cpu":
            kinds |= {"oneDNN packed": _onednn, "MKL packed": _mkl}
        for name, product in kinds.items():
            try:
                layers = [[product(weight, self.num_rows) for weight in row] for row in weights[:2]]
                self._batch(layers)
                started = time.perf_counter()
                self._batch(layers)
                found[name] = time.perf_counter() - started, layers
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
    """One square product in bf16: the rate that MFU is a share of."""

    name = f"matmul {MATMUL_SIZE}³ bf16"

    def __init__(self) -> None:
        torch.manual_seed(0)
        size = (MATMUL_SIZE, MATMUL_SIZE)
        self._left, self._right = (
            torch.randn(size, device="cuda", dtype=torch.bfloat16) for _ in range(2)
        )
        for _ in range(3):
            self._left @ self._right

    def run(self, repeats: int = 30) -> float:
        """Return TFLOP/s."""
        with Stopwatch() as watch:
            for _ in range(repeats):
                self._left @ self._right
        return repeats * 2 * MATMUL_SIZE**3 / watch.seconds / 1e12
