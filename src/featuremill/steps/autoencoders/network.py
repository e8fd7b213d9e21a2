"""The network of a sparse autoencoder, in torch.

A vector x has the features z = f((x - b_dec) W_enc + b_enc), and its reconstruction is
z W_dec + b_dec. f depends on the kind:

* topk: ReLU of the k largest (Gao et al. 2024, arXiv:2406.04093);
* relu: ReLU, trained with a penalty on the sum of the features (L1; Bricken et al. 2023, "Towards
  monosemanticity");
* jumprelu: the numbers above a trained threshold per feature, with a penalty on their count (L0;
  Rajamanoharan et al. 2024, arXiv:2407.14435).

Shapes: B vectors, D their width, M features, K active ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
AUXILIARY = 1 / 32
"""Weight of the auxiliary loss of dead features (Gao et al., A.2)."""
FIRST_THRESHOLD = 0.01
"""The initial threshold of each feature, as in SAELens."""


class Form(NamedTuple):
    """The activation function of an autoencoder."""

    kind: str
    k: int = 0
    """The largest number of active features of `topk`."""
    subtracts: bool = True
    """Whether b_dec is subtracted from x first."""


def sizes(width: int, num_features: int, kind: str = "topk") -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters."""
    shapes: dict[str, tuple[int, ...]] = {
        "W_enc": (width, num_features),
        "b_enc": (num_features,),
        "W_dec": (num_features, width),
        "b_dec": (width,),
    }
    return {**shapes, "threshold": (num_features,)} if kind == "jumprelu" else shapes


def initialise(tensors: Tensors, seed: int) -> None:
    """Initialise the rows of the decoder with random directions, and the encoder with the same."""
    generator = torch.Generator().manual_seed(seed)
    weights = tensors["W_dec"]
    drawn = torch.empty(weights.shape)
    drawn.normal_(generator=generator)
    drawn /= torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
    weights.copy_(drawn)
    tensors["W_enc"].copy_(drawn.T)
    if "threshold" in tensors:
        tensors["threshold"].fill_(FIRST_THRESHOLD)


def pre_activations(tensors: Tensors, x_BD: Tensor, subtracts: bool = True) -> Tensor:
    """Return the input of the activation, (B, M)."""
    centered = x_BD - tensors["b_dec"] if subtracts else x_BD
    return centered @ tensors["W_enc"] + tensors["b_enc"]


def largest(pre_BM: Tensor, k: int) -> Tensor:
    """Return the k largest numbers of each vector if they are above 0, and 0 elsewhere."""
    top = pre_BM.topk(k, dim=-1, sorted=False)
    return spread(top.values.relu(), top.indices, pre_BM.shape[1])


def features(tensors: Tensors, x_BD: Tensor, form: Form) -> Tensor:
    """Return the features of vectors, (B, M)."""
    pre_BM = pre_activations(tensors, x_BD, form.subtracts)
    if form.kind == "topk":
        return largest(pre_BM, form.k)
    if form.kind == "relu":
        return pre_BM.relu()
    return pre_BM.relu() * (pre_BM > tensors["threshold"])


def penalised(
    tensors: Tensors, pre_BM: Tensor, form: Form, bandwidth: float
) -> tuple[Tensor, Tensor | None]:
    """Return the features (B, M) in a training, and the sum over B of their penalty or None."""
    if form.kind == "topk":
        return largest(pre_BM, form.k), None
    if form.kind == "relu":  # rows of W_dec have length 1, so features cannot shrink for free
        z_BM = pre_BM.relu()
        return z_BM, z_BM.float().sum()
    z_BM, num_active = _Jump.apply(  # type: ignore[no-untyped-call]
        pre_BM, tensors["threshold"], bandwidth
    )
    return z_BM, num_active


class _Jump(torch.autograd.Function):
    """The numbers above a threshold, and their count.

    Neither is differentiable by the threshold. Its gradient is estimated from the numbers within
    half a bandwidth of it (equations 11 and 12 of arXiv:2407.14435, with a rectangular kernel).
    The count has no gradient for the numbers.
    """

    @staticmethod
    def forward(
        context: Any, pre_BM: Tensor, threshold_M: Tensor, bandwidth: float
    ) -> tuple[Tensor, Tensor]:
        context.save_for_backward(pre_BM, threshold_M)
        context.bandwidth = bandwidth
        is_active = pre_BM > threshold_M
        return pre_BM * is_active, is_active.sum().float()

    @staticmethod
    def backward(
        context: Any, of_features_BM: Tensor, of_count: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        pre_BM, threshold_M = context.saved_tensors
        is_near = (pre_BM - threshold_M).abs() < context.bandwidth / 2
        slopes_M = threshold_M * (of_features_BM * is_near).float().sum(0)
        slopes_M = slopes_M + of_count * is_near.sum(0)
        return of_features_BM * (pre_BM > threshold_M), -slopes_M / context.bandwidth, None


def rebuilt(tensors: Tensors, z_BM: Tensor) -> Tensor:
    """Return the reconstruction (B, D) of features."""
    return z_BM @ tensors["W_dec"] + tensors["b_dec"]


def spread(values_BK: Tensor, indices_BK: Tensor, num_features: int) -> Tensor:
    """Return a matrix (B, M) with the values at their features, and 0 elsewhere."""
    empty = values_BK.new_zeros(len(values_BK), num_features)
    return empty.scatter(1, indices_BK, values_BK)


def auxiliary_error(
    tensors: Tensors, pre_BM: Tensor, error_BD: Tensor, is_dead_M: Tensor, num_dead: int
) -> Tensor:
    """Return the squared error of `error_BD` reconstructed from dead features, scaled."""
    most = max(1, error_BD.shape[1] // 2)
    k = min(most, num_dead)
    top = pre_BM.masked_fill(~is_dead_M, -torch.inf).topk(k, sorted=False)
    rebuilt = spread(top.values, top.indices, pre_BM.shape[1]) @ tensors["W_dec"]
    return (rebuilt.float() - error_BD).square().sum() * min(1.0, num_dead / most)
