"""Find the methods that would compute a network on a device.

A layer of random weights is loaded as a worker loads a model, so that each operation is tested or
replaced in the same way (`fallbacks.py`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from featuremill.workload import Device, Weights, networks
from featuremill.workloads.esm2.architecture import Architecture, Sizes, sizes_of
from featuremill.workloads.esm2.layout import FAIR_ESM, FREQUENCIES, entries
from featuremill.workloads.esm2.options import Options

__all__ = ["ways"]
NUM_HEADS = 4
NUM_LAYERS = 1
USUAL_HEAD_WIDTH = 64


def ways(
    device: Device, weights: Weights | None, architecture: Architecture, load: Callable[..., Any]
) -> tuple[str, str, str, str]:
    """Return the dtype and the methods of attention, products and the rest, for heads as wide as
    those of `weights`; `load` is that of the workload.

    Raises:
        WorkloadError: if no method computes an operation correctly.
        RuntimeError: if memory ran out, or the device is dead.
    """
    head_width = USUAL_HEAD_WIDTH
    if weights:
        head_width = sizes_of(weights.metadata).head_dim
    width = NUM_HEADS * head_width
    sizes = Sizes(architecture, NUM_LAYERS, NUM_HEADS, width, 4 * width)
    with tempfile.TemporaryDirectory() as folder:
        probe = _probe(Path(folder, "probe.safetensors"), sizes)
        options = Options.model_validate({"dtype": networks.dtype_on(device, "auto")})
        (stage,) = load(options, [device], probe).encoder.stages
    return options.dtype, stage.backend.name, stage.form.name, stage.kernels.name


def _probe(path: Path, sizes: Sizes) -> Weights:
    """Write random weights of these sizes, with a fixed seed."""
    rng = np.random.default_rng(0)
    tensors = {FREQUENCIES: 10_000 ** -(np.arange(0, sizes.head_dim, 2) / sizes.head_dim)}
    for entry in entries(FAIR_ESM, sizes):
        numbers = rng.standard_normal(entry.shape)
        tensors[entry.name] = numbers / entry.shape[-1] ** 0.5 if numbers.ndim > 1 else numbers
    save_file({name: np.asarray(t, np.float32) for name, t in tensors.items()}, path)
    return Weights("probe", path, "", sizes.metadata())
