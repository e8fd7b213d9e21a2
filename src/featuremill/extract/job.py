"""What the supervisor asks of a worker, on its standard input; it answers with a receipt."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from featuremill.lease.devices import Device
from featuremill.store.json_file import Record
from featuremill.store.plan import Settings


class Job(Record):
    """A shard to be computed."""

    run_folder: str
    recipe: str
    shard: str
    settings: Settings
    execution: dict[str, Any]
    """Options that say how to compute and not what."""
    cost_unit: str
    weights: str | None
    threads: int
    stall_seconds: float
    supervisor_pid: int
    devices: list[Device] = Field(default_factory=list)
    """Those of the lease, in the order in which CUDA numbers them."""
    solo: list[int] = Field(default_factory=list)
    """Rows that were in flight when a worker died: each in a batch of its own now."""
    quarantined: dict[int, str] = Field(default_factory=dict)
    """Rows that killed a worker alone, each with its reason: failed, without another try."""
    stacks: int = 2
    """Descriptor of the file that only the timer of a hang writes into."""


class Trouble(Record):
    """What ended a worker, as far as it could tell."""

    message: str = ""
    errno: int | None = None
    """Where the operating system refused something, such as space on the disk."""
    filename: str | None = None
