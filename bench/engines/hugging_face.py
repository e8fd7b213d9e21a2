"""Hugging Face transformers: EsmModel with SDPA, sorted batches, no pooling layer."""

from __future__ import annotations

from typing import Any

import torch

from bench.engines import BYTES, Dtype, Engine, Missing
from bench.engines.padded import Padded
from bench.peers import hugging_face_config, hugging_face_state
from bench.subject import Subject

NUMBER_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class HuggingFace(Padded):
    """EsmModel with all weights in one number type, as from_pretrained(dtype=…) gives it."""

    def __init__(self, subject: Subject, dtype: Dtype, is_compiled: bool = False) -> None:
        self.dtype = dtype
        self.name = f"transformers sdpa {dtype}" + (" compiled" if is_compiled else "")
        # Made in fp32; what stays is in its dtype, and in fp32 the reference's own.
        self.bytes_a_weight = BYTES["fp32"]
        self._subject = subject
        self._is_compiled = is_compiled
        self._model: Any = None

    def load(self) -> None:
        from transformers import EsmConfig, EsmModel

        reference = self._subject.model
        config = EsmConfig(**hugging_face_config(reference))
        with torch.device(self._subject.place.device):
            model = EsmModel._from_config(
                config, attn_implementation="sdpa", add_pooling_layer=False
            )
        kind = NUMBER_TYPES[self.dtype]
        state = {name: each.to(kind) for name, each in hugging_face_state(reference).items()}
        found = model.load_state_dict(state, strict=False, assign=True)
        assert not found.unexpected_keys
        model = model.eval().requires_grad_(False)
        frequencies = reference.layers[0].self_attn.rot_emb.inv_freq
        for module in model.modules():
            if hasattr(module, "inv_freq"):
                module.inv_freq = frequencies.clone()
        if self._is_compiled:  # layer by layer: one compilation serves all layers
            for layer in model.encoder.layer:
                layer.compile(dynamic=True)
        self._model = model


def engines(subject: Subject) -> tuple[list[Engine], list[Missing]]:
    """Return the variants of transformers, or why there are none."""
    try:
        import transformers
    except ImportError as error:
        return [], [Missing("transformers", str(error))]
    if int(transformers.__version__.split(".")[0]) < 5:
        return [], [Missing("transformers", f"{transformers.__version__} is here, 5 is needed")]
    found: list[Engine] = [HuggingFace(subject, "fp32"), HuggingFace(subject, "bf16")]
    if subject.place.has_gpu_steps:
        found.append(HuggingFace(subject, "bf16", is_compiled=True))
    return found, []
