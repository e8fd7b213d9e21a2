"""Looks at the machine: everything the doctor found, before anything is made of it."""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from featuremill.base import devices
from featuremill.base.environment import DEVICES, LEASE_FOLDER
from featuremill.base.errors import UserError
from featuremill.base.this_process import (
    VERSION,
    free_memory_mb,
    installed,
    nearest_folder,
    num_cores,
)
from featuremill.config import Origin, checked, project
from featuremill.doctor.gpus import Gpu, Node, Process, read_node
from featuremill.doctor.trial import Asked, Trial, try_cpu, try_gpus
from featuremill.lease import folder
from featuremill.lease.condition import Condition, Failures, used_by_others
from featuremill.lease.slots import Holder, holders
from featuremill.store.results import Results
from featuremill.workload import (
    DEFAULT,
    AskedByModel,
    Device,
    EstimatesMemory,
    HasPrecisions,
    Weights,
    find_workload,
    optional,
)
from featuremill.workload import weights as weights_verb

NAMED_PACKAGES = ("torch", "triton", "snakemake", "nvidia-ml-py", "numpy", "pyarrow", "fair-esm")
PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA = "0x10de"
DISPLAY_CLASS = "0x03"
"""PCI's class of graphics and compute cards, as sysfs writes its first byte."""


class Host(NamedTuple):
    open_files: int
    """How many one process may have."""
    results: Path
    """The nearest folder that exists on the way to results/."""
    results_writable: bool
    results_free_gb: float
    lock_folder: str
    lock_trouble: str
    """Why leases cannot be kept there; empty when they can."""
    num_nvidia_cards: int
    """By the PCI bus, whatever the driver says; 0 where the bus cannot be read."""
    num_processors: int
    memory_free_mb: int
    versions: dict[str, str]


def look(results: Path, pci: Path = PCI_DEVICES) -> Host:
    """Return what is true of this machine now."""
    nearest = nearest_folder(results.absolute())
    lock_folder, lock_trouble = _lock_folder()
    return Host(
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        results=nearest,
        results_writable=os.access(nearest, os.W_OK | os.X_OK),
        results_free_gb=shutil.disk_usage(nearest).free / 1e9,
        lock_folder=lock_folder,
        lock_trouble=lock_trouble,
        num_nvidia_cards=num_nvidia_cards(pci),
        num_processors=num_cores(),
        memory_free_mb=free_memory_mb(),
        versions=versions(),
    )


def _lock_folder() -> tuple[str, str]:
    """Return where leases are kept, and what is wrong with that place."""
    try:
        found = folder.find()
        with tempfile.TemporaryFile(dir=found):
            return str(found), ""
    except (UserError, OSError) as error:
        return LEASE_FOLDER.text() or "their usual folder", str(error).rstrip(".")


def num_nvidia_cards(pci: Path) -> int:
    """Count NVIDIA's graphics and compute cards on the PCI bus."""
    count = 0
    for card in pci.iterdir() if pci.is_dir() else ():
        try:
            is_nvidia = (card / "vendor").read_text().strip() == NVIDIA
            count += is_nvidia and (card / "class").read_text().startswith(DISPLAY_CLASS)
        except OSError:
            continue
    return count


def versions() -> dict[str, str]:
    """Return the versions installed here, without importing anything."""
    found = {
        "featuremill": VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }
    return found | installed(NAMED_PACKAGES)


USUAL_MEMORY_MB = 2048
"""What a GPU should have free when no model is named: a CUDA context and a middling model."""
COMMON = (
    Device("cuda", "", "16 GB", False, 0, 15_360, 40),
    Device("cuda", "", "24 GB", True, 0, 23_034, 58),
    Device("cuda", "", "40 GB", True, 0, 40_960, 108),
    Device("cuda", "", "80 GB", True, 0, 81_559, 132),
)
"""Sizes of GPUs that are asked about where none is here: those of a T4, L4, A100 and H100."""
MAX_NAMED = 3
"""Processes that are named before it says: and so many more."""

Severity = Literal["error", "warning", "note"]


class Issue(NamedTuple):
    """Something that stands in the way (error), costs (warning) or is good to know (note)."""

    severity: Severity
    code: str
    """Its name for scripts; docs/json.md lists them."""
    what: str
    remedy: str
    gpu: str | None = None
    """The UUID, where it is about one GPU and the GPU tells it."""


class Need(NamedTuple):
    """What a job takes of one device, by estimate."""

    memory_mb: int
    dtype: str
    batch_tokens: int


@dataclass(frozen=True)
class Findings:
    node: Node
    gpus: tuple[Gpu, ...]
    """The GPUs asked about: all, or those of --devices."""
    is_chosen: bool
    trials: dict[str, Trial]
    cpu: Device
    cpu_trial: Trial | None
    """None where a run would take a GPU."""
    host: Host
    workload: str = DEFAULT
    """For which the machine is looked at."""
    config: str = ""
    """Whose run is asked about, if one was named."""
    model: str = ""
    """The model that the memory is wanted for, if one was named."""
    needs: dict[str, Need] = field(default_factory=dict)
    """By UUID, and under "cpu"."""
    gpus_per_job: int = 1
    """GPUs over which the run spreads its model."""
    fits_gpus: tuple[str, ...] = ()
    """Of `COMMON`, the sizes that hold the model, where no GPU is here."""

    leases: dict[str, list[Holder]] = field(default_factory=dict)
    """By UUID, who has leased a GPU or a slot of it."""
    cooling: dict[str, str] = field(default_factory=dict)
    """By UUID, why leases give a GPU a rest."""

    def trial(self, gpu: Gpu) -> Trial | None:
        return self.trials.get(gpu.uuid or "")

    def is_accessible(self, gpu: Gpu) -> bool:
        return (trial := self.trial(gpu)) is not None and not trial.error

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

    def busy_by(self, gpu: Gpu) -> str | None:
        """Say who uses it; None when nobody does."""
        return self.used_by_others(gpu) or self.leased_by(gpu) or None

    def state(self, gpu: Gpu) -> str:
        """Return its state in a word, by the words of `featuremill lease --list`."""
        states = {
            "lost": gpu.is_lost,
            "hidden": not gpu.is_visible,
            "leased": self.leased_by(gpu),
            "busy": self.used_by_others(gpu),
            "not usable": not self.is_accessible(gpu),
            "sick": self.cooling.get(gpu.uuid or ""),
            "free": True,
        }
        return next(state for state, is_so in states.items() if is_so)

    @property
    def accessible(self) -> list[Gpu]:
        return [gpu for gpu in self.gpus if self.is_accessible(gpu)]

    @property
    def torch_trial(self) -> Trial | None:
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
    def batch_option(self) -> str:
        """What the workload calls the option for the size of a batch; empty where it has none."""
        return str(optional(find_workload(self.workload), "REMEDIES").get("smaller batches", ""))

    def need_mb(self, uuid: str | None) -> int:
        """Return the memory that a job takes of a GPU, or of the host for "cpu"."""
        need = self.needs.get(uuid or "")
        if not need:
            return USUAL_MEMORY_MB
        return need.memory_mb if uuid == "cpu" else -(-need.memory_mb // self.gpus_per_job)

    def is_too_small(self, gpu: Gpu) -> bool:
        """Tell whether it has less memory than is wanted, in use or not."""
        return gpu.memory_mb is not None and gpu.memory_mb < self.need_mb(gpu.uuid)

    def is_short(self, gpu: Gpu) -> bool:
        """Tell whether less is free than is wanted, and no lease is why."""
        is_little = gpu.free_mb is not None and gpu.free_mb < self.need_mb(gpu.uuid)
        return is_little and not self.leased_by(gpu)

    def is_too_old(self, gpu: Gpu) -> bool:
        """Tell whether it lacks bf16 and others have it, which `dtype: auto` takes for these."""
        return not gpu.has_bf16 and any(other.has_bf16 for other in self.accessible)

    def needed(self, uuid: str | None) -> str:
        """Say what memory is wanted on a device."""
        size = gigabytes(self.need_mb(uuid))
        if uuid != "cpu" and self.gpus_per_job > 1:
            size = f"{size} of each of {self.gpus_per_job} GPUs"
        told = f"{self.model} takes about {size}"
        return told if self.model else f"{size} should be there for a usual model"


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


def examine(arguments: argparse.Namespace) -> Findings:
    """Look at the machine; raise UserError for what cannot be asked."""
    try:
        asked_for = wanted(arguments)
        weights = asked_for.weights()
    except UserError as error:
        if arguments.workload or not arguments.model:
            raise
        told = str(error).rstrip(".")
        raise UserError(f"{told}; if it is another workload's, add --workload NAME.") from None
    asked = Asked(asked_for.workload, weights, arguments.timeout)
    node = read_node(arguments.timeout)
    chosen = arguments.devices or DEVICES.value()
    gpus = choose(node, chosen) if chosen else node.gpus
    trials = try_gpus(gpus, asked)
    cpu, cpu_trial = devices.cpu(), None
    candidates = {gpu.uuid: _device(gpu, trials.get(gpu.uuid)) for gpu in gpus if gpu.uuid}
    if not any(gpu.is_visible for gpu in gpus):
        cpu_trial, candidates = try_cpu(asked), {"cpu": cpu}
    leases, cooling = _leased_and_cooling(gpus)
    return Findings(
        node=node,
        gpus=gpus,
        is_chosen=bool(chosen),
        trials=trials,
        cpu=cpu,
        cpu_trial=cpu_trial,
        host=look(arguments.results),
        config=str(arguments.config or ""),
        model=weights.name if weights else "",
        workload=asked_for.workload,
        needs={k: asked_for.need(weights, device) for k, device in candidates.items()}
        if weights
        else {},
        gpus_per_job=asked_for.gpus_per_job,
        fits_gpus=asked_for.fitting(weights) if weights and cpu_trial else (),
        leases=leases,
        cooling=cooling,
    )


class Wanted(NamedTuple):
    workload: str
    options: Any = None
    """Of the workload; None where no model is named."""
    costliest: int = 0
    """The highest cost of a record, of a run that is planned."""
    gpus_per_job: int = 1

    def weights(self) -> Weights | None:
        """Return what is known of the model before its weights are here.

        Raises:
            UserError: nothing is, or the workload does not say what memory a model takes.
        """
        if self.options is None:
            return None
        workload = find_workload(self.workload)
        if not isinstance(workload, EstimatesMemory):
            raise UserError(
                f"workload {self.workload} does not report the memory of its models; leave "
                "--config and --model out to look at the machine alone."
            )
        return workload.weights_ahead(self.options)

    def fitting(self, weights: Weights) -> tuple[str, ...]:
        """Return which of `COMMON` hold the model; none where it is computed on a CPU alone."""
        if not optional(find_workload(self.workload), "NEEDS_GPU"):
            return ()
        return tuple(
            each.name
            for each in COMMON
            if self.need(weights, each).memory_mb <= self.gpus_per_job * each.memory_mb
        )

    def need(self, weights: Weights, device: Device) -> Need:
        """Return what the model takes on `device` in batches of its options."""
        workload = find_workload(self.workload)
        assert isinstance(workload, EstimatesMemory)
        options = workload.resolve(self.options, device, weights)
        batch_cost = max(workload.batch_cost(options, device), self.costliest)
        memory_mb = workload.memory_mb(options, device, weights, batch_cost)
        assert isinstance(workload, HasPrecisions)
        return Need(memory_mb, getattr(options, workload.PRECISION), batch_cost)


def wanted(arguments: argparse.Namespace) -> Wanted:
    """Return what the doctor was asked about: a run, or a model of the default workload."""
    if arguments.config:
        if arguments.workload:
            raise UserError("--workload is of --model; leave it out, as the config names one.")
        run = project.read_one(arguments.config, arguments.set)
        plan = Results(arguments.results / run.run).find_plan()
        costliest = plan.lengths.costliest if plan else 0
        return Wanted(run.workload, run.options, costliest, run.gpus)
    name = arguments.workload or DEFAULT
    if not arguments.model:
        return Wanted(name)
    workload = find_workload(name)
    if not isinstance(workload, EstimatesMemory):
        return Wanted(name, arguments.model)  # refused
    weights_verb.refuse_missing(arguments.model, name)
    if isinstance(workload, AskedByModel):
        return Wanted(name, workload.options_of_model(arguments.model))
    alone = Origin("--model without --config")
    options = checked(workload.Options, {"model": arguments.model}, ("options",), dict, alone)
    return Wanted(name, options)


def _device(gpu: Gpu, trial: Trial | None) -> Device:
    count = (trial.multiprocessors if trial else None) or 0
    assert gpu.uuid
    return Device("cuda", gpu.uuid, gpu.name, gpu.has_bf16, gpu.id, gpu.memory_mb or 0, count)


def _leased_and_cooling(gpus: Sequence[Gpu]) -> tuple[dict[str, list[Holder]], dict[str, str]]:
    """Return by UUID who has leased which GPU, and why leases let one rest."""
    try:
        where = folder.find()
        leases: dict[str, list[Holder]] = {}
        for holder in holders(where):
            leases.setdefault(holder.device.partition("@")[0], []).append(holder)
        cooling = {gpu.uuid: Failures(where, gpu.uuid).cooling() for gpu in gpus if gpu.uuid}
    except (UserError, OSError):  # py says what is wrong with the folder
        return {}, {}
    return leases, cooling


def choose(node: Node, choice: str) -> tuple[Gpu, ...]:
    """Return the GPUs that --devices names; raise UserError for one that does not exist."""
    chosen: list[Gpu] = []
    for token in (part.strip() for part in choice.split(",")):
        matches = [
            gpu
            for gpu in node.gpus
            if token == str(gpu.id) or (token and (gpu.uuid or "").startswith(token))
        ]
        is_number = token.isdecimal()
        if not matches or (not is_number and len(matches) > 1):
            problem = "stands for several" if matches else "does not exist"
            raise UserError(f"GPU {token} {problem}; this machine has {_numbers(node.gpus)}.")
        chosen += [gpu for gpu in matches if gpu not in chosen]
    return tuple(chosen)


def _numbers(gpus: Sequence[Gpu]) -> str:
    last = max((gpu.id for gpu in gpus), default=None)
    if last is None:
        return "no GPU that a driver reports"
    return f"0–{last}" if last else "GPU 0 only"
