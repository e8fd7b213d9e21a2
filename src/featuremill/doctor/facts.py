"""What NVML tells of this machine's GPUs, as the doctor knows it. Read in a child process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from featuremill.doctor.children import ChildError, ask
from featuremill.lease.condition import NO_DISPLAY, Display

NVML_SECONDS = 30.0


@dataclass(frozen=True)
class Process:
    """A process that computes on a GPU."""

    pid: int
    user: str
    command: str
    memory_mb: int | None


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG slice of a GPU; None where NVML does not tell."""

    id: int
    """The number that nvidia-smi shows."""
    mig: int | None = None
    """The slice's index on its GPU."""
    uuid: str | None = None
    name: str = "unknown"
    capability: tuple[int, int] | None = None
    memory_mb: int | None = None
    used_mb: int | None = None
    """What processes hold, without the driver's own reserve where NVML tells them apart."""
    free_mb: int | None = None
    utilisation: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    processes: list[Process] = field(default_factory=list)
    compute_mode: int | None = None
    display: Display = NO_DISPLAY
    ecc_errors: int = 0
    throttle: list[str] = field(default_factory=list)
    trouble: str = ""
    """Why NVML gives no answer about it."""
    is_lost: bool = False
    is_divided: bool = False
    """MIG is on, and there are no slices."""
    is_visible: bool = True

    @property
    def drives_display(self) -> bool:
        return self.display.is_active or bool(self.display.pids)

    @property
    def architecture(self) -> str:
        """Return the name that compilers give it."""
        return f"sm_{self.capability[0]}{self.capability[1]}" if self.capability else "unknown"

    @property
    def label(self) -> str:
        """Return how people call it."""
        return f"GPU {self.id}" if self.mig is None else f"GPU {self.id}:{self.mig}"


@dataclass(frozen=True)
class Node:
    """The GPUs of this machine, or why there are none."""

    driver: str | None = None
    cuda: int | None = None
    """The newest CUDA that the driver knows, as NVML writes it: 12040 is 12.4."""
    error: int | None = None
    """NVML's error code when it could not be started."""
    error_text: str = ""
    given_by: str = ""
    """The variable by which a scheduler, a container or a person gave some GPUs and not others."""
    gpus: tuple[Gpu, ...] = ()


def read_node(timeout: float) -> Node:
    """Return what NVML tells; never raises, whatever NVML does."""
    try:
        answer = ask("ask_nvml", timeout=min(timeout, NVML_SECONDS))
    except ChildError as error:
        return Node(error=-1, error_text=f"NVML: {error}")
    gpus = tuple(_gpu(told) for told in answer.pop("gpus"))
    return Node(**answer, gpus=gpus)


def _gpu(told: dict[str, Any]) -> Gpu:
    processes = [Process(**process) for process in told.pop("processes")]
    capability = told.pop("capability")
    is_active, memory_mb, pids = told.pop("display")
    return Gpu(
        **told,
        processes=processes,
        capability=tuple(capability) if capability else None,
        display=Display(is_active, memory_mb, tuple(pids)),
    )
