"""OpenVINO: transformers' EsmModel, converted once, in the sorted batches of transformers."""

from __future__ import annotations

import sys
import warnings
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bench.bars import RIVAL
from bench.engines import BYTES, Dtype, Engine, Missing
from bench.engines.hugging_face import HuggingFace
from bench.engines.padded import Padded
from bench.subject import Subject

PRECISIONS: dict[Dtype, str] = {"fp32": "f32", "bf16": "bf16"}
EXAMPLE = (2, 16)
"""Proteins and tokens of what is traced; every size may be another one afterwards."""


class Hidden(torch.nn.Module):
    """What is converted: (tokens_NT, mask_NT) → hidden_NTD."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def forward(self, tokens_NT: Tensor, mask_NT: Tensor) -> Tensor:
        """Return the last layer's representation."""
        hidden: Tensor = self._model(input_ids=tokens_NT, attention_mask=mask_NT).last_hidden_state
        return hidden


class Converted:
    """The network in OpenVINO's terms, for both precisions."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    @cached_property
    def model(self) -> Any:
        """What `convert_model` makes of transformers' model in fp32."""
        import openvino

        traced = HuggingFace(self._subject, "fp32")
        traced.load()
        tokens_NT = torch.full(EXAMPLE, 5)
        example = (tokens_NT, torch.ones_like(tokens_NT))
        with warnings.catch_warnings():
            # Among others, that what is traced may hold for its sizes only; the gate has others.
            warnings.simplefilter("ignore")
            return openvino.convert_model(Hidden(traced._model), example_input=example)


class OpenVino(Padded):
    """The network as OpenVINO compiles it for this CPU, on as many threads as torch has."""

    def __init__(self, subject: Subject, dtype: Dtype, converted: Converted) -> None:
        self.dtype = dtype
        self.name = f"{RIVAL} {dtype}"
        self.bytes_a_weight = BYTES["fp32"]
        self._subject = subject
        self._converted = converted
        self._model: Any = None

    def load(self) -> None:
        import openvino

        hints = {
            "INFERENCE_PRECISION_HINT": PRECISIONS[self.dtype],
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        self._model = openvino.Core().compile_model(self._converted.model, "CPU", hints)

    def _forward(self, tokens_NT: Tensor, mask_NT: Tensor) -> Tensor:
        """Return hidden_NTD in memory that the next batch will have."""
        given = tokens_NT.numpy(), mask_NT.long().numpy()
        (hidden_NTD,) = self._model(given, share_outputs=True).values()
        return torch.from_numpy(hidden_NTD)


def engines(subject: Subject) -> tuple[list[Engine], list[Missing]]:
    """Return OpenVINO in both precisions, or why there is none."""
    if subject.place.has_gpu_steps:
        return [], []
    # It tells its makers of each import and conversion, unasked; without this module it does not.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        import openvino  # noqa: F401
    except ImportError as error:
        is_absent = error.name == "openvino"
        how = "not installed: pip install 'featuremill[bench]' brings it"
        return [], [Missing(RIVAL, how if is_absent else str(error))]
    dtypes: list[Dtype] = ["fp32"]
    if subject.place.compute_device().has_bf16:
        dtypes.append("bf16")
    converted = Converted(subject)
    return [OpenVino(subject, dtype, converted) for dtype in dtypes], []
