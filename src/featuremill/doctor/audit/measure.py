"""Compute the sample in fp32, then in each dtype, and compare; memory holds a batch, not all.

Always one model after the other, never two at once: then whatever runs in fp32 at all can be
audited, a 3B on a small GPU too. The price is a temporary file with the reference's values, without
a name, so that nothing of it outlives the process.
"""

from __future__ import annotations

import itertools
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.base import faults, reasons
from featuremill.base.errors import UserError
from featuremill.base.progress import Progress
from featuremill.doctor import host
from featuremill.doctor.audit.figures import Compared, Float16Figures, Matrix, compared
from featuremill.doctor.audit.sample import Protein
from featuremill.extract import compute
from featuremill.extract.at_hand import values_in_batches
from featuremill.workload import Device, TellsMemory, Weights, Workload

REFERENCE = "fp32"
FLOAT_BYTES = 4
VALUES_BYTES = 2**28
"""What the values of one batch may take in memory: more layers, or wider ones, smaller batches."""
NUM_COPIES = 4
"""Of a batch's values at once: found and expected, each with a copy that is being made."""
Pooled = dict[tuple[int, str], Matrix]
"""For each layer and pool the vectors of the sample, shape (proteins, width)."""
log = logging.getLogger("featuremill.audit")


class Task(NamedTuple):
    """What is computed."""

    workload: Workload
    options: Any
    """The run's own, resolved: its dtype is the one that a run would take here."""
    dtypes: tuple[str, ...]
    device: Device
    weights: Weights

    def options_in(self, dtype: str) -> Any:
        """Return the options to compute with: every residue's values, unrounded."""
        more = {"dtype": dtype, "per_residue": True, "output_dtype": "float32"}
        return type(self.options).model_validate(self.options.model_dump() | more)

    def costs(self, proteins: Sequence[Protein]) -> list[int]:
        """Return the work in each protein."""
        return [self.workload.cost(protein.payload, self.options) for protein in proteins]

    def num_residues(self, protein: Protein) -> int:
        """Return how many residues of a protein get a vector."""
        length, options = len(protein.payload), self.options
        return min(length, options.max_residues) if options.long == "truncate" else length

    @property
    def width(self) -> int:
        return int(self.weights.metadata["embed_dim"])

    @property
    def values_bytes(self) -> int:
        """What one residue's values take, in fp32."""
        return self.width * len(self.options.layers) * FLOAT_BYTES

    @property
    def budget(self) -> int:
        """What a batch may cost: as in a run, or less if its values would take too much."""
        fitting = max(1, VALUES_BYTES // self.values_bytes)
        return min(self.workload.batch_cost(self.options, self.device), fitting)

    @property
    def is_stored_narrow(self) -> bool:
        """Whether the run delivers residues in float16."""
        return bool(self.options.per_residue and self.options.output_dtype == "float16")

    def memory_mb(self, dtype: str, batch_cost: int) -> int:
        """Return what the model in `dtype` takes on the device, at most; 0 where nobody tells."""
        if not isinstance(self.workload, TellsMemory):
            return 0
        options = self.options_in(dtype)
        return self.workload.memory_mb(options, self.device, self.weights, batch_cost)


def check_room(task: Task, proteins: Sequence[Protein]) -> None:
    """Refuse what would fill the memory or the folder for temporary files; a GPU tells by itself.

    Models are loaded one after the other, so memory has to hold the largest, in fp32.
    """
    batch_cost = max(task.budget, *task.costs(proteins))
    pooled_bytes = 3 * len(proteins) * len(task.options.pools) * task.values_bytes
    needed_mb = (NUM_COPIES * batch_cost * task.values_bytes + pooled_bytes) // 2**20
    if task.device.kind == "cpu":
        needed_mb += max(task.memory_mb(dtype, batch_cost) for dtype in (REFERENCE, *task.dtypes))
    if needed_mb > (free_mb := host.memory_free_mb()):
        raise UserError(
            f"audit: {task.weights.name} and these proteins take about {needed_mb:,} MB of memory, "
            f"and {free_mb:,} MB are free; lower batch_tokens in the config or --sample, drop "
            "layers, or take a machine with more."
        )
    folder = tempfile.gettempdir()
    needed = sum(map(task.num_residues, proteins)) * task.values_bytes / 1e9
    if needed > (free := shutil.disk_usage(folder).free / 1e9):
        raise UserError(
            f"{folder}: the sample's values in fp32 take {needed:.1f} GB, and {free:.1f} GB are "
            "free here; set TMPDIR to another folder, or lower --sample."
        )


@dataclass
class Found:
    """What one dtype came to, or the reference."""

    dtype: str
    backend: str
    pooled: Pooled
    layers: dict[int, list[Compared]]
    """Each protein against the reference; of itself there are none."""
    float16: dict[int, Float16Figures]
    """Of the reference only."""


Take = Callable[[Found, int, int, Matrix], None]
"""Gets, of each layer and row of the sample, the vectors per residue, shape (residues, width)."""


def measure(task: Task, proteins: Sequence[Protein]) -> list[Found]:
    """Return all figures of `task` on `proteins`: of the reference, then of each dtype."""
    places: dict[tuple[int, int], int] = {}
    with tempfile.TemporaryFile() as spool:

        def keep(found: Found, layer: int, row: int, values_RD: Matrix) -> None:
            places[layer, row] = spool.tell()
            spool.write(values_RD.tobytes())
            if task.is_stored_narrow:
                found.float16[layer].add(row, values_RD)

        def compare(found: Found, layer: int, row: int, values_RD: Matrix) -> None:
            spool.seek(places[layer, row])
            expected = np.frombuffer(spool.read(values_RD.nbytes), np.float32)
            expected_RD = expected.reshape(values_RD.shape)
            found.layers[layer].append(compared(row, values_RD, expected_RD))

        reference = _computed(task, proteins, REFERENCE, keep)
        return [reference, *(_computed(task, proteins, one, compare) for one in task.dtypes)]


def _computed(task: Task, proteins: Sequence[Protein], dtype: str, take: Take) -> Found:
    """Compute in `dtype` and let `take` have what comes; the model's memory is given back."""
    options = task.options_in(dtype)
    try:
        model: Any = task.workload.load(options, [task.device], task.weights)
    except Exception as error:
        if faults.is_out_of_memory(error):
            raise _model_too_large(task, dtype) from None
        raise
    shape = len(proteins), task.width
    found = Found(
        dtype,
        str(getattr(model, "backend", "")),
        {
            (layer, pool): np.empty(shape, np.float32)
            for layer in options.layers
            for pool in options.pools
        },
        {layer: [] for layer in options.layers},
        {layer: Float16Figures() for layer in options.layers},
    )
    costs = task.costs(proteins)
    shown, done = Progress(log, dtype, task.workload.COST_UNIT), 0
    for places, values in values_in_batches(
        task.workload,
        model,
        options,
        [protein.payload for protein in proteins],
        task.budget,
        lambda row, reason: _refuse(task, dtype, proteins[row], reason),
        log.warning,
        is_finite_only=dtype == REFERENCE,
    ):
        rows = [row for (row,) in places]  # no two proteins of a sample are equal
        for (layer, pool), vectors_ND in found.pooled.items():
            column = values.column(f"{pool}_layer_{layer}")
            vectors_ND[rows] = column.flatten().to_numpy().reshape(len(rows), -1)
        for layer in options.layers:
            for row, values_RD in zip(rows, _residues(values, layer), strict=True):
                take(found, layer, row, values_RD)
        done += sum(costs[row] for row in rows)
        shown.at(done, sum(costs))
    del model
    compute.free_device_memory()
    return found


def _residues(values: pa.RecordBatch, layer: int) -> Iterator[Matrix]:
    """Yield each protein's vectors per residue, shape (residues, width), without copying."""
    column = values.column(f"residues_layer_{layer}")
    vectors = column.values
    matrix: npt.NDArray[Any] = vectors.flatten().to_numpy().reshape(-1, vectors.type.list_size)
    for start, end in itertools.pairwise(column.offsets.to_numpy()):
        yield matrix[start:end]


def _refuse(task: Task, dtype: str, protein: Protein, reason: str) -> None:
    """Raise UserError for a protein that cannot be computed."""
    start, name = f"{protein.place}: ", task.weights.name
    kind = reasons.kind_of(reason)
    if kind is reasons.NOT_FINITE:
        raise UserError(
            f"{start}{protein.id} has values that are not finite in {dtype}, so "
            f"there is nothing to compare with; check the weights of {name}."
        )
    if kind is reasons.OUT_OF_MEMORY:
        raise UserError(
            f"{start}{task.device.name} has not enough memory for {protein.id} "
            f"({len(protein.payload):,} residues) with {name} in {dtype}; set long: truncate, "
            "or take a device with more memory."
        )
    raise UserError(f"{start}{protein.id} cannot be computed in {dtype}: {reason}; leave it out.")


def _model_too_large(task: Task, dtype: str) -> UserError:
    return UserError(
        f"audit: {task.weights.name} in {dtype} takes about {task.memory_mb(dtype, 0):,} MB, and "
        f"{task.device.name} has not so much free; audit where it fits (such as --device cpu), "
        "or a smaller model."
    )
