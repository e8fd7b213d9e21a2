"""`sae estimate`: estimate the memory of a training.

Counts the tensors of `training.py`: parameters, Adam's moments, the gradient buffers of the sum,
and the intermediate results of a slice. The memory of CUDA is added on a GPU, and that of Python
with torch on the host.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from featuremill import features
from featuremill.features import Parts
from featuremill.kit.text import human_bytes
from featuremill.steps.autoencoders.card import (
    SLICES,
    Options,
    pairs_of,
    refuse_other_count,
    slices_of,
)

FLOAT = 4
HOST_BYTES = 460 * 2**20
"""Python, torch with the imports of Adam, and Arrow, without a vector: measured with torch 2.13."""
ROW_BYTES = 29
"""Bytes of a record in `Parts`."""
LOADED = 8
"""Bytes per number of a slice while it is read."""
SLICE_OF_FEATURES, SLICE_OF_WIDTH = {"topk": 4, "relu": 4, "jumprelu": 6}, 6
"""The matrices of a slice at the same time, per feature and per dimension."""


class Needed(NamedTuple):
    """The memory and disk of a training, in bytes."""

    device: int
    """Memory per device; on CPUs, memory per rank in addition to `host`."""
    host: int
    """Memory of the host per rank."""
    mapped: int
    """Size of the run's vectors, which are memory-mapped."""
    checkpoint: int
    weights: int

    def total(self, kind: str) -> int:
        """Return the host memory of a rank on a device of this kind."""
        return self.host + (self.device if kind == "cpu" else 0)

    def text(self, kind: str) -> str:
        """Return a sentence with the memory."""
        where = "" if kind == "cpu" else f"{human_bytes(self.device)} of each GPU, "
        return (
            f"each with {where}{human_bytes(self.total(kind))} of memory, beside "
            f"{human_bytes(self.mapped)} of vectors in the page cache; "
            f"{human_bytes(self.checkpoint)} of disk for a checkpoint"
        )


def estimated(options: Options, vectors: Parts, num_ranks: int) -> Needed:
    """Return the memory of `num_ranks` ranks."""
    return needed(
        options, vectors.column.width, num_ranks, len(vectors.num_of_row), vectors.num_bytes
    )


def needed(
    options: Options, width: int, num_ranks: int, num_rows: int = 0, num_bytes: int = 0
) -> Needed:
    """Return the memory for vectors of `width` numbers in `num_rows` records."""
    num_features = options.features
    parameters = 2 * width * num_features + num_features + width
    if options.kind == "jumprelu":
        parameters += num_features
    shares = [pairs_of(slices_of(rank, num_ranks)) for rank in range(num_ranks)]
    depths = [n + max(1, (len(e) // 2).bit_length()) for own in shares for n, e in enumerate(own)]
    num_buffers = max(depths) + (num_ranks > 1)
    # Autograd allocates a gradient before it is added; the largest has half the parameters.
    copies = 3 + num_buffers + 1
    rows = options.batch // SLICES
    slice_numbers = rows * (SLICE_OF_FEATURES[options.kind] * num_features + SLICE_OF_WIDTH * width)
    if options.dtype == "bf16":
        slice_numbers += parameters // 2
    device = FLOAT * (copies * parameters + slice_numbers)
    host = HOST_BYTES + ROW_BYTES * num_rows + LOADED * rows * width
    return Needed(device, host, num_bytes, 3 * FLOAT * parameters, FLOAT * parameters)


def show(root: Path, column: str | None, options: Options, num_ranks: int, as_json: bool) -> None:
    """Print the memory of a training on the run in `root`."""
    options.check()
    refuse_other_count(num_ranks)
    vectors = features.open_parts(root, column)
    need = estimated(options, vectors, num_ranks)
    if as_json:
        print(json.dumps(need._asdict() | {"host_with_cpu": need.total("cpu")}))
        return
    each = "" if num_ranks == 1 else " each"
    print(f"a GPU: {human_bytes(need.device)}{each}, and {human_bytes(need.host)} of memory")
    print(f"on CPUs: {human_bytes(need.total('cpu'))} of memory{each}")
    print(f"vectors: {human_bytes(need.mapped)} in parts: the page cache keeps what fits")
    print(f"files: {human_bytes(need.weights)}, and {human_bytes(need.checkpoint)} a checkpoint")
