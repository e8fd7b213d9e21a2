"""Measure an autoencoder on held-out vectors, and find the strongest records of each feature."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from featuremill.kit.errors import UserError
from featuremill.steps.autoencoders.encode import Encoded, Encoder
from featuremill.steps.autoencoders.vectors import is_held_out

FAR = 4
"""The distance of far vectors, in median distances. dictionary_learning excludes vectors beyond 10
median norms; at 4, one far vector in 16 has most of the variance."""
MOST_OF_FEW = 0.5
MOST_RECORDS = 5
"""The number of records that are listed per feature."""
Strongest: TypeAlias = "tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]"
"""The first three fields of `Top`."""


class Held(NamedTuple):
    """The metrics on held-out records."""

    fvu: float
    """Fraction of variance unexplained: squared error over variance."""
    l0: float
    """The mean number of active features per vector."""
    dead: float
    """The share of features that are active in none of these vectors."""
    records: int
    vectors: int
    num_far: int
    """The number of far vectors: more than FAR median distances from the decoder's bias."""
    share_far: float
    """The share of far vectors in the variance."""
    fvu_near: float
    """The FVU of the other vectors."""

    @property
    def is_of_few(self) -> bool:
        """Whether few vectors have most of the variance, and so determine the FVU."""
        return self.share_far > MOST_OF_FEW


class Top(NamedTuple):
    """The T records with the highest value of each feature, highest first."""

    values_MT: npt.NDArray[np.float32]
    ids_MT: npt.NDArray[np.object_]
    places_MT: npt.NDArray[np.int32]
    """The index of the vector in the record."""
    frequency_M: npt.NDArray[np.float64]
    """The share of all vectors in which the feature is active."""

    def records_of(self, feature: int) -> list[tuple[str, float, int]]:
        """Return the ids of a feature's strongest records, with values and indices of vectors."""
        of_feature = (self.values_MT[feature].tolist(), self.places_MT[feature].tolist())
        rows = zip(self.ids_MT[feature], *of_feature, strict=True)
        return [(id, value, number) for id, value, number in rows if value > 0]


class _Sums:
    """Sums over held-out vectors."""

    def __init__(self, width: int, num_features: int) -> None:
        self.num_records = self.num_active = 0
        self.every, self.near = _Spread(width), _Spread(width)
        self._far = 0.0
        self.is_met_M = torch.zeros(num_features, dtype=torch.bool)

    def add(self, shifted_VD: torch.Tensor, error_VD: torch.Tensor) -> None:
        """Add vectors minus the decoder's bias, and their errors."""
        squares_V = shifted_VD.square().sum(1)
        self._far = self._far or FAR**2 * float(squares_V.median())  # of the first block
        is_near_V = squares_V <= self._far
        self.every.add(shifted_VD, error_VD)
        self.near.add(shifted_VD[is_near_V], error_VD[is_near_V])

    def held(self) -> Held:
        num, every, near = self.every.num, self.every, self.near
        dead = 1 - float(self.is_met_M.double().mean())
        share_far = 1 - near.variance / every.variance if every.variance > 0 else 0.0
        num_far = num - near.num
        active = self.num_active / max(1, num)
        return Held(every.fvu, active, dead, self.num_records, num, num_far, share_far, near.fvu)


class _Spread:
    """Sums of vectors and squares."""

    def __init__(self, width: int) -> None:
        self.num, self.sums_D, self.squares, self.error = 0, np.zeros(width), 0.0, 0.0

    def add(self, shifted_VD: torch.Tensor, error_VD: torch.Tensor) -> None:
        self.num += len(shifted_VD)
        self.sums_D += shifted_VD.sum(0).numpy()
        self.squares += float(shifted_VD.square().sum())
        self.error += float(error_VD.square().sum())

    @property
    def variance(self) -> float:
        return self.squares - float(self.sums_D @ self.sums_D) / max(1, self.num)

    @property
    def fvu(self) -> float:
        return self.error / self.variance if self.variance > 0 else float("nan")


@torch.no_grad()
def measure(encoder: Encoder) -> tuple[Held, Top]:
    """Return the metrics on held-out records, and the strongest records of each feature."""
    options, vectors = encoder.card.options, encoder.vectors
    held_out = is_held_out(vectors, options.held_out, options.seed)
    sums = _Sums(vectors.column.width, options.features)
    shift = encoder.tensors["b_dec"].numpy()  # near the mean, so that squares keep their digits
    strongest: Strongest = (
        np.zeros((options.features, 0), np.float32),
        np.zeros((options.features, 0), object),
        np.zeros((options.features, 0), np.int32),
    )
    counts_M, num_vectors = np.zeros(options.features), 0
    for block in encoder.blocks():
        counts_M += np.bincount(block.feature_N.numpy(), minlength=options.features)
        num_vectors += len(block.vectors_VD)
        strongest = _strongest(strongest, block, options.features)
        is_held_R = held_out[block.rows]
        held_V = torch.from_numpy(np.repeat(is_held_R, block.counts))
        if not held_V.any():
            continue
        x_VD = torch.from_numpy(block.vectors_VD)[held_V]
        error = x_VD - block.rebuilt(encoder.tensors)[held_V]
        held_N = held_V[block.vector_N]
        sums.num_records += int(is_held_R.sum())
        sums.num_active += int(held_N.sum())
        sums.add(x_VD.double() - torch.from_numpy(shift), error.double())
        sums.is_met_M[block.feature_N[held_N]] = True
    if not sums.every.num:
        raise UserError(
            f"{vectors.root}: none of its records was held out of the training (a share of "
            f"{options.held_out}), so nothing can judge it; train with a larger --held-out."
        )
    return sums.held(), Top(*strongest, counts_M / max(1, num_vectors))


def _strongest(earlier: Strongest, block: Encoded, num_features: int) -> Strongest:
    """Return the strongest records of each feature among earlier ones and a block. Ties are sorted
    by id, so that the result does not depend on the order of rows."""
    highest_RM = block.highest(num_features)
    ids_R = np.array(block.ids, object)
    by_id_R = np.argsort(ids_R, kind="stable")
    keep = by_id_R[np.argsort(-highest_RM[by_id_R], axis=0, kind="stable")[:MOST_RECORDS].T]
    of_block = (
        np.take_along_axis(highest_RM.T, keep, 1),
        ids_R[keep],
        np.take_along_axis(block.where(highest_RM).T, keep, 1),
    )
    values, ids, places = (np.concatenate(pair, 1) for pair in zip(earlier, of_block, strict=True))
    place_of_id = np.unique(ids, return_inverse=True)[1].reshape(ids.shape)
    best = np.lexsort((place_of_id, -values), axis=1)[:, :MOST_RECORDS]
    values, ids, places = (np.take_along_axis(each, best, 1) for each in (values, ids, places))
    return values, ids, places
