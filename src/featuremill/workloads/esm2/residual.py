"""The residual stream (fp32), and two methods to add a layer's output to it.

Neither method needs a separate pass over the stream.

Shape legend: T tokens, D width, I inputs of a product.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast

import torch
from torch import Tensor

from featuremill.workloads.esm2.kernels import Kernels


class Addend(Protocol):
    """A linear layer whose output is added to a stream."""

    def __call__(self, rows_TI: Tensor, /) -> Tensor:
        """Return the product of `rows_TI`, with its bias."""


class AddsItself(Protocol):
    """A linear layer that adds its output to a stream, for `AddedByProduct`."""

    def add_(self, residual_TD: Tensor, rows_TI: Tensor, /) -> None:
        """Add the product of `rows_TI`, without its bias, to `residual_TD` in place."""


class Stream(Protocol):
    """The residual stream on one device, from one of its layers on."""

    def __init__(self, residual_TD: Tensor, running_D: Iterable[Tensor | None], /) -> None:
        """Start with `residual_TD`, which is overwritten.

        `running_D` has the cumulative sums of biases of products that are added on this device: at
        the start of the stream (None: none), then after each product.
        """

    def add(self, product: Addend, rows_TI: Tensor) -> None:
        """Add a product of `rows_TI`."""

    def norm(
        self, kernels: Kernels, weight_D: Tensor, bias_D: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """Return the LayerNorm of the stream as `dtype`."""

    def whole(self) -> Tensor:
        """Return the stream with all products added; later steps may overwrite it."""

    def copy(self) -> Tensor:
        """Return a copy of the stream with all products added."""


class AddedByNorm:
    """A product, with bias and rounded to its dtype, is added by the next LayerNorm."""

    def __init__(self, residual_TD: Tensor, _: Iterable[Tensor | None], /) -> None:
        self._residual_TD = residual_TD
        self._delta_TD: Tensor | None = None

    def add(self, product: Addend, rows_TI: Tensor) -> None:
        self._delta_TD = product(rows_TI)

    def norm(
        self, kernels: Kernels, weight_D: Tensor, bias_D: Tensor, dtype: torch.dtype
    ) -> Tensor:
        delta_TD, self._delta_TD = self._delta_TD, None
        return kernels.add_norm(self._residual_TD, delta_TD, weight_D, bias_D, dtype)

    def whole(self) -> Tensor:
        if self._delta_TD is not None:
            self._residual_TD += self._delta_TD
            self._delta_TD = None
        return self._residual_TD

    def copy(self) -> Tensor:
        if self._delta_TD is None:
            return self._residual_TD.clone()
        return self._residual_TD + self._delta_TD.float()


class AddedByProduct:
    """A product, without bias, is added in fp32 by its kernel; LayerNorms add the biases so far."""

    def __init__(self, residual_TD: Tensor, running_D: Iterable[Tensor | None], /) -> None:
        self._residual_TD = residual_TD
        self._later_D = iter(running_D)
        self._running_D = next(self._later_D)

    def add(self, product: Addend, rows_TI: Tensor) -> None:
        cast("AddsItself", product).add_(self._residual_TD, rows_TI)
        self._running_D = next(self._later_D)

    def norm(
        self, kernels: Kernels, weight_D: Tensor, bias_D: Tensor, dtype: torch.dtype
    ) -> Tensor:
        return kernels.norm(self._residual_TD, self._running_D, weight_D, bias_D, dtype)

    def whole(self) -> Tensor:
        return self._residual_TD if self._running_D is None else self.copy()

    def copy(self) -> Tensor:
        if self._running_D is None:
            return self._residual_TD.clone()
        return self._residual_TD + self._running_D
