"""What the peers with padded batches share: sorted batches in, one .npy out.

Shape legend: N proteins of a batch, T tokens with padding, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.engines import Features, Output
from bench.engines.ours import batch_budget
from bench.lengths import MAX_RESIDUES, NUM_SPECIAL, Protein, sorted_batches
from bench.peers import ALPHABET
from bench.sample import fair_esm_reads
from bench.subject import Subject

Forward = Callable[[Tensor, Tensor], Tensor]
"""(tokens_NT, mask_NT) → hidden_NTD."""


class Padded:
    """A model of transformers' kind, in padded batches; its subclass loads it."""

    _subject: Subject
    _model: Any

    def unload(self) -> None:
        self._model = None

    def writes(self, output: Output) -> str:
        return writes(output)

    def extract(self, fasta: Path, folder: Path, output: Output) -> None:
        place = self._subject.place
        extract(fasta, folder, output, batch_budget(place), place.device, self._forward)

    def read(self, folder: Path, output: Output, proteins: list[Protein]) -> Features:
        return read(folder, output, proteins)

    def _forward(self, tokens_NT: Tensor, mask_NT: Tensor) -> Tensor:
        hidden = self._model(input_ids=tokens_NT, attention_mask=mask_NT.long()).last_hidden_state
        assert isinstance(hidden, Tensor)
        return hidden


TOKEN_OF = np.full(256, ALPHABET.unk_idx)
"""By the letter's byte. fair-esm's own converter takes a fifteenth of a fast engine's time."""
for letter, number in ALPHABET.tok_to_idx.items():
    if len(letter) == 1:
        TOKEN_OF[ord(letter)] = number


def tokenized(sequences: list[str]) -> Tensor:
    """Return tokens_NT of sequences that are no longer than they may be."""
    tokens_NT = np.full(
        (len(sequences), max(map(len, sequences)) + NUM_SPECIAL), ALPHABET.padding_idx
    )
    for tokens_T, sequence in zip(tokens_NT, sequences, strict=True):
        tokens_T[0] = ALPHABET.cls_idx
        tokens_T[1 : len(sequence) + 1] = TOKEN_OF[np.frombuffer(sequence.encode(), np.uint8)]
        tokens_T[len(sequence) + 1] = ALPHABET.eos_idx
    return torch.from_numpy(tokens_NT)


@torch.inference_mode()
def extract(
    fasta: Path, folder: Path, output: Output, budget: int, device: str, forward: Forward
) -> None:
    """Compute all proteins of `fasta` and save them in one file, in the order of the input."""
    dataset = fair_esm_reads(fasta)
    sequences = [sequence[:MAX_RESIDUES] for sequence in dataset.sequence_strs]
    lengths = [len(sequence) + NUM_SPECIAL for sequence in sequences]
    found: list[Tensor] = [torch.empty(0)] * len(sequences)
    for rows in sorted_batches(lengths, budget):
        tokens_NT = tokenized([sequences[row] for row in rows]).to(device)
        mask_NT = tokens_NT != ALPHABET.padding_idx
        hidden_NTD = forward(tokens_NT, mask_NT)
        if output == "mean":
            mask_NT &= (tokens_NT != ALPHABET.eos_idx) & (tokens_NT != ALPHABET.cls_idx)
            weights_NT1 = mask_NT.unsqueeze(-1).float()
            pooled_ND = (hidden_NTD.float() * weights_NT1).sum(1) / weights_NT1.sum(1)
            for row, pooled_D in zip(rows, pooled_ND.cpu(), strict=True):
                found[row] = pooled_D
        else:
            # A copy even where that is its type: OpenVINO has the next batch in the same memory.
            kind = torch.float32 if output == "exact" else torch.float16
            narrow_NTD = hidden_NTD.to(kind, copy=True).cpu()
            for row, hidden_TD in zip(rows, narrow_NTD, strict=True):
                found[row] = hidden_TD[1 : lengths[row] - 1]
    np.save(folder / "ids.npy", np.array(dataset.sequence_labels))
    np.save(folder / "lengths.npy", np.array(lengths) - NUM_SPECIAL)
    joined = torch.stack(found) if output == "mean" else torch.cat(found)
    np.save(folder / "features.npy", joined.numpy())


def read(folder: Path, output: Output, proteins: list[Protein]) -> Features:
    """Return what `extract` wrote."""
    ids = np.load(folder / "ids.npy").tolist()
    values = np.load(folder / "features.npy").astype(np.float32)
    if output != "mean":
        values = np.split(values, np.cumsum(np.load(folder / "lengths.npy"))[:-1])
    found = dict(zip(ids, values, strict=True))
    return {name: found[name] for name, _ in proteins}


def writes(output: Output) -> str:
    """Return what `extract` leaves on disk."""
    return f"one .npy, {'vectors in fp32' if output == 'mean' else 'residues in fp16'}"
