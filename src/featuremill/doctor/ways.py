"""In which ways a run would compute ESM-2 on a device: those that a model's load leaves standing.

Runs in the doctor's child: loads one layer of random weights as a worker loads a model, so each
operation proves itself or steps down as it would there (`workloads/esm2/ladder.py`).
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from featuremill.lease import devices
from featuremill.lease.devices import Device
from featuremill.workload import Weights
from featuremill.workloads import esm2
from featuremill.workloads.esm2 import layout, tokens

NUM_HEADS = 4
NUM_LAYERS = 1


def found(kind: str, head_width: int) -> dict[str, Any]:
    """Return what computes attention, products and the rest on the one `kind` of device seen here,
    in which dtype, and in `why` what a step down was for.

    Raises:
        WorkloadError: no way to compute an operation is right.
        RuntimeError: memory ran out, or the device is dead.
    """
    device = devices.cpu() if kind == "cpu" else _gpu()
    heard = _Heard(logging.WARNING)
    logger = logging.getLogger("featuremill")
    logger.addHandler(heard)
    try:
        with tempfile.TemporaryDirectory() as folder:
            weights = _weights(Path(folder, "probe.safetensors"), head_width)
            options = esm2.resolve(esm2.Options(), device, weights)
            encoder = esm2.load(options, [device], weights).encoder
    finally:
        logger.removeHandler(heard)
    (stage,) = encoder.stages
    return {
        "dtype": options.dtype,
        "attention": stage.backend.name,
        "products": stage.form.NAME,
        "kernels": stage.kernels.name,
        "why": heard.sentences,
    }


class _Heard(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.sentences: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.sentences.append(record.getMessage())


def _gpu() -> Device:
    import torch

    has_bf16 = torch.cuda.get_device_capability(0) >= devices.BF16_CAPABILITY
    return Device("cuda", "", torch.cuda.get_device_name(0), has_bf16)


def _weights(path: Path, head_width: int) -> Weights:
    """Write random weights of heads so wide, the same ones always."""
    rng = np.random.default_rng(0)
    width = NUM_HEADS * head_width
    tensors = {layout.FREQUENCIES: 10_000 ** -(np.arange(0, head_width, 2) / head_width)}
    for entry in layout.entries(layout.FAIR_ESM, NUM_LAYERS, width, tokens.NUM_TOKENS):
        numbers = rng.standard_normal(entry.shape)
        tensors[entry.name] = numbers / entry.shape[-1] ** 0.5 if numbers.ndim > 1 else numbers
    save_file({name: np.asarray(t, np.float32) for name, t in tensors.items()}, path)
    metadata = {
        "num_layers": str(NUM_LAYERS),
        "embed_dim": str(width),
        "attention_heads": str(NUM_HEADS),
    }
    return Weights("probe", path, "", metadata)
