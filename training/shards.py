"""Training data as few bytes: residues in five bits each, so that they travel easily.

A folder holds, for each split NAME: `NAME-00.npy`, ... (uint8; a residue's code is its ESM-2 token
less 4, in five bits, one protein after the other), `NAME-lengths.npy` (uint16, residues) and
`NAME-clusters.npy` (uint8, how many of the proteins, which are sorted by cluster, are in each).
The bytes follow from the proteins alone.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

TOKENS = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <n> <mask>"
CLS, PAD, EOS, FIRST_RESIDUE, MASK, NUM_TOKENS = 0, 1, 2, 4, 32, 33
RESIDUES = "".join(TOKENS.split()[FIRST_RESIDUE:29])
AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"  # what is masked and predicted; never B, J, O, U, X or Z
AMINO_ACID_TOKENS = np.array([TOKENS.split().index(letter) for letter in AMINO_ACIDS])
BITS = 5
SHARD_RESIDUES = 10_000_000  # 6.25 MB
LONGEST = 4096  # residues kept of a protein
MOST_OF_A_CLUSTER = 255
_CODE = np.full(256, RESIDUES.index("X"), np.uint8)
_CODE[np.frombuffer(RESIDUES.encode(), np.uint8)] = np.arange(len(RESIDUES))


class Proteins(NamedTuple):
    """The proteins of a split: N of them in C clusters, S tokens with <cls> and <eos>."""

    tokens_S: np.ndarray
    lengths_N: np.ndarray
    """In tokens."""
    cluster_sizes_C: np.ndarray


def codes(sequence: str) -> np.ndarray:
    """Return the codes of a protein's residues; J, which ESM-2 has no token for, becomes X."""
    return _CODE[np.frombuffer(sequence.encode(), np.uint8)]


def hashed(sequence: str) -> bytes:
    """Return a sequence's hash: an order that depends on no other sequence."""
    return hashlib.sha256(sequence.encode()).digest()


def choose(clusters: dict[str, list[str]], num_bytes: int) -> list[list[str]]:
    """Return the members of each cluster that fit into `num_bytes`: all the first, then second ...

    `clusters` is {representative: members}, sequences; a representative that is a member goes
    first, and everything else in the order of hashes. So little room costs relatives, not families.
    """
    order = sorted(clusters, key=hashed)
    queues = [
        sorted(clusters[first], key=lambda member, first=first: (member != first, hashed(member)))
        for first in order
    ]
    chosen: list[list[str]] = [[] for _ in queues]
    room = num_bytes * 8 // BITS
    for turn in range(MOST_OF_A_CLUSTER):
        for queue, taken in zip(queues, chosen, strict=True):
            if turn < len(queue):
                room -= min(len(queue[turn]), LONGEST)
                if room < 0:
                    return [members for members in chosen if members]
                taken.append(queue[turn])
    return chosen


def write(folder: Path, name: str, clusters: list[list[str]]) -> None:
    """Write a split's files; clusters are lists of sequences."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob(f"{name}-*.npy"):
        stale.unlink()
    sequences = [member[:LONGEST] for members in clusters for member in members]
    np.save(folder / f"{name}-lengths.npy", np.array([len(s) for s in sequences], np.uint16))
    np.save(folder / f"{name}-clusters.npy", np.array([len(m) for m in clusters], np.uint8))
    whole = codes("".join(sequences))
    for number, start in enumerate(range(0, len(whole), SHARD_RESIDUES)):
        piece = whole[start : start + SHARD_RESIDUES]
        bits = np.unpackbits(piece[:, None], axis=1)[:, -BITS:]
        np.save(folder / f"{name}-{number:02}.npy", np.packbits(bits))


def read(folder: Path, name: str) -> Proteins:
    """Return a split, each protein with <cls> before it and <eos> after it."""
    lengths = np.load(folder / f"{name}-lengths.npy").astype(np.int64)
    clusters = np.load(folder / f"{name}-clusters.npy").astype(np.int64)
    pieces, left = [], int(lengths.sum())
    for path in sorted(folder.glob(f"{name}-[0-9][0-9].npy")):
        num_residues = min(left, SHARD_RESIDUES)
        bits = np.unpackbits(np.load(path), count=num_residues * BITS).reshape(-1, BITS)
        pieces.append(np.packbits(bits, axis=1)[:, 0] >> (8 - BITS))
        left -= num_residues
    if left or clusters.sum() != len(lengths):
        raise ValueError(f"{folder}: the files of {name} are not whole")
    ends = np.cumsum(lengths + 2)
    tokens = np.empty(ends[-1], np.uint8)
    is_residue = np.ones(len(tokens), bool)
    is_residue[ends - 1] = is_residue[ends - lengths - 2] = False
    tokens[ends - lengths - 2], tokens[ends - 1] = CLS, EOS
    tokens[is_residue] = np.concatenate(pieces) + FIRST_RESIDUE
    return Proteins(tokens, lengths + 2, clusters)


def digest(folder: Path) -> str:
    """Return what tells one folder of shards from another: the SHA-256 of its files."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.npy")):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()
