"""Batches for masked language modelling: rows of T tokens, filled with crops of proteins.

Every batch is a function of (proteins, seed, cursor), so a run can be continued anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from shards import AMINO_ACID_TOKENS, MASK, PAD, Proteins

MASKED, TO_MASK_TOKEN, TO_RANDOM = 0.15, 0.8, 0.1  # of residues; then shares of the masked ones
TOKEN_DROPOUT_KEEP = 1 - MASKED * TO_MASK_TOKEN
SHORTEST_CROP = 32  # less room than this at a row's end is padded
IGNORED = -100  # the target of a position that only fills up M


class Batch(NamedTuple):
    """Rows of tokens after masking, and what was there."""

    tokens_BT: np.ndarray
    scale_BT: np.ndarray
    """Token dropout: 0.88 / (1 - the crop's share of mask tokens)."""
    crops_BT: np.ndarray
    positions_M: np.ndarray
    targets_M: np.ndarray


@dataclass
class Cursor:
    """How far a run has walked: `step` draws the random numbers, `item` the proteins."""

    step: int = 0
    item: int = 0


class Sampler:
    """Walks the clusters in a new order each epoch, and in each the members in turn."""

    def __init__(self, proteins: Proteins, seed: int) -> None:
        self.proteins, self.seed = proteins, seed
        self.starts_N = np.cumsum(proteins.lengths_N) - proteins.lengths_N
        sizes = proteins.cluster_sizes_C
        self.cluster_starts_C = np.cumsum(sizes) - sizes
        self.epoch, self.order_C = -1, np.empty(0, np.int64)

    def protein(self, item: int) -> int:
        """Return the number of the protein that is the walk's `item`-th."""
        epoch, place = divmod(item, len(self.cluster_starts_C))
        if epoch != self.epoch:
            random = np.random.default_rng([self.seed, epoch])
            self.epoch, self.order_C = epoch, random.permutation(len(self.cluster_starts_C))
        cluster = self.order_C[place]
        return int(self.cluster_starts_C[cluster] + epoch % self.proteins.cluster_sizes_C[cluster])

    def rows(
        self, cursor: Cursor, num_rows: int, length: int, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens_BT and crops_BT; move the cursor by the proteins that were used."""
        tokens_BT = np.full((num_rows, length), PAD, np.uint8)
        crops_BT = np.full((num_rows, length), length, np.int16)
        for row in range(num_rows):
            used = number = 0
            while length - used >= SHORTEST_CROP:
                protein = self.protein(cursor.item)
                cursor.item += 1
                size = self.proteins.lengths_N[protein]
                take = min(size, length - used)
                # Windows may overhang by half their length before they are pushed back inside, else
                # a protein's two ends, and with them cls and eos, would hardly ever be seen.
                overhang, room = take // 2, size - take
                offset = min(max(random.integers(-overhang, room + overhang + 1), 0), room)
                first = self.starts_N[protein] + offset
                tokens_BT[row, used : used + take] = self.proteins.tokens_S[first : first + take]
                crops_BT[row, used : used + take] = number
                used, number = used + take, number + 1
        return tokens_BT, crops_BT

    def batch(self, cursor: Cursor, num_rows: int, length: int) -> Batch:
        """Return the batch at the cursor, and move it to the next."""
        random = np.random.default_rng([self.seed, cursor.step, 1])
        cursor.step += 1
        return masked(*self.rows(cursor, num_rows, length, random), random)


def masked(
    tokens_BT: np.ndarray, crops_BT: np.ndarray, random: np.random.Generator, is_test: bool = False
) -> Batch:
    """Mask 15 % of a batch's residues; M is 15 % of its tokens, so that shapes stay the same.

    In training, 80 % of them get the mask token, 10 % a random residue; in a test, all the former.
    """
    flat = tokens_BT.reshape(-1)
    residues = np.flatnonzero(np.isin(flat, AMINO_ACID_TOKENS))
    chosen = np.sort(random.choice(residues, round(MASKED * len(residues)), replace=False))
    fate = np.zeros(len(chosen)) if is_test else random.random(len(chosen))
    corrupted = flat.copy()
    corrupted[chosen[fate < TO_MASK_TOKEN]] = MASK
    is_random = (fate >= TO_MASK_TOKEN) & (fate < TO_MASK_TOKEN + TO_RANDOM)
    corrupted[chosen[is_random]] = random.choice(AMINO_ACID_TOKENS, is_random.sum())
    batch = with_targets(corrupted.reshape(tokens_BT.shape), crops_BT, chosen, flat[chosen])
    filler = int(np.ceil(MASKED * flat.size)) - len(chosen)
    return batch._replace(
        positions_M=np.append(batch.positions_M, np.zeros(filler, np.int64)),
        targets_M=np.append(batch.targets_M, np.full(filler, IGNORED)),
    )


def with_targets(
    corrupted_BT: np.ndarray, crops_BT: np.ndarray, positions_M: np.ndarray, targets_M: np.ndarray
) -> Batch:
    """Return the batch of tokens that are masked already."""
    scale_BT = _scales(corrupted_BT, crops_BT)
    tokens_BT = corrupted_BT.astype(np.int64)
    return Batch(tokens_BT, scale_BT, crops_BT, positions_M, targets_M.astype(np.int64))


def _scales(tokens_BT: np.ndarray, crops_BT: np.ndarray) -> np.ndarray:
    num_rows, length = tokens_BT.shape
    crop_BT = crops_BT + (length + 1) * np.arange(num_rows)[:, None]
    is_mask = tokens_BT.reshape(-1) == MASK
    sizes = np.bincount(crop_BT.reshape(-1))
    masks = np.bincount(crop_BT.reshape(-1), is_mask)
    kept = 1 - masks / np.maximum(sizes, 1)
    return (TOKEN_DROPOUT_KEEP / kept)[crop_BT].astype(np.float32)
