"""The doctor's answer as JSON: docs/doctor.md describes each key."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from featuremill.doctor import gpu_checks, node_checks
from featuremill.doctor.advice import SLOTS_PER_GPU, Advice, has_bf16
from featuremill.doctor.facts import Gpu
from featuremill.doctor.findings import Findings, Issue
from featuremill.doctor.trial import Ways

VERSION = 1
SEVERITIES = ("error", "warning", "note")


def issues_of(findings: Findings) -> list[Issue]:
    """Return all issues, what stands in the way first."""
    found = list(node_checks.check(findings))
    for gpu in findings.gpus:
        found += gpu_checks.check(findings, gpu)
    return sorted(found, key=lambda issue: SEVERITIES.index(issue.severity))


def as_json(
    findings: Findings, issues: list[Issue], advice: Advice, scaling: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the readiness of this machine."""
    torch = findings.torch_trial
    return {
        "version": VERSION,
        "ready": not any(issue.severity == "error" for issue in issues),
        "cuda_available": bool(findings.accessible),
        "gpu_count": len(findings.gpus),
        "gpus": [_gpu(findings, gpu) for gpu in findings.gpus],
        "issues": [issue._asdict() for issue in issues],
        "recommended": {
            "resources": advice.resources,
            "slots_per_gpu": SLOTS_PER_GPU if advice.counted else None,
            "command": advice.command,
            "not_counted": [
                {"id": one.gpu.id, "mig": one.gpu.mig, "uuid": one.gpu.uuid, "why": one.why}
                for one in advice.not_counted
            ],
        },
        "memory": _memory(findings, advice) if findings.needs else None,
        "ways": _ways(findings),
        "scaling": scaling,
        "driver": {"version": findings.node.driver, "cuda": findings.node.cuda},
        "torch": {
            "version": torch.torch if torch else None,
            "cuda": torch.cuda if torch else None,
            "architectures": torch.arch_list if torch else [],
            "tried": findings.host.tried_torch or None,
        },
        "compiling": findings.compiling._asdict(),
        "cpu": {
            "name": findings.cpu.name,
            "processors": findings.host.num_processors,
            "free_gb": round(findings.host.memory_free_mb / 1024, 1),
            "bf16": findings.cpu.has_bf16,
        },
        "versions": findings.host.versions,
    }


def _ways(findings: Findings) -> list[dict[str, Any]]:
    """Return how ESM-2 would be computed on each device that was tried."""
    trials = {**findings.trials, **({"cpu": findings.cpu_trial} if findings.cpu_trial else {})}
    nothing = dict.fromkeys(Ways.__annotations__) | {"why": []}
    return [
        {
            "device": device,
            **(asdict(trial.ways) if trial.ways else nothing),
            "error": trial.error or None,
        }
        for device, trial in trials.items()
    ]


def _gpu(findings: Findings, gpu: Gpu) -> dict[str, Any]:
    return {
        "id": gpu.id,
        "mig": gpu.mig,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "memory_gb": _gigabytes(gpu.memory_mb),
        "free_gb": _gigabytes(gpu.free_mb),
        "utilisation": gpu.utilisation,
        "temperature": gpu.temperature_c,
        "power": gpu.power_w,
        "processes": [
            {"pid": p.pid, "user": p.user, "command": p.command, "memory_mb": p.memory_mb}
            for p in gpu.processes
        ],
        "capability": ".".join(map(str, gpu.capability)) if gpu.capability else None,
        "bf16": has_bf16(gpu),
        "visible": gpu.is_visible,
        "accessible": findings.is_accessible(gpu),
        "busy_by": findings.busy_by(gpu),
    }


def _gigabytes(memory_mb: int | None) -> float | None:
    return None if memory_mb is None else round(memory_mb / 1024, 1)


def _memory(findings: Findings, advice: Advice) -> dict[str, Any]:
    """Return what was asked for, what it takes on each device, and where it fits."""
    return {
        "model": findings.model or None,
        "needs": [{"device": device, **need._asdict()} for device, need in findings.needs.items()],
        "fits": [gpu.uuid for gpu in advice.fitting] + ["cpu"] * _fits_cpu(findings),
    }


def _fits_cpu(findings: Findings) -> bool:
    free_mb = findings.host.memory_free_mb
    return "cpu" in findings.needs and free_mb >= findings.need_mb("cpu")
