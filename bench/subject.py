"""One network with random weights, the same ones in every engine."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from bench.peers import fair_esm, save_fair_esm
from bench.place import Place
from bench.shapes import Shape
from featuremill.workload import weights

SEED = 7
UNDO_TOKEN_DROPOUT = 1 / 0.88
"""What --spoil multiplies our embedding by: the error of an engine that forgets token dropout."""


class Subject:
    """Random weights of one shape: fair-esm's own initial ones, never zeros.

    They follow from the seed, so another process on the same device has the same ones.
    """

    def __init__(self, shape: Shape, place: Place, folder: Path, spoil: bool = False) -> None:
        self.shape = shape
        self.place = place
        self._folder = folder
        self._spoil = spoil

    @cached_property
    def model(self) -> Any:
        """fair-esm's model in fp32, on the device."""
        with torch.device(self.place.device):
            model = fair_esm(
                self.shape.num_layers, self.shape.width, self.shape.num_heads, seed=SEED
            )
        return model.half().float() if self.shape.stored_as == "fp16" else model

    @cached_property
    def weights(self) -> Path:
        """The JSON of the same weights, converted as `featuremill weights` does."""
        path = self._folder / f"{self.shape.name}.json"
        if not path.exists():
            checkpoint = self._folder / f"{self.shape.name}.pt"
            self._folder.mkdir(parents=True, exist_ok=True)
            self._save(checkpoint)
            weights.convert(str(checkpoint), self._folder / "cache").write(path)
            checkpoint.unlink()
        return path

    def _save(self, path: Path) -> None:
        """Write a checkpoint as fair-esm publishes them, of tensors in the host's memory."""
        dtype = torch.float16 if self.shape.stored_as == "fp16" else torch.float32
        state = {name: value.to(dtype).cpu() for name, value in self.model.state_dict().items()}
        if self._spoil:
            state["embed_tokens.weight"] = state["embed_tokens.weight"] * UNDO_TOKEN_DROPOUT
        model = SimpleNamespace(
            num_layers=self.shape.num_layers,
            embed_dim=self.shape.width,
            attention_heads=self.shape.num_heads,
            state_dict=lambda: state,
        )
        save_fair_esm(model, path, dtype)
