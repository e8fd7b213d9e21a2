"""The autoencoder: TopK after Gao et al. 2024 (arXiv:2406.04093), computed by torch.

A vector x has the features z = ReLU(TopK((x - b_dec) W_enc + b_enc)) and is rebuilt as z W_dec +
b_dec. Shapes: B vectors, D their width, M features, K active ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
AUXILIARY = 1 / 32
"""Weight of the auxiliary loss of dead features (Gao et al., A.2)."""


def sizes(width: int, num_features: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters."""
    return {
        "W_enc": (width, num_features),
        "b_enc": (num_features,),
        "W_dec": (num_features, width),
        "b_dec": (width,),
    }


def initialise(tensors: Tensors, seed: int) -> None:
    """Give each decoder row a random direction, and the encoder the same ones."""
    generator = torch.Generator().manual_seed(seed)
    weights = tensors["W_dec"]
    drawn = torch.empty(weights.shape)
    drawn.normal_(generator=generator)
    drawn /= torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
    weights.copy_(drawn)
    tensors["W_enc"].copy_(drawn.T)


def pre_activations(tensors: Tensors, x_BD: Tensor) -> Tensor:
    """Return the input of TopK, (B, M)."""
    return (x_BD - tensors["b_dec"]) @ tensors["W_enc"] + tensors["b_enc"]


def encode(tensors: Tensors, x_BD: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the values and the numbers (B, K) of the active features; values may be 0."""
    top = torch.topk(pre_activations(tensors, x_BD), k=k, dim=-1, sorted=False)
    return top.values.relu(), top.indices


def decode(tensors: Tensors, values_BK: Tensor, indices_BK: Tensor) -> Tensor:
    """Return the vectors (B, D) that these features rebuild."""
    return (
        spread(values_BK, indices_BK, len(tensors["W_dec"])) @ tensors["W_dec"] + tensors["b_dec"]
    )


def spread(values_BK: Tensor, indices_BK: Tensor, num_features: int) -> Tensor:
    """Return the values at their features, (B, M), and 0 elsewhere."""
    empty = values_BK.new_zeros(len(values_BK), num_features)
    return empty.scatter(1, indices_BK, values_BK)


def auxiliary_error(
    tensors: Tensors, pre_BM: Tensor, error_BD: Tensor, is_dead_M: Tensor, num_dead: int
) -> Tensor:
    """Return the sum of squares of the error that remains after dead features rebuild the error of
    the others; scaled down if few are dead."""
    most = max(1, error_BD.shape[1] // 2)
    k = min(most, num_dead)
    top = pre_BM.masked_fill(~is_dead_M, -torch.inf).topk(k, sorted=False)
    rebuilt = spread(top.values, top.indices, pre_BM.shape[1]) @ tensors["W_dec"]
    return (rebuilt.float() - error_BD).square().sum() * min(1.0, num_dead / most)
