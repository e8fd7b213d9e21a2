"""The contract of a workload: everything the core asks of one, and nothing else.

A workload is a module (or any object) with the attributes of `Workload` that a package, featuremill
or another, registers as an entry point in the group `featuremill.workloads`. The core owns
planning, devices, batches, the journal, retries, merging, accounting and the report; a workload
knows what a record is and how to compute its values. What it may say of itself besides stands in
`featuremill.workload.optional`; readers of common files are in `featuremill.inputs`.
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
from featuremill.workload.optional import HasCheckpoints as HasCheckpoints
from featuremill.workload.optional import HasPrecisions as HasPrecisions
from featuremill.workload.optional import TakesPublished as TakesPublished
from featuremill.workload.optional import TellsMemory as TellsMemory
from featuremill.workload.optional import TellsWays as TellsWays
from featuremill.workload.optional import TellsWork as TellsWork
from featuremill.workload.optional import UnitWork as UnitWork
from featuremill.workload.optional import optional as optional

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT = "esm2"
"""The workload of a config that names none, and the one whose models `featuremill weights`
converts."""


class Record(NamedTuple):
    """One input record. `payload` is what gets computed; equal payloads are computed once."""

    id: str
    description: str
    payload: bytes
    source: str
    line: int
    """Where the record starts: a line of `source`, or its number in formats without lines."""
    reason: str = ""
    """Why the record is refused, as `reasons.LENGTH.reason("40,000 residues")` makes it (any other
    text is of the kind "other"); empty for a good one."""
    note: str = ""
    """What was fixed on the way in, such as "J read as X"; empty when nothing was."""
    length: int | None = None
    """How long it is, in the workload's LENGTH_UNIT; None: the payload's bytes."""


class Weights(NamedTuple):
    """What a workload loads, converted or as it is."""

    name: str
    path: Path
    """A file, or a folder."""
    sha256: str
    """Of the file or of all in the folder, and so of the values."""
    metadata: dict[str, str]
    """What the conversion told; of weights that are taken as they are, nothing."""


class WorkloadOptions(BaseModel):
    """Base of every workload's options: each field described, unknown keys refused, frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    EXECUTION: ClassVar[frozenset[str]] = frozenset()
    """Fields that say how to compute and not what: the recipe does not hold them."""
    PACKAGES: ClassVar[Mapping[str, str]] = {}
    """Modules that computing imports and a bare featuremill does not bring, each with what pip
    installs it by."""

    def delivers(self) -> set[Kind]:
        """Return the kinds of values that come out (`featuremill.store.formats.KINDS`)."""
        return {"pooled"}


class RecordFailed(Exception):  # noqa: N818  (no error: it is what `run` has to say of a record)
    """There is no way to compute a record: it gets a failed row, and the others their values.

    May be raised by `prepare`, `run` and `collect`, also for a batch of many: its records are then
    computed one by one, and the one for which this comes again is meant.
    """

    def __init__(self, kind: str, text: str = "") -> None:
        """`kind` names one of `featuremill.base.reasons.OF_RECORDS`, or of the workload's own
        REASONS; `text` is about the record.

        Raises:
            ValueError: when there is no such kind (and then the record fails for that: "error").
        """
        super().__init__(kind, text)
        self.kind = reasons.named(kind)

    def __str__(self) -> str:
        return str(self.args[1])


class Workload(Protocol):
    """What the core calls. Importing a workload costs nothing: heavy imports belong in `load`."""

    COST_UNIT: str
    """What `cost` counts, in the plural: tokens, residues."""
    VERSION: str
    """Bump it whenever the values change for the same input and options."""
    Options: type[Any]
    """A subclass of `WorkloadOptions`."""

    def records(self, inputs: Sequence[Path], options: Any) -> Iterator[Record]:
        """Stream the records of `inputs`, bad ones with a reason. CPU only."""

    def cost(self, payload: bytes, options: Any) -> int:
        """Return the work in `payload` (tokens, for a language model); at least 1."""

    def weights(self, options: Any) -> str | None:
        """Return the model whose weights the run needs (a name or a path), or None."""

    def resolve(self, options: Any, device: Device, weights: Weights | None) -> Any:
        """Return `options` with every "auto" settled; raise UserError for what cannot be done."""

    def schema(self, options: Any, weights: Weights | None) -> pa.Schema:
        """Return the columns of values that `collect` delivers."""

    def batch_cost(self, options: Any, device: Device) -> int:
        """Return the cost that one batch may hold on `device`."""

    def load(self, options: Any, devices: Sequence[Device], weights: Weights | None) -> Any:
        """Return the model, ready on the devices of one lease; mostly that is one.

        What goes on more slowly or otherwise than the user may expect is logged as a warning, under
        the logger "featuremill" or one below it: it is shown, and stands in receipt and report.
        What is wrong with the installation, and not with the device, is raised as WorkloadError.
        """

    def prepare(self, model: Any, payloads: Sequence[bytes], batch_cost: int) -> Any:
        """Return the host side of one batch; runs ahead of `run`, on a thread.

        `batch_cost` is what the batch may cost, and never less than its payloads do: to fill up to
        it keeps shapes, and with them the kernels that run, the same from batch to batch. It gets
        smaller where memory ran out.
        """

    def run(self, model: Any, batch: Any) -> Any:
        """Compute a batch; may return when the device has its orders and is still at work."""

    def collect(self, model: Any, result: Any) -> pa.RecordBatch:
        """Wait for a result of `run`; return one row a payload, in order, as `schema` says.

        A column `reason` behind them may say why rows have no values (None for the others): these
        failed, and nothing is computed again.

        Runs on a thread of its own, in the order of the batches, while the next one is computed.
        """


def refuse_without_packages(options: type[WorkloadOptions]) -> None:
    """Raise UserError where this Python lacks what is needed to compute; imports none of it."""
    for module, requirement in options.PACKAGES.items():
        if find_spec(module) is None:
            raise UserError(
                f"{module} is not installed in this Python ({sys.executable}), and nothing can be "
                f"computed without it; pip install '{requirement}'"
            )


REQUIRED = [name for name in (*Workload.__annotations__, *vars(Workload)) if name[0] != "_"]


def told(name: str, attribute: str) -> Any:
    """Return the optional attribute of the workload called `name`; the default of one that is not
    installed here."""
    try:
        return optional(find_workload(name), attribute)
    except (UserError, WorkloadError):
        return optional(None, attribute)


def know_reasons(name: str) -> None:
    """Know the kinds of reasons of the workload called `name`, where it is installed here."""
    with contextlib.suppress(UserError, WorkloadError):
        find_workload(name)


def workloads() -> list[str]:
    """Return the names of all workloads that are installed here, those of other packages last."""
    return [*entry_points.own(plugin_errors.GROUP), *entry_points.others(plugin_errors.GROUP)]


def find_workload(name: str) -> Workload:
    """Return the workload that a package registers as `name`."""
    point = entry_points.find(plugin_errors.GROUP, name)
    if point is None:
        known = ", ".join(workloads())
        raise UserError(f"workload: there is no workload {name!r}; known ones are {known}.")
    found = plugin_errors.loaded(point, REQUIRED)
    with plugin_errors.told(name, "REASONS"):
        reasons.learn(optional(found, "REASONS"))
    return cast(Workload, found)
