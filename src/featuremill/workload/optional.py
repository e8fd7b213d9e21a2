"""What a workload may offer besides: attributes with defaults (`OptionalAttributes`), and hooks.

An attribute or a method of the name is all it takes; `isinstance(workload, TellsMemory)` asks for
those of a hook, and a workload that lacks them is asked for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

    from featuremill.base.reasons import Kind
    from featuremill.lease.devices import Device
    from featuremill.workload import Weights
    from featuremill.workload.figures import Figure


Wish = Literal["smaller batches", "shorter records", "less written"]


class OptionalAttributes:
    """Attributes that a workload may have besides, each with what holds where it has none."""

    LENGTH_UNIT: str = "bytes"
    """What the length of a record counts, in the plural: residues, tokens, samples, characters."""
    NEEDS_GPU: bool = True
    """False: it computes on the host, whatever `device` says, and its shards take no lease."""
    TAKES_FILES: bool = False
    """True: `records` opens what its paths name by itself, of any format; nobody else looks into
    them, or judges them by their suffixes."""
    READS_PICKLES: bool = False
    """True: it reads pickled weights without running their code (such as torch's `weights_only`),
    so they are not refused where weights are taken as they are."""
    ENVIRONMENT: Path | None = None
    """The conda environment, with featuremill and the workload's package in it, that `--sdm conda`
    makes for its jobs."""
    SHARD_COST: int | None = None
    """The cost of a shard of some five minutes, for `shards.cost: auto` where no speed is known."""
    VERSIONS_OF: Sequence[str] = ()
    """Distributions that values depend on besides torch and featuremill: their versions stand in
    receipts, and merge warns where they are mixed."""
    SPEED_OPTIONS: Sequence[str] | None = None
    """Options that change how long a unit of cost takes; None: any may. Earlier runs that agree in
    them tell the speed of new ones."""
    REASONS: Sequence[Kind] = ()
    """Kinds of reasons of its own why a record fails, each with its remedy."""
    REMEDIES: Mapping[Wish, str] = MappingProxyType({})
    """Options that people are told to change, by what for: {"smaller batches": "batch_tokens"}."""
    ATTRIBUTES: Sequence[str] = ()
    """Options that stand by their names among the attributes of result files, where readers look
    for them; all of them stand there as JSON as well."""
    ONE_TOKEN: Sequence[str] = ()
    """How columns begin that hold the vector of one token, or numbers of single ones, and no mean:
    in 16 bits that is as near to fp32 as any token's is, and audit asks no more of it."""
    BYTES_ARE_LENGTHS: bool = False
    """True: a record is as long, in LENGTH_UNIT, as its payload has bytes, so that the energy of a
    million of them is told."""


def optional(workload: Any, name: str) -> Any:
    """Return what a workload says of itself under this name of `OptionalAttributes`."""
    return getattr(workload, name, getattr(OptionalAttributes, name))


class Checkpoint(NamedTuple):
    """A checkpoint to be converted."""

    kind: Literal["bundled", "published", "local"]
    name: str
    location: str
    """The path or URL that it is known by."""
    path: Path
    """The file or folder itself; of a published model, where it is or will be downloaded to."""


class Converted(NamedTuple):
    """What a checkpoint became."""

    name: str
    """Part of the recipe: it must not depend on where a file lies or on what somebody called it."""
    sha256: str
    metadata: dict[str, str]
    """As in `Weights`."""


class Checkpoints(Protocol):
    """The models that a workload's `weights` may name, and how their checkpoints are converted."""

    NUMBERS: Sequence[str]
    """Keys of `metadata` that are whole numbers in that of every model."""
    LAYOUT: str
    """Folder of the converted files in the cache; another one whenever what is written changes."""
    SUGGESTED: Sequence[str]
    """Models for a new config where their weights are on this machine, the first choice first."""

    def is_path(self, model: str) -> bool:
        """Tell whether `model` is the path of a checkpoint and not the name of a known model."""

    def name_of(self, model: str) -> str:
        """Return the name under which `weights/<name>.json` stands for `model`; opens no file.

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
    """Models with checkpoints that are converted."""

    CHECKPOINTS: Checkpoints


@runtime_checkable
class TellsMemory(Protocol):
    """The memory that computing takes: doctor, audit and estimate say nothing of one that does not.

    Imports no torch, but where a checkpoint has to be looked into.
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


class UnitWork(NamedTuple):
    """What a unit of cost takes, by count: speeds are assumed by it where nothing was measured."""

    operations: float
    """In floating point."""
    bytes_moved: float
    """To and from a GPU's memory where numbers have 2 bytes; with 4 it is twice as many."""
    host_per_second: float
    """Units that one thread of the host prepares in a second: no GPU is faster than that."""
    core_gflops: Mapping[str, float]
    """What a core of a CPU reaches in bf16, fp16 and fp32, in 10⁹ operations a second."""
    cpu_seconds: float
    """On a CPU, what a unit takes besides its operations, whatever the threads."""


@runtime_checkable
class TellsWork(Protocol):
    """How much there is to do: plan and estimate assume a speed by it until one was measured, and
    none of a workload that does not tell. It has a number type to compute in (`HasPrecisions`)."""

    def unit_work(self, weights: Weights, mean_cost: float) -> UnitWork | None:
        """Return what a unit takes in records of `mean_cost`; None where the weights' metadata do
        not tell."""


@runtime_checkable
class Cautions(Protocol):
    """What people should know of some models before they use the values."""

    def caution(self, options: Any) -> str:
        """Return it in a sentence or two on one line; "" where there is nothing to say. `options`
        may be resolved ones or not, and init may lack others than the model."""


@runtime_checkable
class HasPrecisions(Protocol):
    """A number type to compute in, of several: audit compares them, and plan and estimate tell it.
    A workload that lacks these has nothing to audit."""

    PRECISION: str
    """The option that names it: bf16, fp16, fp32, or auto until it is resolved."""

    def audited(self, options: Any, precision: str) -> Any:
        """Return resolved `options` by which audit computes in this precision: with every value
        that the network gives, unrounded, so that a record has at least one vector in a column."""

    def num_vectors(self, payload: bytes, options: Any) -> int:
        """Return how many vectors a record has at most in one column of `audited` options."""


@runtime_checkable
class TellsWays(Protocol):
    """By what it would compute on a device; for doctor."""

    WAYS: Sequence[str]
    """What `ways` tells of: "dtype", then the operations."""

    def ways(self, device: Device, weights: Weights | None) -> Mapping[str, str]:
        """Return, for each of `WAYS`, what would compute it on `device`: found out as a load does,
        with the same warnings. `weights` give a shape (metadata only), None stands for a usual one.
        Called in a process of its own, which sees that device only.

        Raises:
            WorkloadError: no way to compute an operation is right.
        """


@runtime_checkable
class DrawsFigures(Protocol):
    """Figures of its own, with which the report begins."""

    def figures(
        self, columns: Sequence[str], read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
    ) -> Sequence[Figure]:
        """Return figures of a run's results, with names that begin with the workload's.

        `columns` are those of embeddings.parquet; `read` gives some of them, a few thousand rows at
        a time.
        """


@runtime_checkable
class TakesOtherOptions(Protocol):
    """A loaded model that can compute by other options; for calls in Python, which keep it."""

    def with_options(self, model: Any, options: Any) -> Any:
        """Return what `load` made, with other resolved `options` of the same weights and device;
        None where these need another `load`."""


@runtime_checkable
class TakesPublished(Protocol):
    """Vectors that others computed and published; for `featuremill store import`."""

    def published(
        self, source: Path, fasta: Path, declared: str, layer: int | None
    ) -> Iterator[tuple[Any, pa.Table, int]]:
        """Yield vectors of the proteins in `fasta`: the options by which a run takes them, whose
        `declared` says whose they are; a table of each payload's sha256 and its values; and how
        many proteins had none so far. Nothing where none has a vector.

        Raises:
            UserError: `source` has none, or they are not of one kind.
        """
