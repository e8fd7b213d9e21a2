"""Collect the facts about this machine, and about the given run or model."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.base import devices
from featuremill.base.errors import UserError
from featuremill.base.this_process import free_memory_mb
from featuremill.config import project
from featuremill.config.problems import Origin, checked
from featuremill.doctor.gpus import Gpu, Node, read_node
from featuremill.doctor.trial import Trial, try_devices
from featuremill.lease.environment import DEVICES
from featuremill.lease.offer import named
from featuremill.store.results import Results
from featuremill.workload import DEFAULT, Device, EstimatesMemory, Weights, find_workload, optional
from featuremill.workload import weights as weights_command

USUAL_MEMORY_MB = 2048
"""Assumed memory of a job (a CUDA context and a model of medium size) without a model."""


class Need(NamedTuple):
    """The estimated needs of a job on one device."""

    memory_mb: int
    dtype: str
    batch_tokens: int


class Subject(NamedTuple):
    """The run or model to check."""

    workload: str = DEFAULT
    options: Any = None
    """The options of the workload; None without a model."""
    costliest: int = 0
    """The highest cost of a record of a planned run."""
    gpus_per_job: int = 1

    def weights(self) -> Weights | None:
        """Return the metadata of the model, which may not be downloaded yet.

        Raises:
            UserError: the model is unknown, or the workload does not estimate the memory of models.
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

    def need(self, weights: Weights, device: Device) -> Need:
        """Return what the model needs on `device`, with batches as in a run."""
        workload = find_workload(self.workload)
        assert isinstance(workload, EstimatesMemory)
        options = workload.resolve(self.options, device, weights)
        batch_cost = max(workload.batch_cost(options, device), self.costliest)
        memory_mb = workload.memory_mb(options, device, weights, batch_cost)
        return Need(memory_mb, getattr(options, optional(workload, "PRECISION")), batch_cost)


def subject_of(arguments: argparse.Namespace) -> Subject:
    """Return the run or model of the arguments; by default, the workload without a model."""
    if arguments.config:
        if arguments.workload:
            raise UserError("--workload is of --model; leave it out, as the config names one.")
        run = project.read_one(arguments.config, arguments.set)
        plan = Results(arguments.results / run.run).find_plan()
        costliest = plan.lengths.costliest if plan else 0
        return Subject(run.workload, run.options, costliest, run.gpus)
    name, model = arguments.workload or DEFAULT, arguments.model
    workload = find_workload(name)
    if not model or not isinstance(workload, EstimatesMemory):
        return Subject(name, model)  # `weights` raises UserError if there is a model
    weights_command.refuse_missing(model, name)
    if options := optional(workload, "options_of_model")(model):
        return Subject(name, options)
    alone = Origin("--model without --config")
    options = checked(workload.Options, {"model": model}, ("options",), dict, alone)
    return Subject(name, options)


@dataclass(frozen=True)
class Findings:
    """The facts that the checks use."""

    node: Node
    gpus: tuple[Gpu, ...]
    """The GPUs of --devices; by default all."""
    is_chosen: bool
    """Whether --devices or its environment variable was set."""
    trials: dict[str, Trial]
    """The trials by UUID; of "cpu" if a run would use the CPU."""
    cpu: Device
    """The CPU, with its free memory."""
    results: Path
    """The folder of results, which may not exist yet."""
    subject: Subject
    config: str
    """The path of the config; empty without --config."""
    model: str
    """The name of the model, or ""."""
    needs: dict[str, Need]
    """The needs by UUID, or of "cpu"; empty without a model."""

    @property
    def torch_trial(self) -> Trial | None:
        """A trial that reports the version of torch, or that torch is missing."""
        trials = self.trials.values()
        return next((trial for trial in trials if trial.torch or trial.is_missing), None)

    def is_accessible(self, gpu: Gpu) -> bool:
        """Whether torch computed on the GPU."""
        return (trial := self.trials.get(gpu.uuid)) is not None and not trial.error

    @property
    def accessible(self) -> list[Gpu]:
        return [gpu for gpu in self.gpus if self.is_accessible(gpu)]

    def state(self, gpu: Gpu) -> str:
        """Return the state of a GPU, as in `featuremill lease --list`."""
        states = {
            "lost": "lost" in gpu.problem,
            "hidden": not gpu.is_visible,
            "leased": gpu.leased_by,
            "busy": gpu.used_by,
            "not usable": not self.is_accessible(gpu),
            "sick": gpu.cooling,
        }
        return next((state for state, is_so in states.items() if is_so), "free")

    def need_mb(self, uuid: str) -> int:
        """Return the memory in MiB that a job needs on each of its GPUs, or on the CPU."""
        if not (need := self.needs.get(uuid)):
            return USUAL_MEMORY_MB
        return need.memory_mb if uuid == "cpu" else -(-need.memory_mb // self.subject.gpus_per_job)

    def lacks_memory(self, gpu: Gpu) -> bool:
        """Whether the GPU is too small, or others use too much of its memory without a lease."""
        free_mb = gpu.device.memory_mb if gpu.leased_by or gpu.free_mb is None else gpu.free_mb
        return min(free_mb, gpu.device.memory_mb) < self.need_mb(gpu.uuid)

    def lacks_bf16(self, gpu: Gpu) -> bool:
        """Whether the GPU lacks bf16, and others have it."""
        return not gpu.device.has_bf16 and any(each.device.has_bf16 for each in self.accessible)

    def needed(self, uuid: str) -> str:
        """Return a phrase with the memory that is needed on a device."""
        size = gigabytes(self.need_mb(uuid))
        if uuid != "cpu" and self.subject.gpus_per_job > 1:
            size = f"{size} of each of {self.subject.gpus_per_job} GPUs"
        return f"{self.model} needs about {size}" if self.model else f"a usual model needs {size}"


def gigabytes(memory_mb: float) -> str:
    """Format MiB as GiB, with one decimal below ten."""
    value = memory_mb / 1024
    return f"{value:.0f} GB" if value >= 9.95 else f"{value:.1f} GB"


def examine(arguments: argparse.Namespace) -> Findings:
    """Collect all facts.

    Raises:
        UserError: the model, config or GPU of the arguments does not exist.
    """
    try:
        subject = subject_of(arguments)
        weights = subject.weights()
    except UserError as error:
        if arguments.workload or not arguments.model:
            raise
        reason = str(error).rstrip(".")
        raise UserError(f"{reason}; if it is another workload's, add --workload NAME.") from None
    node, choice = read_node(arguments.timeout), arguments.devices or DEVICES.value()
    gpus, cpu = node.gpus, devices.cpu()._replace(memory_mb=free_memory_mb())
    if choice:
        gpu_of, tokens = {gpu.device: gpu for gpu in gpus}, map(str.strip, choice.split(","))
        chosen = dict.fromkeys(each for token in tokens for each in named([*gpu_of], token))
        gpus = tuple(gpu_of[device] for device in chosen)
    usable = [gpu.uuid for gpu in gpus if gpu.is_visible and not gpu.problem]
    uuids = usable if any(gpu.is_visible for gpu in gpus) else ["cpu"]
    trials = try_devices(uuids, subject.workload, weights, arguments.timeout)
    needs = {}
    for device in [gpu.device for gpu in gpus if gpu.uuid] if uuids != ["cpu"] else [cpu]:
        count = getattr(trials.get(device.uuid), "multiprocessors", None) or 0
        if weights:
            sized = device._replace(num_multiprocessors=count)
            needs[device.uuid] = subject.need(weights, sized)
    return Findings(
        node=node,
        gpus=gpus,
        is_chosen=bool(choice),
        trials=trials,
        cpu=cpu,
        results=arguments.results,
        subject=subject,
        config=str(arguments.config or ""),
        model=weights.name if weights else "",
        needs=needs,
    )
