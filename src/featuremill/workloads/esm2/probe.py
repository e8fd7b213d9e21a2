"""In which ways a network would be computed on a device: those that a model's load leaves standing.

Loads one layer of random weights as a worker loads a model, so each operation proves itself or
steps down as it would there (`fallbacks.py`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from featuremill.workload import Device, Weights, networks
from featuremill.workloads import esm2
from featuremill.workloads.esm2.architecture import Architecture, Sizes, sizes_of
from featuremill.workloads.esm2.layout import FREQUENCIES, Entry

NUM_HEADS = 4
NUM_LAYERS = 1
USUAL_HEAD_WIDTH = 64


def ways(
    device: Device,
    weights: Weights | None,
    architecture: Architecture,
    entries: Callable[[Sizes], Iterable[Entry]],
) -> dict[str, str]:
    """Return by what each of WAYS would be computed, with heads as wide as those of `weights`;
    `entries` gives what a file of weights holds.

    Raises:
        WorkloadError: no way to compute an operation is right.
        RuntimeError: memory ran out, or the device is dead.
    """
    head_width = USUAL_HEAD_WIDTH
    if weights:
        head_width = sizes_of(weights.metadata).head_dim
    width = NUM_HEADS * head_width
    sizes = Sizes(architecture, NUM_LAYERS, NUM_HEADS, width, 4 * width)
    with tempfile.TemporaryDirectory() as folder:
        probe = _probe(Path(folder, "probe.safetensors"), sizes, entries(sizes))
        options = esm2.Options.model_validate({"dtype": networks.dtype_on(device, "auto")})
        (stage,) = esm2.load(options, [device], probe).encoder.stages
    found = (options.dtype, stage.backend.name, stage.form.NAME, stage.kernels.name)
    return dict(zip(esm2.WAYS, found, strict=True))


def _probe(path: Path, sizes: Sizes, entries: Iterable[Entry]) -> Weights:
    """Write random weights of these sizes, the same ones always."""
    rng = np.random.default_rng(0)
    tensors = {FREQUENCIES: 10_000 ** -(np.arange(0, sizes.head_dim, 2) / sizes.head_dim)}
    for entry in entries:
        numbers = rng.standard_normal(entry.shape)
        tensors[entry.name] = numbers / entry.shape[-1] ** 0.5 if numbers.ndim > 1 else numbers
    save_file({name: np.asarray(t, np.float32) for name, t in tensors.items()}, path)
    return Weights("probe", path, "", sizes.metadata())
