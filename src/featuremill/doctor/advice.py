"""How to run here: which GPUs count, how many jobs each, which command."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from featuremill.base.environment import DEVICES
from featuremill.doctor.findings import Findings, gigabytes
from featuremill.doctor.gpus import Gpu


class NotCounted(NamedTuple):
    """A GPU that the recommendation leaves out."""

    gpu: Gpu
    why: str
    is_takeable: bool
    """A lease could take it unless it is told otherwise."""


class Advice(NamedTuple):
    """What to run, and with which GPUs."""

    counted: list[Gpu]
    not_counted: list[NotCounted]
    fitting: list[Gpu]
    """Those with memory enough for what was asked for, in use or not."""
    is_narrowed: bool
    """The doctor was asked about some of the GPUs only."""

    @property
    def resources(self) -> str | None:
        return f"gpu={len(self.counted)}" if self.counted else None

    @property
    def command(self) -> str:
        has_workflow = any(Path(place, "Snakefile").exists() for place in (".", "workflow"))
        command = "snakemake --cores all" if has_workflow else "featuremill run YOUR.yaml"
        if not self.resources:
            return command
        command += f" --resources {self.resources}"
        if self.is_narrowed or any(left.is_takeable for left in self.not_counted):
            tokens = [gpu.number if gpu.mig is None else str(gpu.uuid) for gpu in self.counted]
            command = f"{DEVICES}={','.join(tokens)} {command}"
        return command


def advise(findings: Findings) -> Advice:
    """Count the GPUs that a run should use, and say why the others are not among them."""
    counted: list[Gpu] = []
    left: list[NotCounted] = []
    for gpu in findings.gpus:
        why = _unusable(findings, gpu)
        is_takeable = not why
        why = why or _unfit(findings, gpu)
        if why:
            left.append(NotCounted(gpu, why, is_takeable))
        else:
            counted.append(gpu)
    fitting = [gpu for gpu in findings.accessible if not findings.is_too_small(gpu)]
    is_narrowed = len(findings.gpus) < len(findings.node.gpus)
    return Advice(counted, left, fitting, is_narrowed)


def _unusable(findings: Findings, gpu: Gpu) -> str:
    """Say why a job cannot have it now; empty when it can."""
    if not gpu.is_visible:
        return f"hidden by {findings.node.given_by}"
    if gpu.is_lost:
        return "lost"
    if by := findings.used_by_others(gpu):
        return f"in use by {by}"
    if not findings.is_accessible(gpu) and not findings.leased_by(gpu):
        return "not usable, see above"
    return ""


def _unfit(findings: Findings, gpu: Gpu) -> str:
    """Say why a job should not have it; empty when it is fine."""
    needed = f"the {gigabytes(findings.need_mb(gpu.uuid))} needed"
    if findings.is_too_small(gpu):
        return f"too small: {gigabytes(gpu.memory_mb or 0)} of {needed}"
    if findings.is_short(gpu):
        return f"too little free: {gigabytes(gpu.free_mb or 0)} of {needed}"
    if not gpu.has_bf16 and any(other.has_bf16 for other in findings.accessible):
        return "too old: it has no bf16, which dtype: auto takes for the others"
    return ""
