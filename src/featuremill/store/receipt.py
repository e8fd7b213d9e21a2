"""Receipts: what was computed of one shard, on what, in how many seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from pydantic import Field

from featuremill.store.json_file import JsonFile, Number, Record

MOST_PARTS = 50
"""The newest parts, which tell most of the devices that are at work now."""


class UsedDevice(Record):
    """A device that held the model, or a share of it."""

    kind: str
    """cuda or cpu."""
    uuid: str
    name: str


class Usage(Record):
    """Sums of a job's samples; what nothing told is None. Of several devices: means of their mean
    utilisation, the fullest and the hottest, watts and joules together."""

    samples: int = 0
    attempts: int = 1
    energy_j: Number | None = None
    """Of all attempts."""
    utilisation_percent: Number | None = None
    memory_mb: Number | None = None
    power_w: Number | None = None
    temperature_c: Number | None = None
    cpu_percent: Number | None = None
    """Of the worker, in per cent of one core."""
    process_memory_mb: Number | None = None
    throttled_seconds: dict[str, Number] = {}
    of_whole_gpu: list[str] = []
    """The keys whose values are a whole GPU's, of which the job had a part."""


class Receipt(JsonFile):
    """What the receipt of one part says."""

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
    """Of them, how many an earlier job had computed."""
    oom_splits: int = 0
    """Batches that were cut as memory ran out."""
    cost: int
    payload_bytes: int = 0
    batch_cost: int | None = None
    """What one batch might cost."""
    seconds: dict[str, Number]
    """load, compute (of which prepare, run, write), wait, total; docs/formats.md says what
    each counts."""
    devices: list[UsedDevice] = Field(min_length=1)
    backend: str = ""
    warnings: list[str] = []
    workload_version: str | None = None
    engine_version: int | None = None
    threads: int = 0
    peak_memory_mb: int = 0
    """Of the fullest device; on a CPU, of the process."""
    versions: dict[str, str] = {}
    """Of packages that values can depend on."""
    telemetry: Usage = Usage()
    retries: int = 0
    """Workers that died before the one that finished."""
    started: str = ""
    finished: str = ""
    """ISO 8601, UTC."""
    host: str = ""
    policy: str = ""
    """By which a lease chose among free GPUs."""

    @property
    def is_on_gpu(self) -> bool:
        """Whether the part was computed on GPUs."""
        return self.devices[0].kind == "cuda"

    @property
    def device_name(self) -> str:
        """The model of the devices, such as "NVIDIA L4" or "2 × NVIDIA L4"."""
        return name_of_devices(self.devices)

    @property
    def own_energy_j(self) -> Number | None:
        """The joules that the part's GPUs took for it; None where nothing told, or where they are
        of a whole GPU that others used too."""
        told = self.telemetry
        return None if "energy_j" in told.of_whole_gpu else told.energy_j

    @property
    def working_seconds(self) -> float:
        """How long the job was at it while it had its device."""
        return float(self.seconds.get("total", 0.0)) - float(self.seconds.get("wait", 0.0))

    @property
    def startup_seconds(self) -> float:
        """How much of that came before the first batch and after the last commit."""
        return max(0.0, self.working_seconds - self.seconds.get("compute", 0.0))

    def counts(self, num_rows: int, num_failed: int) -> bool:
        """Tell whether it counts what its part holds: so many rows, so many of them failed."""
        return (self.rows, self.ok, self.failed) == (num_rows, num_rows - num_failed, num_failed)


def name_of_devices(devices: Sequence[UsedDevice]) -> str:
    """Return the model of devices that hold one model together."""
    names = [device.name for device in devices]
    counts = {name: names.count(name) for name in names}
    return " + ".join(f"{n} × {name}" if n > 1 else name for name, n in counts.items())


def newest_whole(receipts: Iterable[Receipt]) -> list[Receipt]:
    """Return the newest `receipts` that tell how long a part takes, the oldest of them first.

    Parts that went on from an earlier job's batches do not tell: their seconds are of the end only.
    """
    whole = [receipt for receipt in receipts if receipt.cost and not receipt.resumed_batches]
    return sorted(whole, key=lambda receipt: receipt.finished)[-MOST_PARTS:]
