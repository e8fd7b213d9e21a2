"""The supervisor's request to a worker, on its standard input; the answer is a receipt."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from featuremill.base.devices import Device
from featuremill.store.files import Record
from featuremill.store.plan import Settings


class Job(Record):
    """A shard to compute."""

    run_folder: str
    recipe: str
    shard: str
    settings: Settings
    execution: dict[str, Any]
    """Options that do not change the values."""
    cost_unit: str
    weights: str | None
    threads: int
    stall_seconds: float
    supervisor_pid: int
    spawned: float = 0.0
    """When the worker was started, on the machine's monotonic clock."""
    devices: list[Device] = Field(default_factory=list)
    """The devices of the lease, in CUDA's order."""
    solo: list[int] = Field(default_factory=list)
    """Rows that were in flight when a worker died: each is now a batch of its own."""
    quarantined: dict[int, str] = Field(default_factory=dict)
    """Rows that killed a worker alone, each with its reason. They fail without another try."""
    stacks: int = 2
    """Descriptor of the file that only the hang timer writes."""


class Trouble(Record):
    """What ended a worker, as far as the worker could find out."""

    message: str = ""
    errno: int | None = None
    """Set if the operating system refused something, such as space on the disk."""
    filename: str | None = None
