"""What is compared: each engine turns a FASTA file into files of features."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bench.lengths import Protein
from bench.subject import Subject

Output = Literal["mean", "per_residue", "exact"]
"""`exact` is per residue with all its digits: for the gate, never timed."""
Dtype = Literal["fp32", "bf16", "fp16"]
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
Features = dict[str, npt.NDArray[Any]]
"""By id: (width) or (residues, width)."""


class Engine(Protocol):
    """One way from FASTA to features."""

    name: str
    dtype: Dtype
    """What it claims; fp32 means that it must agree with fair-esm's fp32."""

    bytes_a_weight: int
    """What it takes of the device's memory for each of the network's weights, when loaded."""

    def load(self) -> None:
        """Make the model ready on the device; not part of any rate."""

    def unload(self) -> None:
        """Give the model's memory back."""

    def extract(self, fasta: Path, folder: Path, output: Output) -> None:
        """Read `fasta`, compute, and have every file in `folder` closed: what is timed."""

    def read(self, folder: Path, output: Output, proteins: list[Protein]) -> Features:
        """Return what `extract` wrote for `proteins`."""

    def writes(self, output: Output) -> str:
        """Return, for the table's reader, what `extract` leaves on disk."""


class Missing(NamedTuple):
    """An engine that cannot run here, and why."""

    name: str
    reason: str


def line_up(subject: Subject) -> tuple[list[Engine], list[Missing]]:
    """Return the engines that can run here, fair-esm in fp32 (the reference) first."""
    from bench.engines import faesm, fair_esm, hugging_face, openvino, ours

    engines: list[Engine] = []
    missing: list[Missing] = []
    for module in (fair_esm, ours, hugging_face, openvino, faesm):
        found, lacking = module.engines(subject)
        engines += found
        missing += lacking
    return engines, missing


def as_float32(values: Any) -> npt.NDArray[np.float32]:
    """Return a tensor or array as a NumPy array in fp32."""
    array = values.float().numpy() if hasattr(values, "float") else np.asarray(values)
    return array.astype(np.float32, copy=False)
