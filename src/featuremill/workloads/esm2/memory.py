"""How much memory a model takes, from its architecture and the tokens of a batch, before it runs.

docs/doctor.md derives the formula from `workloads/esm2/encoder.py`, and tests/test_doctor.py holds
it against measured peaks on a CPU.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from featuremill.base.errors import UserError
from featuremill.lease.devices import Device
from featuremill.workloads import esm2
from featuremill.workloads.esm2 import sources, tokens

WIDTH_OF_LAYERS = {6: 320, 12: 480, 30: 640, 33: 1280, 36: 2560, 48: 5120}
"""Of Meta's ESM-2 models, whose names tell their layers; kept here so that torch is not needed."""
HEAD_WIDTH_OF = {320: 16, 480: 24, 640: 32, 1280: 64, 2560: 64, 5120: 128}
"""Of the same models, by their width."""
USUAL_HEAD_WIDTH = 64
FILE_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
NUMBER_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
FLOAT_BYTES = 4
SLACK = 1.1
"""What the allocator rounds up and cannot use."""
CPU_PROCESS_MB = 300
"""Python, torch and the matrix library's own buffers: measured."""
CUDA_PROCESS_MB = 600
"""The CUDA context and cuBLAS's workspace: a usual value, not measured here."""


class Model(NamedTuple):
    """What the estimate needs to know of an ESM-2."""

    name: str
    num_layers: int
    width: int
    file_dtype: str
    """Of the numbers in its converted file: fp32, fp16 or bf16."""
    head_width: int = USUAL_HEAD_WIDTH

    @property
    def num_matrix_numbers(self) -> int:
        """Matrices and biases of all layers: qkv 3D², out D², up 4D², down 4D²; biases 9D."""
        return self.num_layers * (12 * self.width**2 + 9 * self.width)

    @property
    def num_other_numbers(self) -> int:
        """What stays in fp32: two norms a layer, the final one, and the embedding."""
        return self.width * (4 * self.num_layers + 2 + tokens.NUM_TOKENS)


class Need(NamedTuple):
    """An estimate for one device."""

    memory_mb: int
    dtype: str
    batch_tokens: int


def model_of(name: str) -> Model:
    """Return the architecture of a model's name or path; raise UserError if there is none."""
    known = sources.name_of(name)
    if known in sources.PUBLISHED_GIGABYTES and not sources.is_path(name):
        found = re.match(r"esm2_t(\d+)_", known)
        assert found, known
        num_layers = int(found[1])
        width = WIDTH_OF_LAYERS[num_layers]
        model = Model(known, num_layers, width, "", HEAD_WIDTH_OF[width])
        num_numbers = model.num_matrix_numbers + model.num_other_numbers
        is_wide = sources.PUBLISHED_GIGABYTES[known] * 1e9 / num_numbers > 3
        return model._replace(file_dtype="fp32" if is_wide else "fp16")
    try:
        from featuremill.workloads.esm2 import checkpoint
    except ImportError as error:
        raise UserError(
            f"{name}: looking into it needs {error.name}; pip install 'featuremill[esm2]', "
            "or say --memory-mb instead."
        ) from None
    found_there = checkpoint.read(sources.locate(name).path)
    dtype = FILE_DTYPES[found_there.metadata()["dtype"]]
    head_width = found_there.width // found_there.num_heads
    return Model(known, found_there.num_layers, found_there.width, dtype, head_width)


def need(model: Model, device: Device) -> Need:
    """Return what `model` takes on `device` with `dtype: auto` and its usual batches."""
    batch_tokens = esm2.batch_cost(esm2.Options(), device)
    if device.kind == "cuda":
        dtype = "bf16" if device.has_bf16 else "fp16"
    else:
        dtype = "bf16" if device.has_bf16 else "fp32"
    return Need(estimate_mb(model, device.kind, dtype, batch_tokens), dtype, batch_tokens)


def estimate_mb(model: Model, kind: str, dtype: str, batch_tokens: int) -> int:
    """Return the peak in MiB: slack x (weights + activations) + what the process takes anyway."""
    held = weights_bytes(model, kind, dtype)
    held += batch_tokens * activation_bytes_a_token(model.width, NUMBER_BYTES[dtype])
    process_mb = CUDA_PROCESS_MB if kind == "cuda" else CPU_PROCESS_MB
    return round(SLACK * held / 2**20) + process_mb


def weights_bytes(model: Model, kind: str, dtype: str) -> int:
    """Return what the weights take, on a CPU with the pages of the file that they are read from."""
    number_bytes = NUMBER_BYTES[dtype]
    matrices, others = model.num_matrix_numbers, model.num_other_numbers
    if kind == "cuda":
        return matrices * number_bytes + others * FLOAT_BYTES
    mapped = (matrices + others) * NUMBER_BYTES[model.file_dtype]
    if dtype != model.file_dtype:
        return mapped + matrices * number_bytes + others * FLOAT_BYTES
    # Norms are used as they lie in the file; oneDNN lays every matrix out anew.
    return mapped + matrices * number_bytes


def activation_bytes_a_token(width: int, number_bytes: int) -> int:
    """Return the peak of a layer, a token.

    It is the feed forward's: the residual stream (4D bytes), what attention added to it (bD), the
    normed input (bD), and 4D numbers after GELU. Attention, with q, k and v (3bD), stays below.
    """
    return width * (FLOAT_BYTES + 6 * number_bytes)
