"""Held-out pseudo-perplexity of `mill_t6_1M`, of an untrained network and of two simple baselines.

One protein per held-out cluster (its representative), 15 % of the residues masked with a fixed
seed, through fair-esm's own forward pass. Pseudo-perplexity is exp of the mean cross-entropy of
the masked residues; its 95 % interval is a bootstrap over proteins.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from batches import AMINO_ACIDS, MASKED
from esm.model.esm2 import ESM2
from safetensors import safe_open
from torch.nn import functional
from train import SHAPE, build_network

BOOTSTRAPS = 2000
PSEUDO_COUNTS = 160  # of the training set's frequencies, in the composition baseline


def load_network(weights: Path) -> ESM2:
    """Return fair-esm's network with the weights of a `.safetensors` file, as float32."""
    network = ESM2(**SHAPE, alphabet="ESM-1b", token_dropout=True)
    with safe_open(weights, "pt") as file:
        tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
    missing, unexpected = network.load_state_dict(tensors, strict=False)
    left_out = {name for name in missing if not name.startswith("contact_head.")}
    left_out = {name for name in left_out if not name.endswith("rot_emb.inv_freq")}
    assert left_out == {"lm_head.weight"}  # tied: the same tensor as embed_tokens.weight
    assert not unexpected
    return network.eval()


def heldout_sequences(fasta: Path, longest: int) -> list[str]:
    """Return the representatives of the held-out clusters, without those over `longest`."""
    lines = fasta.read_text().splitlines()
    sequences = []
    for header, sequence in zip(lines[::2], lines[1::2], strict=True):
        member, representative = header[1:].split()
        if member == representative and len(sequence) <= longest:
            sequences.append(sequence)
    return sequences


def log_frequencies(fasta: Path) -> dict[str, float]:
    """Return {amino acid: log frequency} of the training set, each protein counted once."""
    text = b"".join(fasta.read_bytes().splitlines()[1::2])
    counts = np.array([text.count(amino_acid.encode()) for amino_acid in AMINO_ACIDS])
    return dict(zip(AMINO_ACIDS, np.log(counts / counts.sum()), strict=True))


def composition_losses(
    frequency: dict[str, float], sequence: str, masked: np.ndarray
) -> np.ndarray:
    """Return the cross-entropy of each masked residue under the protein's own composition.

    It is counted over the residues that are not masked, with pseudo-counts.
    """
    visible = np.delete(np.array(list(sequence)), masked)
    counts = {a: (visible == a).sum() + PSEUDO_COUNTS * np.exp(frequency[a]) for a in AMINO_ACIDS}
    total = sum(counts.values())
    return np.array([-np.log(counts[sequence[position]] / total) for position in masked])


def masked_positions(sequences: list[str], seed: int) -> list[np.ndarray]:
    """Draw, for each sequence, which residues to mask: 15 % of the twenty amino acids."""
    random = np.random.default_rng(seed)
    return [
        np.flatnonzero(
            (random.random(len(sequence)) < MASKED)
            & np.array([residue in AMINO_ACIDS for residue in sequence])
        )
        for sequence in sequences
    ]


@torch.no_grad()
def cross_entropies(network: ESM2, sequence: str, masked: np.ndarray) -> np.ndarray:
    """Return the cross-entropy, in nats, of each masked residue; every one is a <mask> token."""
    alphabet = network.alphabet
    residues = torch.tensor([alphabet.get_idx(residue) for residue in sequence])
    ends = torch.tensor([alphabet.cls_idx]), torch.tensor([alphabet.eos_idx])
    tokens = torch.cat((ends[0], residues, ends[1]))
    positions = torch.from_numpy(masked) + 1
    tokens[positions] = alphabet.mask_idx
    logits = network(tokens[None])["logits"][0, positions]
    return functional.cross_entropy(logits, residues[masked], reduction="none").numpy()


def perplexity(losses: list[np.ndarray], seed: int) -> dict[str, float | list[float]]:
    """Return exp of the mean over all residues, and its 95 % interval over proteins."""
    sums = np.array([loss.sum() for loss in losses])
    counts = np.array([len(loss) for loss in losses])
    random = np.random.default_rng(seed)
    drawn = random.integers(len(sums), size=(BOOTSTRAPS, len(sums)))
    resampled = np.exp(sums[drawn].sum(1) / counts[drawn].sum(1))
    low, high = np.percentile(resampled, (2.5, 97.5))
    middle = float(np.exp(sums.sum() / counts.sum()))
    return {"perplexity": round(middle, 3), "interval": [round(low, 3), round(high, 3)]}


def main() -> None:
    """Print one JSON object with the four perplexities."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path, help="folder with prepare.py's files")
    parser.add_argument("weights", type=Path, help="the .safetensors file")
    parser.add_argument("--longest", type=int, default=1022, help="residues; longer ones left out")
    parser.add_argument("--proteins", type=int, help="only the first so many (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    sequences = heldout_sequences(arguments.work / "heldout.fasta", arguments.longest)
    sequences = sequences[: arguments.proteins]
    masked = masked_positions(sequences, arguments.seed)
    pairs = [(sequence, m) for sequence, m in zip(sequences, masked, strict=True) if len(m)]
    frequency = log_frequencies(arguments.work / "train.fasta")
    losses = {"unigram": [np.array([-frequency[s[i]] for i in m]) for s, m in pairs]}
    losses["composition"] = [composition_losses(frequency, s, m) for s, m in pairs]
    untrained = build_network(arguments.seed).eval()
    for name, network in (("untrained", untrained), ("trained", load_network(arguments.weights))):
        losses[name] = [cross_entropies(network, sequence, m) for sequence, m in pairs]
    result = {
        "sha256": hashlib.sha256(arguments.weights.read_bytes()).hexdigest(),
        "proteins": len(pairs),
        "masked_residues": sum(len(m) for _, m in pairs),
        **{name: perplexity(values, arguments.seed) for name, values in losses.items()},
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
