"""The linear layers of the encoder, with a class for each method to compute them, and the residual
stream (fp32), to which the output of some is added without a separate pass over it.

A product is rows of inputs times weights plus bias, for all rows at once; `gelu` also applies GELU.

Shape legend: T tokens, D width, I inputs, O outputs.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from typing import ClassVar, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from featuremill.workloads.esm2.kernels import Kernels
from featuremill.workloads.esm2.lanes import instructions


class Stream:
    """The residual stream on one device, from one of its layers on. A product, with bias and
    rounded to its dtype, is added by the next LayerNorm."""

    def __init__(self, residual_TD: Tensor, running_D: Iterable[Tensor | None], /) -> None:
        """Start with `residual_TD`, which is overwritten.

        `running_D` has the cumulative sums of biases of products that are added on this device: at
        the start of the stream (None: none), then after each product.
        """
        self._residual_TD = residual_TD
        self._later_D = iter(running_D)
        self._missing: Tensor | None = None
        """The numbers of the stream that `_residual_TD` lacks."""

    def add(self, product: Product, rows_TI: Tensor) -> None:
        """Add a product of `rows_TI`."""
        self._missing = product(rows_TI)

    def norm(
        self, kernels: Kernels, weight_D: Tensor, bias_D: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """Return the LayerNorm of the stream as `dtype`."""
        delta_TD, self._missing = self._missing, None
        return kernels.add_norm(self._residual_TD, delta_TD, weight_D, bias_D, dtype)

    def whole(self) -> Tensor:
        """Return the stream with all products added; later steps may overwrite it."""
        if self._missing is not None:
            self._residual_TD += self._missing
            self._missing = None
        return self._residual_TD

    def copy(self) -> Tensor:
        """Return a copy of the stream with all products added."""
        if self._missing is None:
            return self._residual_TD.clone()
        return self._residual_TD + self._missing.float()


class AddedByProduct(Stream):
    """A product, without bias, is added in fp32 by its kernel; LayerNorms add the biases so far."""

    def __init__(self, residual_TD: Tensor, running_D: Iterable[Tensor | None], /) -> None:
        super().__init__(residual_TD, running_D)
        self._missing = next(self._later_D)

    def add(self, product: Product, rows_TI: Tensor) -> None:
        cast("Adding", product).add_(self._residual_TD, rows_TI)
        self._missing = next(self._later_D)

    def norm(
        self, kernels: Kernels, weight_D: Tensor, bias_D: Tensor, dtype: torch.dtype
    ) -> Tensor:
        return kernels.norm(self._residual_TD, self._missing, weight_D, bias_D, dtype)

    def whole(self) -> Tensor:
        return self._residual_TD if self._missing is None else self.copy()


class Product(Protocol):
    """A linear layer with its weights."""

    name: ClassVar[str]
    """The method, for the receipt."""
    STREAM: ClassVar[type[Stream]] = Stream
    """The method to add it to the residual stream."""
    bias_O: Tensor

    def __init__(self, weight_OI: Tensor, bias_O: Tensor) -> None: ...

    def __call__(self, rows_TI: Tensor) -> Tensor:
        """Return outputs_TO."""

    def gelu(self, rows_TI: Tensor) -> Tensor:
        """Return GELU of outputs_TO."""


class Plain(Product):
    """torch's own product: cuBLAS on CUDA, with GELU in its epilogue where available."""

    name = "torch"

    def __init__(self, weight_OI: Tensor, bias_O: Tensor) -> None:
        self.weight_OI, self.bias_O = weight_OI, bias_O

    def __call__(self, rows_TI: Tensor) -> Tensor:
        return F.linear(rows_TI, self.weight_OI, self.bias_O)

    def gelu(self, rows_TI: Tensor) -> Tensor:
        """Return GELU of outputs_TO: the erf form in fp32, as published.

        In 16 bits cuBLAS has only the tanh form; the difference is far below the rounding.
        """
        if rows_TI.dtype == torch.float32:
            return F.gelu(self(rows_TI))
        return torch._addmm_activation(self.bias_O, rows_TI, self.weight_OI.t(), use_gelu=True)


class Adding(Plain):
    """cuBLAS's product that is added to the residual stream in the same pass, in fp32.

    The product is neither rounded to 16 bits nor written separately. It is without bias, which this
    pass cannot add.
    """

    name = "torch, added to the residual stream"
    STREAM = AddedByProduct

    def add_(self, residual_TO: Tensor, rows_TI: Tensor) -> None:
        """Add the product of rows of 16 bits, without its bias, to `residual_TO` (fp32) in place.

        torch supports this on CUDA only, with such a `residual_TO` from 2.10 on (pytorch#167931).
        """
        torch.addmm(
            residual_TO, rows_TI, self.weight_OI.t(), out_dtype=torch.float32, out=residual_TO
        )


class Apart(Plain):
    """torch's own product, with GELU in a separate pass."""

    name = "torch, gelu apart"

    def gelu(self, rows_TI: Tensor) -> Tensor:
        return F.gelu(self(rows_TI))


class AddingApart(Adding):
    """The product of `Adding`, with GELU in a separate pass."""

    name = f"{Adding.name}, gelu apart"
    gelu = Apart.gelu


class OneDnn(Product):
    """oneDNN's product on a CPU, with weights in oneDNN's layout.

    GELU, in the erf form, is applied before the result is rounded to the dtype.

    A row's bits depend neither on the other rows nor on the number of threads
    (tests/test_encoder.py).
    """

    name = "onednn"

    def __init__(self, weight_OI: Tensor, bias_O: Tensor) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight_OI, None)
        self.bias_O = bias_O

    def __call__(self, rows_TI: Tensor) -> Tensor:
        return self._run(rows_TI, "none", "")

    def gelu(self, rows_TI: Tensor) -> Tensor:
        return self._run(rows_TI, "gelu", "none")

    def _run(self, rows_TI: Tensor, activation: str, form: str) -> Tensor:
        outputs_TO: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows_TI, self.weight, self.bias_O, activation, [], form
        )
        return outputs_TO


class OneDnnAmx(OneDnn):
    """oneDNN's product in bf16 on a CPU with AMX, in blocks of at most `ROWS` rows.

    With AMX, oneDNN's order of sums depends on the numbers of rows and threads. So a block is
    padded with zeros, and a single thread computes it (`lanes.py`).
    """

    name = "onednn-amx"
    ROWS = 512
    """Rows of a block; fewer are slower, and with more, a batch occupies fewer threads."""

    def _run(self, rows_TI: Tensor, activation: str, form: str) -> Tensor:
        num_rows = len(rows_TI)
        if num_rows < self.ROWS:
            rows_TI = F.pad(rows_TI, (0, 0, 0, self.ROWS - num_rows))
        return super()._run(rows_TI, activation, form)[:num_rows]


def forms(device: torch.device, dtype: torch.dtype) -> list[type[Product]]:
    """Return the classes for `device` and `dtype`, the fastest first."""
    if device.type == "cuda" and dtype != torch.float32:
        return [Adding, AddingApart, Plain, Apart]
    is_built = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    has_onednn = is_built and torch.backends.mkldnn.enabled
    if device.type != "cpu" or not has_onednn or platform.machine() != "x86_64":
        return [Plain] if dtype == torch.float32 else [Plain, Apart]
    ops = torch.ops.mkldnn
    narrow = {
        torch.bfloat16: ops._is_mkldnn_bf16_supported,
        torch.float16: ops._is_mkldnn_fp16_supported,
    }
    if dtype in narrow and not narrow[dtype]():
        return [Plain, Apart]
    return [FORMS[instructions(dtype)], Plain]


FORMS: dict[str, type[OneDnn]] = {
    isa: type("OneDnn", (OneDnn,), {"name": f"onednn-{isa}"})
    for isa in ("avx512_bf16", "avx512", "avx2", "sse")
} | {"amx": OneDnnAmx}
"""oneDNN's product for each set of instructions."""
