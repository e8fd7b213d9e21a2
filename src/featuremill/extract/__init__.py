"""`featuremill extract`: compute one shard on one lease, by a supervisor and a worker process.

Here are the messages from the supervisor to its worker (`Job`, on standard input) and back
(`Trouble`).
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from featuremill.base.devices import Device
from featuremill.store.files import Record
from featuremill.store.plan import Settings


class Job(Record):
    """The request to compute a shard."""

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
    """The start of the worker, on the machine's monotonic clock, in seconds."""
    devices: list[Device] = Field(default_factory=list)
    """The devices of the lease, in CUDA's order."""
    solo: list[int] = Field(default_factory=list)
    """Rows that were in flight when a worker died; each is computed in a batch alone."""
    quarantined: dict[int, str] = Field(default_factory=dict)
    """Rows that ended a worker alone, with their reasons; they fail without another attempt."""
    stacks: int = 2
    """Descriptor of the file for stack traces, which only the hang timer writes."""


class Trouble(Record):
    """The error that ended a worker, if the worker could report it."""

    message: str = ""
    errno: int | None = None
    """Set if the operating system refused something, such as space on the disk."""
    filename: str | None = None
