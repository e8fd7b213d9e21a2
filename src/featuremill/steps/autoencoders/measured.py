"""What an autoencoder does with vectors: its figures on held-out ones, and where its features are
strongest."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from featuremill.kit.errors import UserError
from featuremill.steps.autoencoders import network
from featuremill.steps.autoencoders.encode import Encoder
from featuremill.steps.autoencoders.vectors import is_held_out

MOST_RECORDS = 5
"""Records that are listed for each feature."""


class Held(NamedTuple):
    """Measured on held-out records."""

    fvu: float
    """Fraction of variance unexplained: squared error over variance."""
    l0: float
    """Active features of a vector."""
    dead: float
    """Share of the features that are active in none of these vectors."""
    records: int
    vectors: int


class Top(NamedTuple):
    """The records in which each feature is strongest; T of them, the strongest first."""

    values_MT: npt.NDArray[np.float32]
    ids_MT: npt.NDArray[np.object_]
    frequency_M: npt.NDArray[np.float64]
    """Share of all vectors in which it is active."""

    def records_of(self, feature: int) -> list[tuple[str, float]]:
        """Return the ids of the records in which a feature is active, with its values."""
        pairs = zip(self.ids_MT[feature], self.values_MT[feature].tolist(), strict=True)
        return [(id, value) for id, value in pairs if value > 0]


class _Sums:
    """Sums over held-out vectors."""

    def __init__(self, width: int, num_features: int) -> None:
        self.num_records = self.num_vectors = self.num_active = 0
        self.sums_D, self.squares, self.error = np.zeros(width), 0.0, 0.0
        self.is_met_M = torch.zeros(num_features, dtype=torch.bool)

    def held(self) -> Held:
        num = max(1, self.num_vectors)
        variance = self.squares - float(self.sums_D @ self.sums_D) / num
        dead = 1 - float(self.is_met_M.double().mean())
        fvu = self.error / variance if variance > 0 else float("nan")
        return Held(fvu, self.num_active / num, dead, self.num_records, self.num_vectors)


@torch.no_grad()
def look(encoder: Encoder) -> tuple[Held, Top]:
    """Encode all records; return the figures of the held-out ones, and the strongest records of
    each feature."""
    options, vectors = encoder.card.options, encoder.vectors
    held_out = is_held_out(vectors, options.held_out, options.seed)
    sums = _Sums(vectors.column.width, options.features)
    shift = encoder.tensors["b_dec"].numpy()  # near the mean, so that squares keep their digits
    values_MT = np.zeros((options.features, 0), np.float32)
    ids_MT = np.zeros((options.features, 0), object)
    counts_M, num_vectors = np.zeros(options.features), 0
    for block in encoder.blocks():
        is_active = block.values_VK > 0
        counts_M += np.bincount(block.indices_VK[is_active].numpy(), minlength=options.features)
        num_vectors += len(block.vectors_VD)
        values_MT, ids_MT = _strongest(
            values_MT, ids_MT, block.highest(options.features), block.ids
        )
        is_held_R = held_out[block.rows]
        held_V = torch.from_numpy(np.repeat(is_held_R, block.counts))
        if not held_V.any():
            continue
        x_VD = torch.from_numpy(block.vectors_VD)[held_V]
        values_VK, indices_VK = block.values_VK[held_V], block.indices_VK[held_V]
        error = x_VD - network.decode(encoder.tensors, values_VK, indices_VK)
        shifted = x_VD.double() - torch.from_numpy(shift)
        sums.num_records += int(is_held_R.sum())
        sums.num_vectors += len(x_VD)
        sums.num_active += int(is_active[held_V].sum())
        sums.sums_D += shifted.sum(0).numpy()
        sums.squares += float(shifted.square().sum())
        sums.error += float(error.double().square().sum())
        sums.is_met_M[indices_VK[values_VK > 0]] = True
    if not sums.num_vectors:
        raise UserError(
            f"{vectors.root}: none of its records was held out of the training (a share of "
            f"{options.held_out}), so nothing can judge it; train with a larger --held-out."
        )
    return sums.held(), Top(values_MT, ids_MT, counts_M / max(1, num_vectors))


def _strongest(
    values_MT: npt.NDArray[np.float32],
    ids_MT: npt.NDArray[np.object_],
    highest_RM: npt.NDArray[np.float32],
    ids: list[str],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.object_]]:
    """Return the strongest records of each feature among the earlier ones and these; on a tie, the
    earlier one."""
    keep = np.argsort(-highest_RM, axis=0, kind="stable")[:MOST_RECORDS].T
    values = np.concatenate([values_MT, np.take_along_axis(highest_RM.T, keep, 1)], 1)
    names = np.concatenate([ids_MT, np.array(ids, object)[keep]], 1)
    best = np.argsort(-values, axis=1, kind="stable")[:, :MOST_RECORDS]
    return np.take_along_axis(values, best, 1), np.take_along_axis(names, best, 1)
