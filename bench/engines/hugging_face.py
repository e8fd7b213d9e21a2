"""Hugging Face transformers: EsmModel with SDPA, sorted batches, no pooling layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.esm2_models import hugging_face_config, hugging_face_state
from torch import Tensor

from bench.engines import Dtype, Engine, Features, Missing, Output, padded
from bench.engines.ours import batch_budget
from bench.lengths import Protein
from bench.subject import Subject

NUMBER_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class HuggingFace:
    """EsmModel with all weights in one number type, as from_pretrained(dtype=…) gives it."""

    def __init__(self, subject: Subject, dtype: Dtype, is_compiled: bool = False) -> None:
        self.dtype = dtype
        self.name = f"transformers sdpa {dtype}" + (" compiled" if is_compiled else "")
        self._subject = subject
        self._is_compiled = is_compiled
        self._model: Any = None

    def load(self) -> None:
        from transformers import EsmConfig, EsmModel

        reference = self._subject.model
        config = EsmConfig(**hugging_face_config(reference))
        with torch.device(self._subject.device):
            model = EsmModel._from_config(
                config, attn_implementation="sdpa", add_pooling_layer=False
            )
        state = hugging_face_state(reference)
        assert not model.load_state_dict(state, strict=False).unexpected_keys
        for parameter in model.parameters():
            parameter.data = parameter.data.to(NUMBER_TYPES[self.dtype])
        model = model.to(self._subject.device).eval().requires_grad_(False)
        frequencies = reference.layers[0].self_attn.rot_emb.inv_freq
        for module in model.modules():
            if hasattr(module, "inv_freq"):
                module.inv_freq = frequencies.clone()
        if self._is_compiled:  # layer by layer: one compilation serves all layers
            for layer in model.encoder.layer:
                layer.compile(dynamic=True)
        self._model = model

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
    """Return the variants of transformers, or why there are none."""
    try:
        import transformers
    except ImportError as error:
        return [], [Missing("transformers", str(error))]
    if int(transformers.__version__.split(".")[0]) < 5:
        return [], [Missing("transformers", f"{transformers.__version__} is here, 5 is needed")]
    found: list[Engine] = [HuggingFace(subject, "fp32"), HuggingFace(subject, "bf16")]
    if subject.device == "cuda":
        found.append(HuggingFace(subject, "bf16", is_compiled=True))
    return found, []
