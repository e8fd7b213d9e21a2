"""Any number of distinct proteins, made of real ones: of their lengths and of windows of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from dnaio import FastaReader
from xopen import xopen

ROOT = Path(__file__).parent.parent
SOURCES = (ROOT / "bench" / "ecoli.fasta.gz", ROOT / "config" / "demo.fasta")
RECORDS_A_CHUNK = 20_000
LINE_RESIDUES = 60
MUTATED = 0.05
"""Share of residues that are drawn anew."""
SPELLED = 7
"""Residues behind the first that spell a record's number, so that no two records are equal."""
AMINO_ACIDS = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", np.uint8)
HEADER = ">sp|X{0:08d}|X{0:08d}_SCALE Synthetic protein {0:08d} OS=Escherichia coli PE=1 SV=1\n"

Bytes = npt.NDArray[np.uint8]


def write_proteins(path: Path, num_records: int, seed: int = 1) -> int:
    """Write `num_records` proteins as FASTA; return the number of their residues.

    The same number and seed always give the same bytes, in memory that does not depend on them.
    """
    pool, lengths = _real()
    random = np.random.default_rng(seed)
    num_residues = 0
    with path.open("wb") as handle:
        for first in range(0, num_records, RECORDS_A_CHUNK):
            numbers = np.arange(first, min(num_records, first + RECORDS_A_CHUNK))
            chosen = random.choice(lengths, len(numbers))
            num_residues += int(chosen.sum())
            residues = _residues(random, pool, chosen, numbers)
            handle.write(_as_fasta(numbers, chosen, residues).tobytes())
    return num_residues


def _real() -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Return the residues of all real proteins in a row, and the length of each."""
    sequences = [sequence for path in SOURCES for sequence in _sequences(path)]
    pool = np.frombuffer("".join(sequences).encode(), np.uint8)
    return pool, np.array([max(len(sequence), 1 + SPELLED) for sequence in sequences])


def _sequences(path: Path) -> Iterator[str]:
    with xopen(path, "rb", threads=0) as handle, FastaReader(handle) as reader:
        for record in reader:
            yield record.sequence


def _residues(
    random: np.random.Generator,
    pool: Bytes,
    lengths: npt.NDArray[np.int64],
    numbers: npt.NDArray[np.int64],
) -> Bytes:
    """Return windows of `pool`, mutated, one behind the other."""
    ends = np.cumsum(lengths)
    starts = ends - lengths
    windows = random.integers(0, len(pool) - lengths)
    residues: Bytes = pool[np.repeat(windows - starts, lengths) + np.arange(ends[-1])]
    num_mutated = int(MUTATED * len(residues))
    places = random.integers(0, len(residues), num_mutated)
    residues[places] = AMINO_ACIDS[random.integers(0, len(AMINO_ACIDS), num_mutated)]
    residues[starts] = ord("M")
    for digit in range(SPELLED):
        letters = numbers // len(AMINO_ACIDS) ** digit % len(AMINO_ACIDS)
        residues[starts + 1 + digit] = AMINO_ACIDS[letters]
    return residues


def _as_fasta(
    numbers: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], residues: Bytes
) -> Bytes:
    """Return the records as FASTA with lines of 60 residues."""
    headers = "".join(map(HEADER.format, numbers.tolist())).encode()
    header_length = len(headers) // len(numbers)
    num_breaks = -(-lengths // LINE_RESIDUES)
    sizes = header_length + lengths + num_breaks
    starts = np.cumsum(sizes) - sizes
    text = np.full(int(sizes.sum()), ord("\n"), np.uint8)
    inside = np.arange(len(residues)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    text[np.repeat(starts + header_length, lengths) + inside + inside // LINE_RESIDUES] = residues
    text[starts[:, None] + np.arange(header_length)] = np.frombuffer(headers, np.uint8).reshape(
        len(numbers), header_length
    )
    return text
