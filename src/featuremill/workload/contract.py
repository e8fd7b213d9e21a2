"""The types of the contract of a workload: `Workload`, `WorkloadOptions`, `Record`, `Weights`.

Import them from `featuremill.workload`. This module does not find workloads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from featuremill.base import reasons
from featuremill.base.described import Described

if TYPE_CHECKING:
    import pyarrow as pa

    from featuremill.base.devices import Device
    from featuremill.store.formats import Kind


class Record(NamedTuple):
    """One input record. Records with equal `payload` are computed once."""

    id: str
    description: str
    payload: bytes
    source: str
    line: int
    """Where the record starts: a line of `source`, or its number in formats without lines."""
    reason: str = ""
    """Why the record is refused, made by `reasons.LENGTH.reason("40,000 residues")`; empty for a
    good record. Any other text has the code "other"."""
    note: str = ""
    """What the reader changed, such as "J read as X"; empty when nothing was changed."""
    length: int | None = None
    """The length in the workload's LENGTH_UNIT; None: the number of bytes of the payload."""


class Weights(NamedTuple):
    """The weights that a workload loads, converted or unconverted."""

    name: str
    path: Path
    """A file, or a folder."""
    sha256: str
    """The digest of the file, or of all files in the folder."""
    metadata: dict[str, str]
    """Metadata of the conversion; empty for weights that are not converted."""


class WorkloadOptions(Described):
    """Base of every workload's options: each field described, unknown keys refused, frozen."""

    EXECUTION: ClassVar[frozenset[str]] = frozenset()
    """Fields that change how values are computed but not the values. The recipe leaves them out."""
    PACKAGES: ClassVar[Mapping[str, str]] = {}
    """Modules that computing imports and featuremill lacks, with their pip requirements."""

    def delivers(self) -> set[Kind]:
        """Return the kinds of the values (`featuremill.store.formats.KINDS`)."""
        return {"pooled"}

    def check_files(self) -> None:
        """Raise UserError if a file that an option names cannot be used. This runs before the first
        job, perhaps without PACKAGES."""

    def _refuse_idle(self, name: str, is_idle: bool, because: str) -> None:
        if is_idle and getattr(self, name) != type(self).model_fields[name].default:
            raise ValueError(f"{name} has no effect with {because}; leave it out")


class RecordFailed(Exception):  # noqa: N818  (a result of a record, not an error)
    """A record cannot be computed: it becomes a failed row, and the others get their values.

    `prepare`, `run` and `collect` may raise it, also for a batch of many. The records of that batch
    are then computed one by one; the one that raises it again fails.
    """

    def __init__(self, kind: str, text: str = "") -> None:
        """`kind` is a code of `featuremill.base.reasons.OF_RECORDS` or of the workload's own
        REASONS; `text` is about the record.

        Raises:
            ValueError: if there is no such code. The record then fails with the code "error".
        """
        super().__init__(kind, text)
        self.kind = reasons.named(kind)

    def __str__(self) -> str:
        return str(self.args[1])


class Workload(Protocol):
    """The required attributes. Import heavy packages in `load`, not in the module."""

    COST_UNIT: str
    """The unit of `cost`, in the plural: tokens, residues."""
    VERSION: str
    """Raise it whenever the same input and options give other values."""
    Options: type[Any]
    """A subclass of `WorkloadOptions`."""

    def records(self, inputs: Sequence[Path], options: Any) -> Iterator[Record]:
        """Stream the records of `inputs`; bad ones have a reason. Runs without a device."""

    def cost(self, payload: bytes, options: Any) -> int:
        """Return the work in `payload`, in COST_UNIT; at least 1."""

    def weights(self, options: Any) -> str | None:
        """Return the model whose weights the run needs (a name or a path), or None."""

    def resolve(self, options: Any, device: Device, weights: Weights | None) -> Any:
        """Return `options` with every "auto" replaced; raise UserError if the device lacks it."""

    def schema(self, options: Any, weights: Weights | None) -> pa.Schema:
        """Return the columns of values that `collect` returns."""

    def batch_cost(self, options: Any, device: Device) -> int:
        """Return the highest cost of one batch on `device`."""

    def load(self, options: Any, devices: Sequence[Device], weights: Weights | None) -> Any:
        """Return the model, ready on the devices of one lease (usually one).

        Log a warning for a slower or other method than the user expects, with the logger
        "featuremill" or one below it. The warning appears on the screen, in the receipt and in the
        report. Raise WorkloadError for faults of the installation.
        """

    def prepare(self, model: Any, payloads: Sequence[bytes], batch_cost: int) -> Any:
        """Return the inputs of a batch on the host. Called before `run`, on a thread of its own.

        `batch_cost` is at least the cost of the payloads. Padding to it keeps shapes, and so the
        kernels, the same in all batches. It shrinks when memory runs out.
        """

    def run(self, model: Any, batch: Any) -> Any:
        """Compute a batch. It may return before the device has finished."""

    def collect(self, model: Any, result: Any) -> pa.RecordBatch:
        """Wait for a result of `run`; return one row for each payload, in order, with the columns
        of `schema`.

        An extra last column `reason` may contain the reason for a row without values (None for the
        others). Such rows fail and are not computed again.

        Called in the order of the batches, on a thread of its own, while the next batch is
        computed.
        """
