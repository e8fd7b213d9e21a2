"""Batches for masked language modelling, drawn from a FASTA file that `prepare.py` wrote.

Shapes: B crops of T tokens, M masked positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from esm.data import Alphabet

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"  # what is masked and predicted; never B, J, O, U, X or Z
MASKED, TO_MASK_TOKEN, TO_RANDOM = 0.15, 0.8, 0.1  # of residues; then shares of the masked ones
POOL_CROPS = 2048  # crops that are sorted by length together

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # tokens_BT, positions_M, targets_M


class Proteins:
    """The sequences of a FASTA file that `prepare.py` wrote, as fair-esm's token numbers."""

    def __init__(self, fasta: Path, alphabet: Alphabet) -> None:
        lines = fasta.read_bytes().splitlines()
        sequences = [b"<" + sequence + b">" for sequence in lines[1::2]]
        table = np.full(256, alphabet.unk_idx, np.uint8)
        for residue in "ACDEFGHIKLMNOPQRSTUVWXYZB":
            table[ord(residue)] = alphabet.get_idx(residue)
        table[ord("<")], table[ord(">")] = alphabet.cls_idx, alphabet.eos_idx
        self.tokens = table[np.frombuffer(b"".join(sequences), np.uint8)]
        self.lengths = np.array([len(sequence) for sequence in sequences])  # cls and eos included
        self.starts = np.cumsum(self.lengths) - self.lengths
        clusters = np.array([header.split()[1] for header in lines[::2]])
        # Members of a cluster are neighbours in the file.
        _, self.cluster_starts, self.cluster_sizes = np.unique(
            clusters, return_index=True, return_counts=True
        )
        self.amino_acids = np.array([alphabet.get_idx(a) for a in AMINO_ACIDS])
        self.mask_idx = alphabet.mask_idx


def mask(
    proteins: Proteins, tokens_BT: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the corrupted tokens and the flat positions_M that are to be predicted."""
    is_residue_BT = np.isin(tokens_BT, proteins.amino_acids)
    is_masked_BT = is_residue_BT & (random.random(tokens_BT.shape) < MASKED)
    fate_BT = random.random(tokens_BT.shape)
    substitutes_BT = random.choice(proteins.amino_acids, tokens_BT.shape)
    corrupted_BT = np.where(fate_BT < TO_MASK_TOKEN, proteins.mask_idx, substitutes_BT)
    is_changed_BT = is_masked_BT & (fate_BT < TO_MASK_TOKEN + TO_RANDOM)
    return np.where(is_changed_BT, corrupted_BT, tokens_BT), np.flatnonzero(is_masked_BT)


def batches(proteins: Proteins, crops: list[int], batch_tokens: int, seed: int) -> Iterator[Batch]:
    """Yield (tokens_BT, positions_M, targets_M) for ever, a function of `seed` alone.

    A cluster is drawn evenly, then a member of it. Crops of like length make a batch and are cut
    to its shortest, so that no batch has padding. Pools take the lengths in `crops` in turn.
    """
    random = np.random.default_rng(seed)
    pool = 0
    while True:
        crop = crops[pool % len(crops)]
        pool += 1
        drawn = random.integers(len(proteins.cluster_sizes), size=POOL_CROPS * crops[0] // crop)
        member = (random.random(len(drawn)) * proteins.cluster_sizes[drawn]).astype(int)
        drawn = proteins.cluster_starts[drawn] + member
        drawn = drawn[np.argsort(-proteins.lengths[drawn].clip(max=crop), kind="stable")]
        groups = []
        while len(drawn):
            size = max(1, batch_tokens // min(crop, proteins.lengths[drawn[0]]))
            groups.append(drawn[:size])
            drawn = drawn[size:]
        for index in random.permutation(len(groups)):
            group, length = groups[index], proteins.lengths[groups[index]].clip(max=crop).min()
            # Windows may overhang by half their length before they are pushed back inside, else
            # the two ends of a protein, and with them cls and eos, would hardly ever be seen.
            overhang, room = length // 2, proteins.lengths[group] - length
            offset = random.integers(-overhang, room + overhang + 1).clip(0, room)
            first = proteins.starts[group] + offset
            tokens_BT = proteins.tokens[first[:, None] + np.arange(length)].astype(np.int64)
            corrupted_BT, positions_M = mask(proteins, tokens_BT, random)
            targets_M = tokens_BT.reshape(-1)[positions_M]
            if len(positions_M):
                yield (
                    torch.from_numpy(corrupted_BT),
                    torch.from_numpy(positions_M),
                    torch.from_numpy(targets_M),
                )
