"""How to run here: with which GPUs, by which command."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from featuremill.base import this_process
from featuremill.base.environment import DEVICES
from featuremill.doctor.findings import Findings
from featuremill.doctor.gpus import Gpu


class Advice(NamedTuple):
    counted: list[Gpu]
    """Those that a run should use."""
    command: str

    @property
    def resources(self) -> str | None:
        return f"gpu={len(self.counted)}" if self.counted else None


def advise(findings: Findings) -> Advice:
    """Choose the GPUs that a run should use; why the others are none of them, the issues say."""
    takeable = [gpu for gpu in findings.gpus if _is_takeable(findings, gpu)]
    counted = [
        gpu
        for gpu in takeable
        if not (findings.is_too_small(gpu) or findings.is_short(gpu) or findings.is_too_old(gpu))
    ]
    command = f"{this_process.program()} run {shlex.quote(findings.config or 'YOUR.yaml')}"
    if counted:
        command += f" --resources gpu={len(counted)}"
    # Of itself a lease may take all that are takeable, also beside those asked about.
    if counted and (counted != takeable or len(findings.gpus) < len(findings.node.gpus)):
        tokens = [str(gpu.id if gpu.mig is None else gpu.uuid) for gpu in counted]
        command = f"{DEVICES}={','.join(tokens)} {command}"
    return Advice(counted, command)


def _is_takeable(findings: Findings, gpu: Gpu) -> bool:
    """Tell whether a lease would give it to a job, now or when another job is done."""
    is_free = gpu.is_visible and not gpu.is_lost and not findings.used_by_others(gpu)
    return is_free and (findings.is_accessible(gpu) or bool(findings.leased_by(gpu)))
