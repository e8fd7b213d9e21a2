"""Receipts: what was computed of one shard, on which devices, in how many seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from pydantic import Field

from featuremill.lease import gpu_name
from featuremill.store.files import JsonFile, Number, Record

MOST_PARTS = 50
"""How many of the newest parts count for estimates: older ones may be of other devices."""


class UsedDevice(Record):
    """A device that held the model or a share of it."""

    kind: str
    """cuda or cpu."""
    uuid: str
    name: str
    number: int | None = None
    """As nvidia-smi had it then; None in early receipts and of a CPU."""

    def __str__(self) -> str:
        return gpu_name.device(self.kind, self.uuid, self.name, self.number)


class Usage(Record):
    """A summary of a job's samples; None if no sample has the value. Of several devices: the
    mean of utilisation, the largest memory and temperature, the sum of watts and joules."""

    samples: int = 0
    attempts: int = 1
    energy_j: Number | None = None
    utilisation_percent: Number | None = None
    memory_mb: Number | None = None
    power_w: Number | None = None
    temperature_c: Number | None = None
    cpu_percent: Number | None = None
    """Of the worker, in per cent of one core."""
    process_memory_mb: Number | None = None
    throttled_seconds: dict[str, Number] = {}
    of_whole_gpu: list[str] = []
    """The keys whose values are of a complete GPU, of which the job had a share."""


class Receipt(JsonFile):
    NEWEST: ClassVar[int] = 2
    """1 had one `device` in place of `devices`."""

    shard: str
    recipe: str
    part: str
    """The xxh3-128 of the part's bytes."""
    rows: int
    ok: int
    failed: int
    batches: int = 0
    resumed_batches: int = 0
    """How many of them an earlier job computed."""
    oom_splits: int = 0
    """Batches that were split because memory ran out."""
    cost: int
    payload_bytes: int = 0
    batch_cost: int | None = None
    seconds: dict[str, Number]
    """start, load, compute (with prepare, run, write), wait, total; see docs/formats.md."""
    load_seconds: dict[str, Number] = {}
    """Parts of `load`, each with its name. Those that begin with "beside: " ran on threads, at the
    same time as others."""
    devices: list[UsedDevice] = Field(min_length=1)
    backend: str = ""
    warnings: list[str] = []
    workload_version: str | None = None
    engine_version: int | None = None
    threads: int = 0
    peak_memory_mb: int = 0
    """The largest of the devices; on a CPU, of the process."""
    versions: dict[str, str] = {}
    """Versions of packages on which values can depend."""
    telemetry: Usage = Usage()
    retries: int = 0
    """Workers that died before the one that finished."""
    started: str = ""
    finished: str = ""
    """ISO 8601, UTC."""
    host: str = ""
    policy: str = ""
    """The rule by which a lease chose among free GPUs."""

    @property
    def is_on_gpu(self) -> bool:
        return self.devices[0].kind == "cuda"

    @property
    def device_name(self) -> str:
        """The model of the devices, such as "NVIDIA L4" or "2 × NVIDIA L4"."""
        return name_of_devices(self.devices)

    @property
    def own_energy_j(self) -> Number | None:
        """The joules of the job's GPUs; None if unknown, or if others used the GPUs, too."""
        usage = self.telemetry
        return None if "energy_j" in usage.of_whole_gpu else usage.energy_j

    @property
    def working_seconds(self) -> float:
        """How long the job had its device."""
        return float(self.seconds.get("total", 0.0)) - float(self.seconds.get("wait", 0.0))

    @property
    def startup_seconds(self) -> float:
        """The part of `working_seconds` before the first batch and after the last commit."""
        return max(0.0, self.working_seconds - self.seconds.get("compute", 0.0))

    def counts(self, num_rows: int, num_failed: int) -> bool:
        return (self.rows, self.ok, self.failed) == (num_rows, num_rows - num_failed, num_failed)


def gpus_of(devices: Sequence[UsedDevice]) -> str:
    """Return what the GPUs among `devices` are called, "GPU 0 (3a9f)"; empty on a CPU."""
    return " + ".join(gpu_name.gpu(gpu.uuid, gpu.number) for gpu in devices if gpu.kind == "cuda")


def name_of_devices(devices: Sequence[UsedDevice]) -> str:
    """Return the product name of devices that share one model."""
    names = [device.name for device in devices]
    counts = {name: names.count(name) for name in names}
    return " + ".join(f"{n} × {name}" if n > 1 else name for name, n in counts.items())


def newest_whole(receipts: Iterable[Receipt]) -> list[Receipt]:
    """Return the newest `receipts` with the time of a complete part, the oldest of them first.

    The seconds of a part that an earlier job started are only of its last batches.
    """
    complete = [receipt for receipt in receipts if receipt.cost and not receipt.resumed_batches]
    return sorted(complete, key=lambda receipt: receipt.finished)[-MOST_PARTS:]
