"""Draw a sample of proteins, compute it in fp32, then in each dtype, and compare the values.

Only one model is loaded at a time, so that every model that runs in fp32 can be audited. The fp32
values are kept in an unnamed temporary file, which ends with the process.

Shape legend: V vectors of one protein in one column (its residues, or one pooled), D width.
"""

from __future__ import annotations

import hashlib
import heapq
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.kit import reasons
from featuremill.kit.arrays import matrices
from featuremill.kit.errors import UserError, is_out_of_memory
from featuremill.kit.processes import free_memory_mb
from featuremill.kit.text import Progress
from featuremill.workload import (
    Device,
    EstimatesMemory,
    Kind,
    Record,
    Weights,
    Workload,
    compute,
    optional,
    plugin_errors,
)
from featuremill.workload.compute import values_in_batches
from featuremill.workload.outputs import kind_of


@runtime_checkable
class IsAudited(Protocol):
    """A workload whose number types can be compared. An optional `ONE_TOKEN` has the prefixes of
    columns with values of a single token. These are less exact in 16 bits than means over tokens,
    so they have a wider bound."""

    PRECISION: str

    def audited(self, options: Any, precision: str) -> Any:
        """Return resolved `options` in this precision that deliver all vectors unrounded. Each
        record must have at least one vector in a column."""

    def num_vectors(self, payload: bytes, options: Any) -> int:
        """Return the largest number of vectors of a record in one column of `audited` options."""


LONGEST_SHARE = 10
"""1/LONGEST_SHARE of the sample are the longest proteins, which show errors of positions first."""
REFERENCE = "fp32"
FLOAT_BYTES = 4
VALUES_BYTES = 2**28
"""The largest size of a batch's values; more or wider layers make smaller batches."""
NUM_COPIES = 4
"""Copies of a batch's values in memory: computed and expected, and temporary copies."""
REMEDIES = {
    reasons.NOT_FINITE: "there is nothing to compare with; check the weights of {weights}",
    reasons.OUT_OF_MEMORY: "{shorter}take a device with more memory",
}
"""The remedy for a protein that cannot be computed, by the kind of its reason."""
Matrix = npt.NDArray[np.float32]
log = logging.getLogger("featuremill.audit")


class Protein(NamedTuple):
    """A distinct sequence, with the alphabetically first of its ids."""

    id: str
    source: str
    line: int
    payload: bytes
    sha256: bytes

    @property
    def position(self) -> str:
        return f"{self.source}:{self.line}"


class Sample(NamedTuple):
    """The proteins to compute, sorted by sha256, and counts of the input."""

    proteins: list[Protein]
    records: int
    refused: Counter[str]
    """The number of refused records by reason."""
    first_refused: dict[str, str]
    """The position (`path:line`) of the first refused record by reason."""


def draw(records: Iterable[Record], size: int) -> Sample:
    """Read all `records` and return a sample of at most `size` distinct sequences.

    The sample does not depend on the order of the records. Memory holds about 2 * size proteins.
    """
    num_records, refused, first_refused = 0, Counter[str](), dict[str, str]()
    longest, by_hash = _Lowest(min(size, max(1, size // LONGEST_SHARE))), _Lowest(size)
    for record in records:
        num_records += 1
        if record.reason:
            head = reasons.head_of(record.reason)
            refused[head] += 1
            first_refused.setdefault(head, f"{record.source}:{record.line}")
            continue
        payload = record.payload
        digest = hashlib.sha256(payload).digest()
        protein = Protein(record.id, record.source, record.line, payload, digest)
        number = int.from_bytes(digest)
        longest.offer((-len(payload), number), protein)
        by_hash.offer((number,), protein)
    chosen = dict(longest.kept)
    for digest in sorted(by_hash.kept):
        if len(chosen) < size:
            chosen.setdefault(digest, by_hash.kept[digest])
    proteins = [chosen[digest] for digest in sorted(chosen)]
    return Sample(proteins, num_records, refused, first_refused)


class _Lowest:
    """The `size` distinct proteins with the lowest rank."""

    def __init__(self, size: int) -> None:
        self.kept: dict[bytes, Protein] = {}
        self._size = size
        self._heap: list[tuple[tuple[int, ...], bytes]] = []

    def offer(self, rank: tuple[int, ...], protein: Protein) -> None:
        if known := self.kept.get(protein.sha256):
            self.kept[protein.sha256] = min(known, protein)
            return
        # The top of the heap has the lowest negated rank, so it is removed first.
        heapq.heappush(self._heap, (tuple(-number for number in rank), protein.sha256))
        self.kept[protein.sha256] = protein
        if len(self._heap) > self._size:
            del self.kept[heapq.heappop(self._heap)[1]]


class Task(NamedTuple):
    """The workload, options, dtypes and device of an audit."""

    workload: Workload
    options: Any
    """The resolved options; their dtype is that of a run on this machine."""
    dtypes: tuple[str, ...]
    device: Device
    weights: Weights
    name: str = ""

    @property
    def precisions(self) -> IsAudited:
        """`workload` as IsAudited."""
        assert isinstance(self.workload, IsAudited)
        return self.workload

    def options_in(self, dtype: str) -> Any:
        """Return the options of the audit in `dtype`: unrounded values of all residues."""
        with plugin_errors.attributed_to(self.name, "audited"):
            return self.precisions.audited(self.options, dtype)

    def costs(self, proteins: Sequence[Protein]) -> Sequence[int]:
        """Return the cost of each protein."""
        payloads = [protein.payload for protein in proteins]
        return plugin_errors.costs_of(self.name, self.workload, payloads, self.options)

    def num_residues(self, protein: Protein) -> int:
        """Return the number of residues of a protein with a vector."""
        with plugin_errors.attributed_to(self.name, "num_vectors"):
            return self.precisions.num_vectors(protein.payload, self.options)

    @property
    def schema(self) -> pa.Schema:
        """The columns that are computed."""
        options = self.options_in(REFERENCE)
        return plugin_errors.schema_of(self.name, self.workload, options, self.weights, ())

    @property
    def kinds(self) -> dict[str, Kind]:
        """The kind of values of each column, by name."""
        return {column.name: kind_of(column.type) for column in self.schema}

    @property
    def values_bytes(self) -> int:
        """The size in bytes of one residue's values in fp32."""
        values = self.schema
        lists = [column.type for column in values if kind_of(column.type) == "per_residue"]
        pooled = [column.type for column in values if kind_of(column.type) == "pooled"]
        return max(1, sum(map(_width, lists or pooled))) * FLOAT_BYTES

    @property
    def budget(self) -> int:
        """The cost of a batch: that of a run, or less if its values exceed VALUES_BYTES."""
        fitting = max(1, VALUES_BYTES // self.values_bytes)
        usual = plugin_errors.batch_cost_of(self.name, self.workload, self.options, self.device)
        return min(usual, fitting)

    def memory_mb(self, dtype: str, batch_cost: int) -> int:
        """Return the peak memory in MiB of the model in `dtype`; 0 if there is no estimate."""
        if not isinstance(self.workload, EstimatesMemory):
            return 0
        options = self.options_in(dtype)
        return self.workload.memory_mb(options, self.device, self.weights, batch_cost)


def check_room(task: Task, proteins: Sequence[Protein]) -> None:
    """Raise UserError if the sample does not fit in memory or the folder for temporary files.

    The memory of a GPU is not checked. One model is loaded at a time, so the largest counts.
    """
    batch_cost = max(task.budget, *task.costs(proteins))
    needed_mb = NUM_COPIES * batch_cost * task.values_bytes // 2**20
    if task.device.kind == "cpu":
        needed_mb += max(task.memory_mb(dtype, batch_cost) for dtype in (REFERENCE, *task.dtypes))
    if needed_mb > (free_mb := free_memory_mb()):
        option = optional(task.workload, "REMEDIES").get("smaller batches")
        lower = f"lower {option} in the config, " if option else ""
        raise UserError(
            f"audit: {task.weights.name} and these proteins take about {needed_mb:,} MB of memory, "
            f"and {free_mb:,} MB are free; {lower}drop layers, "
            "or take a machine with more."
        )
    folder = tempfile.gettempdir()
    needed = sum(map(task.num_residues, proteins)) * task.values_bytes / 1e9
    if needed > (free := shutil.disk_usage(folder).free / 1e9):
        raise UserError(
            f"{folder}: the sample's values in fp32 take {needed:.1f} GB, and {free:.1f} GB are "
            "free here; set TMPDIR to another folder, or lower --sample."
        )


class Compared(NamedTuple):
    """The comparison of a protein's vectors in a column with the reference."""

    row: int
    """The index of the protein in the sample."""
    column: str
    is_finite: bool
    """Whether all values are finite; otherwise the next fields are meaningless."""
    num_vectors: int
    cosine_sum: float
    cosine_min: float
    relative_l2: float


def compared(row: int, column: str, actual_VD: Matrix, expected_VD: Matrix) -> Compared:
    """Compare a protein's vectors with those of the reference."""
    if not np.isfinite(actual_VD).all():
        return Compared(row, column, False, len(actual_VD), 0.0, -1.0, np.inf)
    cosines, differences = _cosines(actual_VD, expected_VD), actual_VD - expected_VD
    distance = float(np.sqrt(_sums(differences, differences).sum()))
    size = float(np.sqrt(_sums(expected_VD, expected_VD).sum()))
    l2 = distance / max(size, float(np.finfo(np.float32).tiny))
    sums = len(actual_VD), float(cosines.sum()), float(cosines.min())
    return Compared(row, column, True, *sums, l2)


def _cosines(values: Matrix, expected: Matrix) -> npt.NDArray[np.float64]:
    """Return the cosine of each row with the same row of `expected`, summed in fp64."""
    products = _sums(values, expected)
    norms = np.sqrt(_sums(values, values) * _sums(expected, expected))
    same = (values == expected).all(1).astype(np.float64)  # the cosine of a zero vector
    cosines: npt.NDArray[np.float64] = np.divide(products, norms, out=same, where=norms > 0)
    return np.minimum(cosines, 1.0, out=cosines)


def _sums(first: Matrix, other: Matrix) -> npt.NDArray[np.float64]:
    sums: npt.NDArray[np.float64] = np.einsum("rd,rd->r", first, other, dtype=np.float64)
    return sums


class Measured(NamedTuple):
    """The results of one dtype, or of the reference."""

    dtype: str
    backend: str
    compared: list[Compared]
    """The comparisons by protein and column; empty for the reference itself."""


Take = Callable[[int, str, Matrix], None]
"""Called with the row in the sample, the column and its vectors, shape (vectors, width)."""


def measure(task: Task, proteins: Sequence[Protein]) -> list[Measured]:
    """Return the results of the reference, then of each dtype of `task`."""
    offsets: dict[tuple[int, str], int] = {}
    with tempfile.TemporaryFile() as spool:

        def keep(row: int, column: str, values_VD: Matrix) -> None:
            offsets[row, column] = spool.tell()
            spool.write(values_VD.tobytes())

        measured = [Measured(REFERENCE, _compute(task, proteins, REFERENCE, keep), [])]
        for dtype in task.dtypes:
            results: list[Compared] = []

            def compare(row: int, column: str, values_VD: Matrix, results: Any = results) -> None:
                spool.seek(offsets[row, column])
                expected = np.frombuffer(spool.read(values_VD.nbytes), np.float32)
                results.append(compared(row, column, values_VD, expected.reshape(values_VD.shape)))

            measured.append(Measured(dtype, _compute(task, proteins, dtype, compare), results))
    return measured


def _compute(task: Task, proteins: Sequence[Protein], dtype: str, take: Take) -> str:
    """Compute in `dtype`, pass the values to `take`, and return the compute backends."""
    options = task.options_in(dtype)
    try:
        with plugin_errors.attributed_to(task.name, "load"):
            model: Any = task.workload.load(options, [task.device], task.weights)
    except Exception as error:
        if is_out_of_memory(error):
            raise UserError(
                f"audit: {task.weights.name} in {dtype} takes about {task.memory_mb(dtype, 0):,} "
                f"MB, and {task.device.name} has not so much free; audit where it fits (such as "
                "--device cpu), or a smaller model."
            ) from None
        raise
    backend, costs = str(getattr(model, "backend", "")), task.costs(proteins)
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
        name=task.name,
    ):
        rows = [row for (row,) in places]  # no two proteins of a sample are equal
        for name, column in zip(values.schema.names, values.columns, strict=True):
            if kind_of(column.type) == "table":  # tables have no cosine
                continue
            for row, own in zip(rows, matrices(column), strict=True):
                values_VD = own.astype(np.float32, copy=False).reshape(-1, _width(column.type))
                take(row, name, values_VD)
        done += sum(costs[row] for row in rows)
        shown.at(done, sum(costs))
    del model
    compute.free_device_memory()
    return backend


def _width(kind: pa.DataType) -> int:
    """Return the length of a vector in a column of this type; 1 for numbers of residues."""
    inner = kind if pa.types.is_fixed_size_list(kind) else kind.value_type
    return int(inner.list_size) if pa.types.is_fixed_size_list(inner) else 1


def _refuse(task: Task, dtype: str, protein: Protein, reason: str) -> None:
    shorter = optional(task.workload, "REMEDIES").get("shorter records")
    remedy = REMEDIES.get(reasons.kind_of(reason), "leave it out").format(
        weights=task.weights.name, shorter=f"set {shorter}, or " if shorter else ""
    )
    raise UserError(
        f"{protein.position}: {protein.id} ({len(protein.payload):,} residues) cannot be computed "
        f"in {dtype} on {task.device.name}: {reason}; {remedy}."
    )
