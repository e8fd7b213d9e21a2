"""Hugging Face transformers: EsmModel with SDPA, sorted batches, no pooling layer."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.engines import BYTES, Dtype, Engine, Missing
from bench.engines.ours import batch_budget
from bench.engines.padded import Padded
from bench.peers import ALPHABET, hugging_face_config, hugging_face_state
from bench.subject import Subject

NUMBER_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


NAMES = {"": "", "dynamic": " compiled", "buckets": " compiled, buckets"}
BUCKETS = (256, 512, 1024)
"""Tokens of a row; proteins are truncated to 1,024."""
BUCKETED = ("650M", "3B", "tiny fp16")
"""Shapes that are compiled so as well: each bucket is a compilation of its own."""


class HuggingFace(Padded):
    """EsmModel with all weights in one number type, as from_pretrained(dtype=…) gives it."""

    def __init__(
        self, subject: Subject, dtype: Dtype, compiled: Literal["", "dynamic", "buckets"] = ""
    ) -> None:
        self.dtype = dtype
        self.name = f"transformers sdpa {dtype}{NAMES[compiled]}"
        # Made in fp32; what stays is in its dtype, and in fp32 the reference's own.
        self.bytes_a_weight = BYTES["fp32"]
        self._subject = subject
        self._compiled = compiled
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
        if self._compiled:  # layer by layer: one compilation serves all layers
            torch._dynamo.config.recompile_limit = 64
            for layer in model.encoder.layer:
                layer.compile(dynamic=self._compiled == "dynamic")
        self._model = model

    def _forward(self, tokens_NT: Tensor, mask_NT: Tensor) -> Tensor:
        if self._compiled != "buckets":
            return super()._forward(tokens_NT, mask_NT)
        # As users of static shapes do it: few shapes, each filled up with padding.
        num_rows, longest = tokens_NT.shape
        bucket = next(size for size in BUCKETS if size >= longest)
        rows = max(1, batch_budget(self._subject.place) // bucket)
        parts = []
        for start in range(0, num_rows, rows):
            ids_NT = tokens_NT[start : start + rows]
            short = (0, bucket - longest, 0, rows - len(ids_NT))
            filled_NT = F.pad(ids_NT, short, value=ALPHABET.padding_idx)
            filled_NT[len(ids_NT) :, 0] = ALPHABET.cls_idx  # a row of padding alone is no number
            part_NTD = super()._forward(filled_NT, filled_NT != ALPHABET.padding_idx)
            parts.append(part_NTD[: len(ids_NT), :longest])
        return torch.cat(parts)


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
        found.append(HuggingFace(subject, "bf16", "dynamic"))
        if subject.shape.name in BUCKETED:
            found.append(HuggingFace(subject, "bf16", "buckets"))
    return found, []
