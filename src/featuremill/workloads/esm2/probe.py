"""In which ways ESM-2 would be computed on a device: those that a model's load leaves standing.

Loads one layer of random weights as a worker loads a model, so each operation proves itself or
steps down as it would there (`fallbacks.py`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from featuremill.workload import Device, Weights
from featuremill.workloads import esm2
from featuremill.workloads.esm2 import layout, tokens

NUM_HEADS = 4
NUM_LAYERS = 1
USUAL_HEAD_WIDTH = 64


def ways(device: Device, weights: Weights | None) -> dict[str, str]:
    """Return by what each of WAYS would be computed, with heads as wide as those of `weights`.

    Raises:
        WorkloadError: no way to compute an operation is right.
        RuntimeError: memory ran out, or the device is dead.
    """
    head_width = USUAL_HEAD_WIDTH
    if weights:
        head_width = int(weights.metadata["embed_dim"]) // int(weights.metadata["attention_heads"])
    with tempfile.TemporaryDirectory() as folder:
        probe = _probe(Path(folder, "probe.safetensors"), head_width)
        options = esm2.resolve(esm2.Options(), device, probe)
        (stage,) = esm2.load(options, [device], probe).encoder.stages
    found = (options.dtype, stage.backend.name, stage.form.NAME, stage.kernels.name)
    return dict(zip(esm2.WAYS, found, strict=True))


def _probe(path: Path, head_width: int) -> Weights:
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
