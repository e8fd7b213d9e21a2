"""Optional parts of a workload: attributes with defaults (`OptionalAttributes`), and hooks.

A workload has a hook if it has its methods: `isinstance(workload, EstimatesMemory)` tests for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

    from featuremill.base.devices import Device
    from featuremill.base.reasons import Kind
    from featuremill.workload.contract import Weights
    from featuremill.workload.figures import Figure


Wish = Literal["smaller batches", "shorter records", "less written"]


class OptionalAttributes:
    """Attributes that a workload may have, each with its default."""

    LENGTH_UNIT: str = "bytes"
    """The unit of a record's length, in the plural: residues, tokens, samples, characters."""
    NEEDS_GPU: bool = True
    """False: the workload computes on the host, whatever `device` is, and its shards take no
    lease: one that counts letters, as examples/plugin does, or that asks a server."""
    TAKES_FILES: bool = False
    """True: `records` opens its paths itself, in any format; the core does not read the files or
    check their suffixes."""
    READS_PICKLES: bool = False
    """True: the workload reads pickled weights without running their code (such as torch's
    `weights_only`). Otherwise pickles are refused."""
    ENVIRONMENT: Path | None = None
    """The conda environment for its jobs under `--sdm conda`, with featuremill and the workload's
    package."""
    SHARD_COST: int | None = None
    """The cost of a shard of some five minutes, for `shards.cost: auto` where no speed is known."""
    VERSIONS_OF: Sequence[str] = ()
    """Distributions that values depend on besides featuremill, NumPy, Arrow and, where it is in the
    options' PACKAGES, torch. Receipts have their versions, and merge warns where a run mixes
    them."""
    SPEED_OPTIONS: Sequence[str] | None = None
    """Options that change the time of a unit of cost; None: any option may. Speeds come from
    earlier runs with equal values of these."""
    REASONS: Sequence[Kind] = ()
    """The workload's own reasons why a record fails, each with its remedy."""
    REMEDIES: Mapping[Wish, str] = MappingProxyType({})
    """Options that messages advise to change, by purpose: {"smaller batches": "batch_tokens"}."""
    ATTRIBUTES: Sequence[str] = ()
    """Options that become attributes of result files under their own names, where readers look for
    them. All options are also there as JSON."""
    BYTES_ARE_LENGTHS: bool = False
    """True: the length of a record, in LENGTH_UNIT, is the number of bytes of its payload, unless
    an option names a file. The report then has the energy of a million of them."""
    OUTPUTS: Sequence[str] = ()
    """Outputs that a config of `featuremill init` names besides the usual ones."""
    OBJECTS: str = ""
    """What objects of a Python program `write_object` takes for `featuremill.compute`, in words,
    such as "an AnnData for cells"."""

    @staticmethod
    def write_object(inputs: Any, stem: Path) -> Path | None:  # noqa: ARG004
        """Write what is in memory to a file that `records` reads, `stem` with a suffix, and return
        that; None for what is of another kind."""
        return None

    @staticmethod
    def figures(
        columns: Sequence[str],  # noqa: ARG004
        read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]],  # noqa: ARG004
    ) -> Sequence[Figure]:
        """Return the workload's own figures of a run's results, for the top of the report, with
        names that begin with the workload's name.

        `columns` are those of embeddings.parquet; `read` returns some of them, a few thousand rows
        at a time.
        """
        return ()

    @staticmethod
    def spreads(options: Any) -> bool:  # noqa: ARG004
        """Whether `load` can spread the model over several GPUs. If not, `gpus_per_job: 2` is
        refused."""
        return True

    @staticmethod
    def published(
        source: Path,  # noqa: ARG004
        fasta: Path,  # noqa: ARG004
        declared: str,  # noqa: ARG004
        layer: int | None,  # noqa: ARG004
    ) -> Iterator[tuple[Any, pa.Table, int]] | None:
        """Return what `source` has of vectors that others computed, for `featuremill store import`;
        None for a workload that takes none.

        For the proteins in `fasta`: the options with which a run takes the vectors (`declared`
        names their author); a table of each payload's sha256 and its values; and the number of
        proteins without a vector so far. Empty if no protein has a vector.

        Raises:
            UserError: `source` has no vectors, or they are not of one kind.
        """
        return None


def optional(workload: Any, name: str) -> Any:
    """Return the workload's attribute `name` of `OptionalAttributes`, or the default."""
    return getattr(workload, name, getattr(OptionalAttributes, name))


class Checkpoint(NamedTuple):
    """A checkpoint to convert."""

    kind: Literal["bundled", "published", "local"]
    name: str
    location: str
    """Its path or URL."""
    path: Path
    """The file or folder; for a published model, the place of the download."""
    others: tuple[Path, ...] = ()  # more of them, where several networks are one model


class Converted(NamedTuple):
    name: str
    """Part of the recipe, so it must not depend on a path or on a name that a user chose."""
    sha256: str
    metadata: dict[str, str]
    """As in `Weights`."""


class Checkpoints(Protocol):
    """The models that a workload's `weights` may name, and the conversion of their checkpoints."""

    NUMBERS: Sequence[str]
    """Keys of `metadata` whose values are whole numbers in every model."""
    LAYOUT: str
    """The folder of the converted files in the cache. Change it whenever the content of these files
    changes."""
    SUGGESTED: Sequence[str]
    """Models for a new config if their weights are on this machine, the first choice first."""

    def is_path(self, model: str) -> bool:
        """Return whether `model` is the path of a checkpoint and not the name of a known model."""

    def name_of(self, model: str) -> str:
        """Return the `<name>` of `weights/<name>.json` for `model`; opens no file.

        Raises:
            UserError: there is no such model.
        """

    def refuse_missing(self, model: str) -> None:
        """Raise UserError if `model` is the path of a checkpoint that does not exist."""

    def locate(self, model: str) -> Checkpoint:
        """Return the place of the checkpoint of `model`, also before its download."""

    def convert(self, checkpoint: Checkpoint, path: Path) -> Converted:
        """Write the weights to `path`, always the same bytes; download a published checkpoint first
        if needed."""


@runtime_checkable
class HasCheckpoints(Protocol):
    """A workload whose checkpoints are converted."""

    CHECKPOINTS: Checkpoints


@runtime_checkable
class EstimatesMemory(Protocol):
    """The memory that computing takes, for doctor, estimate and commands.

    Imports no torch, except to open a checkpoint.
    """

    def weights_ahead(self, options: Any) -> Weights:
        """Return the name and metadata of the model before its weights are here, with an empty path
        and digest; raise UserError if they are unknown."""

    def weights_mb(self, weights: Weights) -> float:
        """Return the size of the weights in MiB, from their metadata alone."""

    def memory_mb(self, options: Any, device: Device, weights: Weights, batch_cost: int) -> int:
        """Return the estimated peak of a job in MiB: of a GPU's memory, or of the host's on a CPU.

        `options` are resolved; of `weights` only the metadata is used; `batch_cost` is the highest
        cost of a batch.
        """


@runtime_checkable
class AskedByModel(Protocol):
    """Options of which more than the model has to be given, and doctor is asked about a model."""

    def options_of_model(self, model: str) -> Any:
        """Return options for what memory `model` takes, with what is usual besides."""


class UnitWork(NamedTuple):
    """The work of a unit of cost. Speeds are assumed from it where nothing was measured."""

    operations: float
    """Floating-point operations."""
    bytes_moved: float
    """Bytes to and from a GPU's memory with numbers of 2 bytes; numbers of 4 bytes take twice as
    many."""
    host_per_second: float
    """Units that one thread of the host prepares in a second: the highest speed of any GPU."""
    core_gflops: Mapping[str, float]
    """The speed of a CPU core in bf16, fp16 and fp32, in 10⁹ operations a second."""
    cpu_seconds: float
    """CPU seconds of a unit besides its operations, for any number of threads."""
    shares: Mapping[str, float] = MappingProxyType({})
    """By precision, the share that was reached on `card` of the speed that `operations` and
    `bytes_moved` allow by its data sheet."""
    card: str = ""
    """Its name in NVML."""


@runtime_checkable
class EstimatesWork(Protocol):
    """The amount of work, from which plan and estimate assume a speed until one is measured. Needs
    a number type to compute in (`HasPrecisions`)."""

    def unit_work(self, weights: Weights, mean_cost: float) -> UnitWork | None:
        """Return the work of a unit in records of `mean_cost`; None if the weights' metadata lack
        it."""


@runtime_checkable
class Cautions(Protocol):
    """Warnings about some models, to read before their values are used."""

    def caution(self, options: Any) -> str:
        """Return one or two sentences on one line; "" for none. `options` may be resolved or not;
        those of init may lack others than the model."""


@runtime_checkable
class HasPrecisions(Protocol):
    """A choice of number types to compute in. plan and estimate print the chosen one."""

    PRECISION: str
    """The option with the number type: bf16, fp16, fp32, or auto until it is resolved."""


@runtime_checkable
class ReportsWays(Protocol):
    """The methods that would compute on a device, for doctor."""

    WAYS: Sequence[str]
    """The keys of `ways`: "dtype", then the operations."""

    def ways(self, device: Device, weights: Weights | None) -> Mapping[str, str]:
        """Return for each of `WAYS` the method on `device`, found as in a load and with the same
        warnings. `weights` has the shape (metadata only); None stands for a usual one. Called in a
        process of its own that sees only this device.

        Raises:
            WorkloadError: no method computes an operation correctly.
        """


@runtime_checkable
class StartsAhead(Protocol):
    """What `load` needs besides torch, and can be had while torch is imported."""

    def start_ahead(self, devices: Sequence[Device]) -> None:
        """Start it with `featuremill.workload.loading.beside`, and return at once. Imports no
        torch."""


@runtime_checkable
class TakesOtherOptions(Protocol):
    """A loaded model that can compute with other options, for calls in Python that keep the
    model."""

    def with_options(self, model: Any, options: Any) -> Any:
        """Return the loaded model with other resolved `options` of the same weights and device;
        None if these need another `load`."""
