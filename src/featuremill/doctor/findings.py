"""Everything the doctor found, before anything is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from featuremill.doctor.compiling import Compiling
from featuremill.doctor.facts import Gpu, Node, Process
from featuremill.doctor.host import Host
from featuremill.doctor.trial import Trial
from featuremill.lease.condition import Condition, used_by_display, used_by_others
from featuremill.lease.devices import Device
from featuremill.lease.slots import Holder
from featuremill.workloads.esm2.memory import Need

USUAL_MEMORY_MB = 2048
"""What a GPU should have free when no model is named: a CUDA context and a middling model."""
MAX_NAMED = 3
"""Processes that are named before it says: and so many more."""

Severity = Literal["error", "warning", "note"]


class Issue(NamedTuple):
    """Something that stands in the way (error), costs (warning) or is good to know (note)."""

    severity: Severity
    code: str
    """Its name for scripts; docs/doctor.md lists them."""
    what: str
    remedy: str
    gpu: str | None = None
    """The UUID, where it is about one GPU and the GPU tells it."""


@dataclass(frozen=True)
class Findings:
    """The machine as it was found."""

    node: Node
    gpus: tuple[Gpu, ...]
    """The GPUs asked about: all, or those of --devices."""
    is_chosen: bool
    trials: dict[str, Trial]
    cpu: Device
    cpu_trial: Trial | None
    """None where a run would take a GPU."""
    host: Host
    compiling: Compiling
    model: str = ""
    """The model that the memory is wanted for, if one was named."""
    needs: dict[str, Need] = field(default_factory=dict)
    """By UUID, and under "cpu"."""

    leases: dict[str, list[Holder]] = field(default_factory=dict)
    """By UUID, who has leased a GPU or a slot of it."""
    cooling: dict[str, str] = field(default_factory=dict)
    """By UUID, why leases give a GPU a rest."""

    def trial(self, gpu: Gpu) -> Trial | None:
        return self.trials.get(gpu.uuid or "")

    def is_accessible(self, gpu: Gpu) -> bool:
        trial = self.trial(gpu)
        return trial is not None and not trial.error

    def leased_by(self, gpu: Gpu) -> str:
        """Say who has leased it; empty when nobody has."""
        holders = self.leases.get(gpu.uuid or "", [])
        said = {f"a lease of {holder.user}'s (pid {holder.pid})": None for holder in holders}
        return ", ".join(said)

    def used_by_others(self, gpu: Gpu) -> str:
        """Say who uses it without a lease, by the lease's own rule; empty when nobody does."""
        pids = [holder.pid for holder in self.leases.get(gpu.uuid or "", [])]
        if not used_by_others(_condition(gpu), pids):
            return ""
        strangers = [process for process in gpu.processes if process.pid not in gpu.display.pids]
        if not strangers:
            return f"a process that cannot be seen from here ({gigabytes(gpu.used_mb or 0)})"
        said = [_named(process) for process in strangers[:MAX_NAMED]]
        more = len(strangers) - len(said)
        return ", ".join(said) + (f" and {more} more" if more else "")

    def used_by_display(self, gpu: Gpu) -> str:
        """Say what its display holds, where that is much; empty where anybody else is there."""
        return "" if self.busy_by(gpu) else used_by_display(_condition(gpu))

    def busy_by(self, gpu: Gpu) -> str | None:
        """Say who uses it; None when nobody does."""
        return self.used_by_others(gpu) or self.leased_by(gpu) or None

    @property
    def accessible(self) -> list[Gpu]:
        return [gpu for gpu in self.gpus if self.is_accessible(gpu)]

    @property
    def torch_trial(self) -> Trial | None:
        """Return a trial that tells what torch is here."""
        trials = [*self.trials.values(), *([self.cpu_trial] if self.cpu_trial else [])]
        return next((t for t in trials if t.torch or t.is_missing), None)

    @property
    def lacks_cuda(self) -> bool:
        """Tell whether there are GPUs to use and torch is a build for CPUs."""
        torch = self.torch_trial
        return bool(self.trials and torch and torch.torch and not torch.cuda)

    @property
    def is_driver_too_old(self) -> bool:
        """Tell whether the driver is why nothing works.

        Within one major version of CUDA any driver serves any torch, and compatibility packages
        stretch that; so this is only asked where no GPU could be used.
        """
        torch = self.torch_trial
        if self.accessible or not (self.trials and torch and torch.cuda and self.node.cuda):
            return False
        return self.node.cuda // 1000 < int(torch.cuda.partition(".")[0])

    @property
    def needs_kernels(self) -> bool:
        """Tell whether there are GPUs that a run would compile kernels for."""
        torch = self.torch_trial
        return bool(self.trials and torch and torch.cuda)

    def need_mb(self, uuid: str | None) -> int:
        need = self.needs.get(uuid or "")
        return need.memory_mb if need else USUAL_MEMORY_MB

    def needed(self, uuid: str | None) -> str:
        """Say what memory is wanted on a device."""
        size = gigabytes(self.need_mb(uuid))
        if self.model:
            return f"{self.model} takes about {size}"
        return (
            f"{size} are asked for" if self.needs else f"{size} should be there for a usual model"
        )


def _condition(gpu: Gpu) -> Condition:
    processes = tuple(process.pid for process in gpu.processes)
    return Condition(gpu.free_mb or 0, gpu.used_mb or 0, processes, display=gpu.display)


def _named(process: Process) -> str:
    memory = "" if process.memory_mb is None else f", {gigabytes(process.memory_mb)}"
    return f"{process.user}'s {process.command} (pid {process.pid}{memory})"


def gigabytes(memory_mb: float) -> str:
    """Return GiB as people read them."""
    value = memory_mb / 1024
    return f"{value:.0f} GB" if value >= 9.95 else f"{value:.1f} GB"
