"""The types of the contract of a workload: `Workload`, `WorkloadOptions`, `Record`, `Weights`, and
its optional parts: attributes with defaults (`OptionalAttributes`), and hooks.

A workload has a hook if it has its methods: `isinstance(workload, EstimatesMemory)` tests for them.

Import them from `featuremill.workload`. This module does not find workloads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from featuremill.base import reasons
from featuremill.base.described import Described

if TYPE_CHECKING:
    import pyarrow as pa

    from featuremill.base.devices import Device
    from featuremill.store.formats import Kind
    from featuremill.workload.figures import Figure


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


Wish = Literal["smaller batches", "shorter records", "less written"]


class OptionalAttributes:
    """Attributes that a workload may have, each with its default."""

    LENGTH_UNIT: str = "bytes"
    """The unit of a record's length, in the plural: residues, tokens, samples, characters."""
    NEEDS_GPU: bool = True
    """False: the workload computes on the host, whatever `device` is, and its shards take no
    lease. Examples are a workload that counts letters (examples/plugin), or that uses a server."""
    TAKES_FILES: bool = False
    """True: `records` opens its paths itself, in any format; the core does not read the files or
    check their suffixes."""
    READS_PICKLES: bool = False
    """True: the workload reads pickled weights without running their code (such as torch's
    `weights_only`). Otherwise pickles are refused."""
    ENVIRONMENT: Path | None = None
    """The conda environment for its jobs under `--sdm conda`, with featuremill."""
    SHARD_COST: int | None = None
    """The cost of a shard of about five minutes, for `shards.cost: auto` if no speed is known."""
    VERSIONS_OF: Sequence[str] = ()
    """Distributions that values depend on besides featuremill, NumPy, Arrow and, if it is in the
    options' PACKAGES, torch. Receipts have their versions; merge warns if a run mixes them."""
    SPEED_OPTIONS: Sequence[str] | None = None
    """Options that change the time of a unit of cost; None: any option may. Speeds come from
    earlier runs with equal values of these."""
    REASONS: Sequence[reasons.Kind] = ()
    """The workload's own reasons why a record fails, each with its remedy."""
    REMEDIES: Mapping[Wish, str] = MappingProxyType({})
    """Options that messages advise to change, by purpose: {"smaller batches": "batch_tokens"}."""
    ATTRIBUTES: Sequence[str] = ()
    """Options that are also attributes of result files under their own names. All options are there
    as JSON."""
    BYTES_ARE_LENGTHS: bool = False
    """True: the length of a record, in LENGTH_UNIT, is the number of bytes of its payload, unless
    an option names a file. The report then has the energy of a million of them."""
    CHECKPOINTS: Checkpoints | None = None
    """The models whose checkpoints are converted."""
    PRECISION: str = ""
    """The option for the dtype of computation, which plan and estimate print: bf16, fp16, fp32, or
    auto until it is resolved."""
    OUTPUTS: Sequence[str] = ()
    """Outputs that `featuremill init` adds to the default outputs of a config."""
    OBJECTS: str = ""
    """A description of the Python objects that `write_object` accepts for `featuremill.compute`,
    such as "an AnnData for cells"."""

    @staticmethod
    def write_object(inputs: Any, stem: Path) -> Path | None:  # noqa: ARG004
        """Write an object in memory to a file that `records` reads, and return its path, which is
        `stem` with a suffix; None if the object is not supported."""
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
    def caution(options: Any) -> str:  # noqa: ARG004
        """Return a warning about some models, to read before their values are used: one or two
        sentences on one line; "" for none. `options` may be resolved or not; those of init may lack
        others than the model."""
        return ""

    @staticmethod
    def options_of_model(model: str) -> Any:
        """Return options with `model` and defaults, to estimate the memory of the model, if there
        are required options besides the model; else None."""

    @staticmethod
    def unit_work(weights: Weights, mean_cost: float) -> UnitWork | None:
        """Return the work of a unit of cost in records of `mean_cost`, from which plan and estimate
        assume a speed until one is measured; None if it is unknown. It needs a PRECISION."""

    @staticmethod
    def ways(device: Device, weights: Weights | None) -> Mapping[str, str]:  # noqa: ARG004
        """Return the methods that would compute on `device`, found as in a load and with the same
        warnings, for doctor: "dtype" first, then those of operations. `weights` has the shape
        (metadata only); None stands for a usual one. Called in a process of its own that sees only
        this device.

        Raises:
            WorkloadError: no method computes an operation correctly.
        """
        return {}

    @staticmethod
    def start_ahead(devices: Sequence[Device]) -> None:
        """Start preparations for `load` that can run while torch is imported, with
        `featuremill.workload.loading.beside`, and return at once, without importing torch."""

    @staticmethod
    def with_options(model: Any, options: Any) -> Any:
        """Return the loaded model with other resolved `options` of the same weights and device, for
        calls in Python that keep the model; None if these need another `load`."""

    @staticmethod
    def spreads(options: Any) -> bool:  # noqa: ARG004
        """Whether `load` can spread the model over several GPUs (`gpus_per_job: 2`)."""
        return True

    @staticmethod
    def published(
        source: Path,  # noqa: ARG004
        fasta: Path,  # noqa: ARG004
        declared: str,  # noqa: ARG004
        layer: int | None,  # noqa: ARG004
    ) -> Iterator[tuple[Any, pa.Table, int]] | None:
        """Read vectors that others computed from `source`, for `featuremill store import`; return
        None if the workload does not support it.

        For the proteins in `fasta`, yield the options of a run that uses the vectors (`declared`
        names their author); a table with the sha256 of payloads and their values; and the number of
        proteins without a vector so far. Yield nothing if no protein has a vector.

        Raises:
            UserError: if `source` has no vectors, or vectors of several kinds.
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
    """The file or folder; for a published model, the path of the download."""
    others: tuple[Path, ...] = ()
    """Further files, if a model has several networks."""


class Converted(NamedTuple):
    """The result of a conversion."""

    name: str
    """A name for the recipe; it must not depend on a path or on a name that a user chose."""
    sha256: str
    metadata: dict[str, str]
    """As in `Weights`."""


class Checkpoints(Protocol):
    """The models that a workload's `weights` may name, and the conversion of their checkpoints."""

    NUMBERS: Sequence[str]
    """Keys of `metadata` whose values are whole numbers in every model."""
    LAYOUT: str
    """The folder of the converted files in the cache; change it if their content changes."""
    SUGGESTED: Sequence[str]
    """Models for a new config if their weights are on this machine, the first choice first."""

    def is_path(self, model: str) -> bool:
        """Return whether `model` is the path of a checkpoint and not the name of a known model."""

    def name_of(self, model: str) -> str:
        """Return the `<name>` of `weights/<name>.json` for `model`; opens no file.

        Raises:
            UserError: if there is no such model.
        """

    def refuse_missing(self, model: str) -> None:
        """Raise UserError if `model` is the path of a checkpoint that does not exist."""

    def locate(self, model: str) -> Checkpoint:
        """Return the checkpoint of `model`, even before its download."""

    def convert(self, checkpoint: Checkpoint, path: Path) -> Converted:
        """Write the weights to `path`, with reproducible bytes; download a published checkpoint
        first if needed."""


@runtime_checkable
class EstimatesMemory(Protocol):
    """The memory that computing takes, for doctor, estimate and commands.

    Imports no torch, except to open a checkpoint.
    """

    def weights_ahead(self, options: Any) -> Weights:
        """Return the name and metadata of a model that may not be downloaded yet, with an empty
        path and digest; raise UserError if they are unknown."""

    def weights_mb(self, weights: Weights) -> float:
        """Return the size of the weights in MiB, from their metadata alone."""

    def memory_mb(self, options: Any, device: Device, weights: Weights, batch_cost: int) -> int:
        """Return the estimated peak of a job in MiB: of a GPU's memory, or of the host's on a CPU.

        `options` are resolved; of `weights` only the metadata is used; `batch_cost` is the highest
        cost of a batch.
        """


class UnitWork(NamedTuple):
    """The work of a unit of cost, from which speeds are estimated until one is measured."""

    operations: float
    """Floating-point operations."""
    bytes_moved: float
    """Bytes to and from a GPU's memory with 2-byte numbers; 4-byte numbers take twice."""
    host_per_second: float
    """Units that one thread of the host prepares in a second: the highest speed of any GPU."""
    core_gflops: Mapping[str, float]
    """The speed of a CPU core in bf16, fp16 and fp32, in 10⁹ operations a second."""
    cpu_seconds: float
    """CPU seconds of a unit beyond its operations, for any number of threads."""
    shares: Mapping[str, float] = MappingProxyType({})
    """By precision, the measured speed on `card` as a share of the speed that `operations` and
    `bytes_moved` allow by its data sheet."""
    card: str = ""
    """The name of that GPU in NVML."""
