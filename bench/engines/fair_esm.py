"""fair-esm's own model with the settings of its scripts/extract.py; also under autocast."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from bench.engines import Dtype, Engine, Features, Missing, Output, as_float32
from bench.lengths import MAX_RESIDUES, Protein
from bench.peers import ALPHABET
from bench.sample import fair_esm_reads
from bench.subject import Subject

BATCH_TOKENS = 4096
"""The default of extract.py's --toks_per_batch."""
KEYS = {
    "mean": "mean_representations",
    "per_residue": "representations",
    "exact": "representations",
}


class FairEsm:
    """What a user of fair-esm runs today: logits computed and copied, one file a protein."""

    def __init__(self, subject: Subject, dtype: Dtype) -> None:
        self.dtype = dtype
        self.name = "fair-esm fp32" if dtype == "fp32" else f"fair-esm autocast {dtype}"
        self.bytes_a_weight = 0  # the reference's own, which stay
        self._subject = subject
        self._model: Any = None

    def load(self) -> None:
        self._model = self._subject.model

    def unload(self) -> None:
        self._model = None

    def writes(self, output: Output) -> str:
        return f"one .pt a protein, {'vector' if output == 'mean' else 'residues'} in fp32"

    def extract(self, fasta: Path, folder: Path, output: Output) -> None:
        layer = self._model.num_layers
        dataset = fair_esm_reads(fasta)
        batches = dataset.get_batch_indices(BATCH_TOKENS, extra_toks_per_seq=1)
        loader = DataLoader(
            dataset,
            collate_fn=ALPHABET.get_batch_converter(MAX_RESIDUES),
            batch_sampler=batches,
        )
        with torch.no_grad():
            for labels, sequences, tokens in loader:
                with self._precision():
                    out = self._model(tokens.to(self._subject.place.device), repr_layers=[layer])
                # extract.py fetches the logits and drops them.
                out["logits"].to("cpu")
                hidden_NTD = out["representations"][layer].to("cpu")
                for hidden_TD, label, sequence in zip(hidden_NTD, labels, sequences, strict=True):
                    residues_RD = hidden_TD[1 : min(MAX_RESIDUES, len(sequence)) + 1]
                    values = residues_RD.mean(0) if output == "mean" else residues_RD
                    content = {"label": label, KEYS[output]: {layer: values.clone()}}
                    torch.save(content, folder / f"{label}.pt")

    def read(self, folder: Path, output: Output, proteins: list[Protein]) -> Features:
        layer = self._model.num_layers
        return {
            name: as_float32(
                torch.load(folder / f"{name}.pt", weights_only=True)[KEYS[output]][layer]
            )
            for name, _ in proteins
        }

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.dtype == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self._subject.place.device, torch.bfloat16)


def engines(subject: Subject) -> tuple[list[Engine], list[Missing]]:
    """Return fair-esm as it is and under autocast."""
    return [FairEsm(subject, "fp32"), FairEsm(subject, "bf16")], []
