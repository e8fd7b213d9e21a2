"""Compute the sample in fp32, then in each dtype, and compare; memory holds a batch, not all.

Always one model after the other, never two at once: then whatever runs in fp32 at all can be
audited, a 3B on a small GPU too. The price is a temporary file with the reference's values, without
a name, so that nothing of it outlives the process.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.base import faults
from featuremill.base.errors import UserError
from featuremill.base.progress import Progress
from featuremill.doctor.audit.figures import Float16Figures, LayerFigures, Matrix
from featuremill.doctor.audit.sample import Protein
from featuremill.doctor.audit.task import REFERENCE, Task
from featuremill.extract import compute
from featuremill.extract.batches import make_batches

Pooled = dict[tuple[int, str], Matrix]
"""For each layer and pool the vectors of the sample, shape (proteins, width)."""
log = logging.getLogger("featuremill.audit")


@dataclass
class Found:
    """What one dtype came to, or the reference."""

    dtype: str
    backend: str
    pooled: Pooled
    layers: dict[int, LayerFigures]
    """Against the reference; of itself there are none."""
    float16: dict[int, Float16Figures]
    """Of the reference only."""


def measure(task: Task, proteins: Sequence[Protein]) -> list[Found]:
    """Return all figures of `task` on `proteins`: of the reference, then of each dtype."""
    with tempfile.TemporaryFile() as spool:
        found = [_reference(task, proteins, spool)]
        for dtype in task.dtypes:
            spool.seek(0)
            found.append(_compared(task, proteins, dtype, spool))
    return found


def _reference(task: Task, proteins: Sequence[Protein], spool: IO[bytes]) -> Found:
    """Compute in fp32 and write the batches to `spool`."""
    engine = _Engine(task, REFERENCE)
    found = engine.nothing_yet(len(proteins))
    is_stored_narrow = task.options.per_residue and task.options.output_dtype == "float16"
    with contextlib.ExitStack() as stack:
        writer = None
        for rows, values in engine.batches(proteins):
            for index in np.flatnonzero(compute.not_finite(values)):
                protein = proteins[rows[index]]
                raise UserError(
                    f"{protein.place}: {protein.id} has values that are not finite in fp32, so "
                    f"there is nothing to compare with; check the weights of {task.weights.name}."
                )
            writer = writer or stack.enter_context(pa.ipc.new_stream(spool, values.schema))
            writer.write_batch(values)
            _keep_pooled(found.pooled, rows, values)
            for layer, figures in found.float16.items() if is_stored_narrow else ():
                for row, residues_RD in zip(rows, _residues(values, layer), strict=True):
                    figures.add(row, residues_RD)
    return found


def _compared(task: Task, proteins: Sequence[Protein], dtype: str, spool: IO[bytes]) -> Found:
    """Compute in `dtype` and compare with the batches in `spool`."""
    engine = _Engine(task, dtype)
    found = engine.nothing_yet(len(proteins))
    reference = iter(pa.ipc.open_stream(spool))
    for rows, values in engine.batches(proteins):
        expected = next(reference)
        _keep_pooled(found.pooled, rows, values)
        for layer, figures in found.layers.items():
            each = zip(rows, _residues(values, layer), _residues(expected, layer), strict=True)
            for row, found_RD, expected_RD in each:
                figures.add(row, found_RD, expected_RD)
    for (layer, _), vectors_ND in found.pooled.items():
        bad = np.flatnonzero(~np.isfinite(vectors_ND).all(1)).tolist()
        found.layers[layer].bad_rows.update(bad)
    return found


def _keep_pooled(pooled: Pooled, rows: Sequence[int], values: pa.RecordBatch) -> None:
    for (layer, pool), vectors_ND in pooled.items():
        column = values.column(f"{pool}_layer_{layer}")
        vectors_ND[rows] = column.flatten().to_numpy().reshape(len(rows), -1)


def _residues(values: pa.RecordBatch, layer: int) -> Iterator[Matrix]:
    """Yield each protein's vectors per residue, shape (residues, width), without copying."""
    column = values.column(f"residues_layer_{layer}")
    vectors = column.values
    matrix: npt.NDArray[Any] = vectors.flatten().to_numpy().reshape(-1, vectors.type.list_size)
    for start, end in itertools.pairwise(column.offsets.to_numpy()):
        yield matrix[start:end]


class _Engine:
    """The model in one dtype; it gives its memory back when its batches are done."""

    def __init__(self, task: Task, dtype: str) -> None:
        self._task = task
        self._dtype = dtype
        self._options = task.options_in(dtype)
        try:
            self._model: Any = task.workload.load(self._options, [task.device], task.weights)
        except Exception as error:
            if faults.is_out_of_memory(error):
                raise self._no_room() from None
            raise

    def nothing_yet(self, num_proteins: int) -> Found:
        """Return room for what the sample comes to."""
        options, shape = self._options, (num_proteins, self._task.width)
        pooled = {
            (layer, pool): np.empty(shape, np.float32)
            for layer in options.layers
            for pool in options.pools
        }
        return Found(
            self._dtype,
            str(getattr(self._model, "backend", "")),
            pooled,
            {layer: LayerFigures() for layer in options.layers},
            {layer: Float16Figures() for layer in options.layers},
        )

    def batches(self, proteins: Sequence[Protein]) -> Iterator[tuple[list[int], pa.RecordBatch]]:
        """Yield the values of all proteins, the same rows together in every dtype."""
        costs = [self._task.cost(protein.payload) for protein in proteins]
        shown, done = Progress(log, self._dtype, self._task.workload.COST_UNIT), 0
        for rows in make_batches(costs, self._task.budget):
            yield rows, self._values([proteins[row] for row in rows], self._task.budget)
            done += sum(costs[row] for row in rows)
            shown.at(done, sum(costs))
        self._model = None
        compute.free_device_memory()

    def _values(self, proteins: Sequence[Protein], budget: int) -> pa.RecordBatch:
        """Compute a batch, or its halves where the device has no memory for the whole."""
        payloads = [protein.payload for protein in proteins]
        cost = sum(map(self._task.cost, payloads))
        try:
            return compute.values_of(self._task.workload, self._model, payloads, max(cost, budget))
        except Exception as error:
            if not faults.is_out_of_memory(error):
                raise
        compute.free_device_memory()  # out of the except block, whose error holds on to tensors
        if len(proteins) == 1 and budget <= cost:
            raise self._no_room(proteins[0])
        half = -(-len(proteins) // 2)  # and half the budget: a GPU's batches are filled up to it
        pieces = [piece for piece in (proteins[:half], proteins[half:]) if piece]
        return pa.concat_batches([self._values(piece, budget // 2) for piece in pieces])

    def _no_room(self, protein: Protein | None = None) -> UserError:
        device, name = self._task.device, self._task.weights.name
        if protein:
            length = len(protein.payload)
            return UserError(
                f"{protein.place}: {device.name} has not enough memory for {protein.id} "
                f"({length:,} residues) with {name} in {self._dtype}; set long: truncate, "
                "or take a device with more memory."
            )
        needed_mb = self._task.memory_mb(self._dtype, 0)
        return UserError(
            f"audit: {name} in {self._dtype} takes about {needed_mb:,} MB, and {device.name} has "
            "not so much free; audit where it fits (such as --device cpu), or a smaller model."
        )
