"""The contract of a workload: everything the core asks of one, and nothing else.

A workload is a module (or any object) with the attributes of `Workload`. The built-in ones stand in
`featuremill.workloads`; others register an entry point in a group of that name. The core owns
planning, devices, batches, the journal, retries, merging, accounting and the report; a workload
knows what a record is and how to compute its values.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    cast,
    runtime_checkable,
)

from pydantic import BaseModel, ConfigDict, Field

from featuremill.base import reasons
from featuremill.base.errors import UserError
from featuremill.lease.devices import BF16_CAPABILITY as BF16_CAPABILITY
from featuremill.lease.devices import Device as Device

if TYPE_CHECKING:
    import pyarrow as pa

BUILT_IN = ("composition", "esm2")
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
    """What was mended on the way in, such as "J read as X"; empty when nothing was."""


class Weights(NamedTuple):
    """Converted weights: what a workload loads."""

    name: str
    path: Path
    sha256: str
    """Of the file, and so of the values: their conversion always gives the same bytes."""
    metadata: dict[str, str]
    """num_layers, embed_dim, attention_heads, dtype, and license where it is known."""


class Checkpoint(NamedTuple):
    """A checkpoint to be converted."""

    kind: Literal["bundled", "published", "local"]
    name: str
    location: str
    """The path or URL that it is known by."""
    path: Path
    """The file itself; of a published model, where it is or will be downloaded to."""


class Converted(NamedTuple):
    """What a checkpoint became."""

    name: str
    """Part of the recipe: it must not depend on where a file lies or on what somebody called it."""
    sha256: str
    metadata: dict[str, str]
    """As in `Weights`."""


class PathOption(NamedTuple):
    """Marks the type of an option that names a file or a folder."""

    is_folder: bool
    is_weights: bool = False


OptionFile = Annotated[str, Field(min_length=1), PathOption(is_folder=False)]
"""Type of an option that names a file, such as a vocabulary: what is in it is part of the recipe,
and its path is not. `OptionFile | None` where it may be left out. Read it in `load`."""
OptionFolder = Annotated[str, Field(min_length=1), PathOption(is_folder=True)]
"""The same for a folder; files and folders in it whose names begin with a dot do not count."""


OptionWeights = Annotated[str, Field(min_length=1), PathOption(False, is_weights=True)]
"""Type of the option whose path `weights` returns, where they are taken as they are."""


class WorkloadOptions(BaseModel):
    """Base of every workload's options: each field described, unknown keys refused, frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    EXECUTION: ClassVar[frozenset[str]] = frozenset()
    """Fields that say how to compute and not what: the recipe does not hold them."""
    PACKAGES: ClassVar[Mapping[str, str]] = {}
    """Modules that computing imports and a bare featuremill does not bring, each with what pip
    installs it by."""

    def delivers(self) -> set[Literal["pooled", "per_residue"]]:
        """Return what comes out: vectors of a whole record, of each of its residues, or both."""
        return {"pooled"}


class RecordFailed(Exception):  # noqa: N818  (no error: it is what `run` has to say of a record)
    """There is no way to compute a record: it gets a failed row, and the others their values.

    May be raised by `prepare`, `run` and `collect`, also for a batch of many: its records are then
    computed one by one, and the one for which this comes again is meant.
    """

    def __init__(self, kind: str, text: str = "") -> None:
        """`kind` names one of `featuremill.base.reasons.OF_RECORDS`; `text` is about the record.

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

        Runs on a thread of its own, in the order of the batches, while the next one is computed.
        """


class Checkpoints(Protocol):
    """The models that a workload's `weights` may name, and how their checkpoints are converted."""

    NUMBERS: Sequence[str]
    """Keys of `metadata` that are whole numbers in that of every model."""

    def is_path(self, model: str) -> bool:
        """Tell whether `model` is the path of a checkpoint and not a name."""

    def name_of(self, model: str) -> str:
        """Return the name under which `weights/<name>.json` stands for `model`; looks at no file.

        Raises:
            UserError: there is no such model.
        """

    def refuse_missing(self, model: str) -> None:
        """Raise UserError where `model` is the path of a checkpoint that is not there."""

    def locate(self, model: str) -> Checkpoint:
        """Return where the checkpoint of `model` is or is to come from."""

    def convert(self, checkpoint: Checkpoint, path: Path) -> Converted:
        """Write the weights to `path`, always the same bytes; fetch a published checkpoint first
        where it is not here."""


@runtime_checkable
class HasCheckpoints(Protocol):
    """What a workload may offer besides: `isinstance(workload, HasCheckpoints)` asks for it."""

    CHECKPOINTS: Checkpoints


@runtime_checkable
class TellsMemory(Protocol):
    """What a workload may offer besides: `isinstance(workload, TellsMemory)` asks whether it does.

    doctor, audit and estimate say nothing about the memory of one that does not. Imports no torch,
    but where a checkpoint has to be looked into.
    """

    def weights_ahead(self, options: Any) -> Weights:
        """Return what is known of the model before its weights are here: their name and metadata,
        with an empty path and digest; raise UserError where nothing is."""

    def weights_mb(self, weights: Weights) -> float:
        """Return the size of the weights in MiB, by their metadata alone."""

    def memory_mb(self, options: Any, device: Device, weights: Weights, batch_cost: int) -> int:
        """Return the estimated peak of a job in MiB: of a GPU's memory, or of the host's on a CPU.

        `options` are resolved ones, of `weights` only the metadata count, and `batch_cost` is what
        a batch may cost.
        """


@runtime_checkable
class TellsWays(Protocol):
    """What a workload may offer besides, for doctor: by what it would compute on a device."""

    WAYS: Sequence[str]
    """What `ways` tells of: "dtype", then the operations."""

    def ways(self, device: Device, weights: Weights | None) -> Mapping[str, str]:
        """Return, for each of `WAYS`, what would compute it on `device`: found out as a load does,
        with the same warnings. `weights` give a shape (metadata only), None stands for a usual one.
        Called in a process of its own, which sees that device only.

        Raises:
            WorkloadError: no way to compute an operation is right.
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


def find_workload(name: str) -> Workload:
    """Return the workload called `name`, built in or registered by another package."""
    if name in BUILT_IN:
        return cast(Workload, import_module(f"featuremill.workloads.{name}"))
    registered = {point.name: point for point in entry_points(group="featuremill.workloads")}
    if name not in registered:
        known = ", ".join([*BUILT_IN, *sorted(registered)])
        raise UserError(f"workload: there is no workload {name!r}; known ones are {known}.")
    found = registered[name].load()
    missing = [attribute for attribute in REQUIRED if not hasattr(found, attribute)]
    if missing:
        raise UserError(
            f"workload {name}: it lacks {', '.join(missing)}; see featuremill.workload."
        )
    return cast(Workload, found)
