"""FAESM, where its imports work: it wants transformers 4 and, for its fast path, flash-attn."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from bench.engines import BYTES, Dtype, Engine, Missing
from bench.engines.hugging_face import NUMBER_TYPES
from bench.engines.padded import Padded
from bench.peers import hugging_face_config, hugging_face_state
from bench.subject import Subject


class Faesm(Padded):
    """FAEsmModel as a whole in one number type, as its README has it."""

    def __init__(self, subject: Subject, dtype: Dtype, has_flash_attention: bool) -> None:
        self.dtype = dtype
        self.name = f"FAESM {'flash-attn' if has_flash_attention else 'sdpa'} {dtype}"
        self.bytes_a_weight = BYTES[dtype]
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
        model = model.to(self._subject.place.device, NUMBER_TYPES[self.dtype])
        self._model = model.eval().requires_grad_(False)


def engines(subject: Subject) -> tuple[list[Engine], list[Missing]]:
    """Return FAESM, or why it cannot run."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it announces what it lacks
            from faesm import esm
    except ImportError as error:
        return [], [Missing("FAESM", " ".join(str(error).split(" (/")[0].split()))]
    has_flash_attention = bool(esm.flash_attn_installed)
    dtypes: tuple[Dtype, ...] = ("bf16",) if has_flash_attention else ("fp32", "bf16")
    return [Faesm(subject, dtype, has_flash_attention) for dtype in dtypes], []
