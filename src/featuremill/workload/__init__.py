"""The contract of a workload.

A workload is a module (or any object) with the attributes of `Workload`. Its package registers it
as an entry point in the group `featuremill.workloads`. The core does planning, devices, batches,
the journal, retries, merging, accounting and the report. A workload defines its records and
computes their values. Optional attributes are in `featuremill.workload.optional`; readers of common
files are in `featuremill.inputs`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, cast

from pydantic import BaseModel, ConfigDict

from featuremill.base import entry_points, reasons
from featuremill.base.errors import UserError, WorkloadError
from featuremill.lease.devices import BF16_CAPABILITY as BF16_CAPABILITY
from featuremill.lease.devices import Device as Device
from featuremill.store.formats import Kind as Kind
from featuremill.workload import plugin_errors
from featuremill.workload.option_files import OptionFile as OptionFile
from featuremill.workload.option_files import OptionFolder as OptionFolder
from featuremill.workload.option_files import OptionWeights as OptionWeights
from featuremill.workload.optional import Cautions as Cautions
from featuremill.workload.optional import Checkpoint as Checkpoint
from featuremill.workload.optional import Checkpoints as Checkpoints
from featuremill.workload.optional import Converted as Converted
from featuremill.workload.optional import DrawsFigures as DrawsFigures
from featuremill.workload.optional import EstimatesMemory as EstimatesMemory
from featuremill.workload.optional import EstimatesWork as EstimatesWork
from featuremill.workload.optional import HasCheckpoints as HasCheckpoints
from featuremill.workload.optional import HasPrecisions as HasPrecisions
from featuremill.workload.optional import ReportsWays as ReportsWays
from featuremill.workload.optional import StartsAhead as StartsAhead
from featuremill.workload.optional import TakesObjects as TakesObjects
from featuremill.workload.optional import TakesPublished as TakesPublished
from featuremill.workload.optional import UnitWork as UnitWork
from featuremill.workload.optional import optional as optional

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT = "esm2"
"""The workload of a config without `workload`, and of `featuremill weights`."""


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
    """The weights that a workload loads, converted or as they are."""

    name: str
    path: Path
    """A file, or a folder."""
    sha256: str
    """The digest of the file, or of all files in the folder."""
    metadata: dict[str, str]
    """Metadata of the conversion; empty for weights that are not converted."""


class WorkloadOptions(BaseModel):
    """Base of every workload's options: each field described, unknown keys refused, frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    EXECUTION: ClassVar[frozenset[str]] = frozenset()
    """Fields that change how values are computed but not the values. The recipe leaves them out."""
    PACKAGES: ClassVar[Mapping[str, str]] = {}
    """Modules that computing imports and that featuremill's own dependencies lack, each with its
    pip requirement."""

    def delivers(self) -> set[Kind]:
        """Return the kinds of values that come out (`featuremill.store.formats.KINDS`)."""
        return {"pooled"}


class RecordFailed(Exception):  # noqa: N818  (no error: it is what `run` has to say of a record)
    """A record cannot be computed: it becomes a failed row, and the others get their values.

    `prepare`, `run` and `collect` may raise it, also for a batch of many. The records of that batch
    are then computed one by one; the one that raises it again fails.
    """

    def __init__(self, kind: str, text: str = "") -> None:
        """`kind` is a code of `featuremill.base.reasons.OF_RECORDS` or of the workload's own
        REASONS; `text` is about the record.

        Raises:
            ValueError: there is no such code. The record then fails with the code "error".
        """
        super().__init__(kind, text)
        self.kind = reasons.named(kind)

    def __str__(self) -> str:
        return str(self.args[1])


class Workload(Protocol):
    """What the core calls. Importing a workload must be cheap: import heavy packages in `load`."""

    COST_UNIT: str
    """What `cost` counts, in the plural: tokens, residues."""
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
        """Return `options` with every "auto" replaced; raise UserError for what the device cannot
        do."""

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
        """Return the host side of one batch. Called ahead of `run`, on a thread of its own.

        `batch_cost` is at least the cost of the payloads. Padding to it keeps shapes, and so the
        kernels, the same in all batches. It shrinks when memory runs out.
        """

    def run(self, model: Any, batch: Any) -> Any:
        """Compute a batch. It may return before the device has finished."""

    def collect(self, model: Any, result: Any) -> pa.RecordBatch:
        """Wait for a result of `run`; return one row for each payload, in order, with the columns
        of `schema`.

        An extra last column `reason` may hold why a row has no values (None for the others). These
        rows fail and are not computed again.

        Called in the order of the batches, on a thread of its own, while the next batch is
        computed.
        """


def refuse_without_packages(options: type[WorkloadOptions]) -> None:
    """Raise UserError if a package that computing needs is not installed; imports none of them."""
    for module, requirement in options.PACKAGES.items():
        if find_spec(module) is None:
            raise UserError(
                f"{module} is not installed in this Python ({sys.executable}), and nothing can be "
                f"computed without it; pip install '{requirement}'"
            )


REQUIRED = [name for name in (*Workload.__annotations__, *vars(Workload)) if name[0] != "_"]


def optional_of(name: str, attribute: str) -> Any:
    """Return the optional attribute of the workload called `name`, or the default if the workload
    is not installed."""
    try:
        return optional(find_workload(name), attribute)
    except (UserError, WorkloadError):
        return optional(None, attribute)


def know_reasons(name: str) -> None:
    """Register the reasons of the workload called `name`, if it is installed."""
    with contextlib.suppress(UserError, WorkloadError):
        find_workload(name)


def workloads() -> list[str]:
    """Return the names of all installed workloads; those of other packages come last."""
    return [*entry_points.own(plugin_errors.GROUP), *entry_points.others(plugin_errors.GROUP)]


def find_workload(name: str) -> Workload:
    """Return the workload that is registered as `name`."""
    point = entry_points.find(plugin_errors.GROUP, name)
    if point is None:
        known = ", ".join(workloads())
        raise UserError(f"workload: there is no workload {name!r}; known ones are {known}.")
    workload = plugin_errors.loaded(point, REQUIRED)
    with plugin_errors.attributed_to(name, "REASONS"):
        reasons.learn(optional(workload, "REASONS"))
    return cast(Workload, workload)
