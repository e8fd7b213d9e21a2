"""Held-out perplexity of masked residues: exp of their mean cross-entropy.

Each residue is masked with a chance of 15 % and a fixed seed, always by the mask token. Intervals
are a bootstrap over proteins, which here are clusters: one protein stands for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import shards
import torch
from batches import MASKED, with_targets
from network import Network, Shape
from probes import Estimate, bootstrap
from torch.nn import functional

PSEUDO_COUNTS = 160  # of the training set's frequencies, in the composition baseline
ROW_TOKENS = 8192
LETTERS = np.frombuffer(shards.AMINO_ACIDS.encode(), np.uint8)


def load(weights: Path, dtype: torch.dtype) -> Network:
    """Return the network in a file that train.py wrote."""
    from safetensors import safe_open

    with safe_open(weights, "pt") as file:
        known = file.metadata()
        tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
    sizes = (known[name] for name in ("num_layers", "embed_dim", "attention_heads"))
    network = Network(Shape(*map(int, sizes)), dtype, 0)
    network.load_state_dict(tensors)
    return network.eval()


def mask(sequence: str, random: np.random.Generator) -> np.ndarray:
    """Return which residues of a protein are masked: each amino acid with a chance of 15 %."""
    letters = np.frombuffer(sequence.encode(), np.uint8)
    return np.flatnonzero((random.random(len(letters)) < MASKED) & np.isin(letters, LETTERS))


def rows_of(
    sequences: list[str], masks: list[np.ndarray]
) -> Iterator[tuple[list[int], np.ndarray, list[np.ndarray]]]:
    """Yield (numbers, tokens_BT, positions) of proteins of like length, a row each, padded."""
    order = sorted(range(len(sequences)), key=lambda number: len(sequences[number]))
    while order:
        length = len(sequences[order[0]]) + 2
        size = 1
        while size < len(order) and (size + 1) * (len(sequences[order[size]]) + 2) <= ROW_TOKENS:
            length, size = len(sequences[order[size]]) + 2, size + 1
        numbers, order = order[:size], order[size:]
        tokens_BT = np.full((size, length), shards.PAD, np.uint8)
        for row, number in zip(tokens_BT, numbers, strict=True):
            codes = shards.codes(sequences[number]) + shards.FIRST_RESIDUE
            row[0], row[1 : len(codes) + 1], row[len(codes) + 1] = shards.CLS, codes, shards.EOS
        yield numbers, tokens_BT, [masks[number] + 1 for number in numbers]


@torch.no_grad()
def cross_entropies(
    network: Network, sequences: list[str], masks: list[np.ndarray]
) -> list[np.ndarray]:
    """Return the cross-entropy, in nats, of each masked residue of each protein."""
    found: list[np.ndarray] = [np.empty(0)] * len(sequences)
    for numbers, tokens_BT, positions in rows_of(sequences, masks):
        flat = np.concatenate([p + row * tokens_BT.shape[1] for row, p in enumerate(positions)])
        targets_M = tokens_BT.reshape(-1)[flat]
        crops_BT = (tokens_BT == shards.PAD).astype(np.int16)
        tokens_BT.reshape(-1)[flat] = shards.MASK
        batch = with_targets(tokens_BT, crops_BT, flat, targets_M)
        *inputs, targets = map(torch.from_numpy, batch)
        losses = functional.cross_entropy(network(*inputs), targets, reduction="none").numpy()
        sizes = np.cumsum([len(p) for p in positions])[:-1]
        for number, of_one in zip(numbers, np.split(losses, sizes), strict=True):
            found[number] = of_one
    return found


def frequencies(sequences: list[str]) -> np.ndarray:
    """Return the amino acids' shares of all residues, in the order of AMINO_ACIDS."""
    text = "".join(sequences)
    counts = np.array([text.count(letter) for letter in shards.AMINO_ACIDS])
    return counts / counts.sum()


def baselines(
    sequences: list[str], masks: list[np.ndarray], shares: np.ndarray
) -> dict[str, list[np.ndarray]]:
    """Return the cross-entropies under all residues' shares, and under each protein's own.

    The latter are counted over its residues that are not masked, with pseudo-counts.
    """
    unigram, own_composition = [], []
    for sequence, positions in zip(sequences, masks, strict=True):
        letters = np.frombuffer(sequence.encode(), np.uint8)
        index = np.argmax(letters[positions][:, None] == LETTERS, axis=1)
        visible = (np.delete(letters, positions)[:, None] == LETTERS).sum(0)
        own = visible + PSEUDO_COUNTS * shares
        unigram.append(-np.log(shares[index]))
        own_composition.append(-np.log((own / own.sum())[index]))
    return {"unigram": unigram, "own_composition": own_composition}


def perplexity(losses: list[np.ndarray]) -> Estimate:
    """Return exp of the mean over all residues, with its interval over proteins."""
    sums = np.array([of_one.sum() for of_one in losses])
    counts = np.array([len(of_one) for of_one in losses])
    return bootstrap(
        lambda drawn: float(np.exp(sums[drawn].sum() / counts[drawn].sum())), np.arange(len(sums))
    )
