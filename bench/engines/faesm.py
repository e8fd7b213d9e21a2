"""FAESM, where its imports work: it wants transformers 4 and, for its fast path, flash-attn."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import torch
from tests.esm2_models import hugging_face_config, hugging_face_state
from torch import Tensor

from bench.engines import Dtype, Engine, Features, Missing, Output, padded
from bench.engines.ours import batch_budget
from bench.lengths import Protein
from bench.subject import Subject


class Faesm:
    """FAEsmModel with its weights in bf16, which its FlashAttention asks for."""

    dtype: Dtype = "bf16"

    def __init__(self, subject: Subject, has_flash_attention: bool) -> None:
        self.name = f"FAESM bf16 {'flash-attn' if has_flash_attention else 'sdpa'}"
        self._subject = subject
        self._has_flash_attention = has_flash_attention
        self._model: Any = None

    def load(self) -> None:
        from faesm.esm import FAEsmModel
        from transformers import EsmConfig

        reference = self._subject.model
        settings = hugging_face_config(reference)
        config = EsmConfig(**settings, use_fa=self._has_flash_attention)
        model = FAEsmModel(config, add_pooling_layer=False)
        found = model.load_state_dict(hugging_face_state(reference), strict=False)
        assert not found.unexpected_keys
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
        self._model = model.to(self._subject.device).eval().requires_grad_(False)

    def writes(self, output: Output) -> str:
        return padded.writes(output)

    def extract(self, fasta: Path, folder: Path, output: Output) -> None:
        device = self._subject.device
        padded.extract(fasta, folder, output, batch_budget(device), device, self._forward)

    def read(self, folder: Path, output: Output, proteins: list[Protein]) -> Features:
        return padded.read(folder, output, proteins)

    def _forward(self, tokens_NT: Tensor, mask_NT: Tensor) -> Tensor:
        hidden = self._model(input_ids=tokens_NT, attention_mask=mask_NT.long()).last_hidden_state
        assert isinstance(hidden, Tensor)
        return hidden


def engines(subject: Subject) -> tuple[list[Engine], list[Missing]]:
    """Return FAESM, or why it cannot run."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it announces what it lacks
            from faesm import esm
    except ImportError as error:
        return [], [Missing("FAESM", " ".join(str(error).split(" (/")[0].split()))]
    return [Faesm(subject, bool(esm.flash_attn_installed))], []
