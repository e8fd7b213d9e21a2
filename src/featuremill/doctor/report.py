"""The doctor's answer: as JSON, of which docs/json.md describes each key, and from that for
people, calm and within 80 columns."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, get_args

from featuremill.base import text, this_process, words
from featuremill.base.environment import DEVICES
from featuremill.doctor.findings import Findings, Issue, Severity
from featuremill.doctor.gpus import Gpu
from featuremill.workload import ReportsWays, find_workload


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


VERSION = 4
WIDTH = 80
NAME_WIDTH = 25
HEADINGS = {"error": "Problems", "warning": "Worth a look", "note": "Notes"}
MARKS = dict(zip(get_args(Severity), "✗!·", strict=True))
Report = dict[str, Any]
wrapped = partial(text.wrapped, width=WIDTH)
"""Lines of the page's width."""


def as_json(findings: Findings, issues: list[Issue], advice: Advice) -> Report:
    torch, host = findings.torch_trial, findings.host
    is_ready = not any(issue.severity == "error" for issue in issues)
    return {
        "version": VERSION,
        "ready": is_ready,
        "ready_for": _ready_for(advice, is_ready=is_ready),
        "gpu_ready": is_ready and bool(advice.counted),
        "cuda_available": bool(findings.accessible),
        "gpu_count": len(findings.gpus),
        "gpus": [_gpu(findings, gpu) for gpu in findings.gpus],
        "issues": [issue._asdict() for issue in issues],
        "recommended": {"resources": advice.resources, "command": advice.command},
        "memory": _memory(findings) if findings.needs else None,
        "workload": findings.workload,
        "ways": _ways(findings),
        "driver": {"version": findings.node.driver, "cuda": findings.node.cuda},
        "torch": {
            "version": torch.torch if torch else None,
            "cuda": torch.cuda if torch else None,
            "architectures": torch.arch_list if torch else [],
        },
        "cpu": {
            "name": findings.cpu.name,
            "processors": host.num_processors,
            "free_gb": round(host.memory_free_mb / 1024, 1),
            "bf16": findings.cpu.has_bf16,
        },
        "versions": host.versions,
    }


def _ready_for(advice: Advice, *, is_ready: bool) -> str | None:
    """Return where a run would compute now; None where none can start."""
    if not is_ready:
        return None
    return words.counted(len(advice.counted), "GPU") if advice.counted else "the CPU"


def _ways(findings: Findings) -> list[Report]:
    """Return by what each device that was tried would compute."""
    trials = {**findings.trials, **({"cpu": findings.cpu_trial} if findings.cpu_trial else {})}
    workload = find_workload(findings.workload)
    nothing = dict.fromkeys(workload.WAYS) if isinstance(workload, ReportsWays) else {}
    return [
        {"device": device, **nothing, **trial.ways, "why": trial.why, "error": trial.error or None}
        for device, trial in trials.items()
    ]


def _gpu(findings: Findings, gpu: Gpu) -> Report:
    return {
        **gpu.model_dump(include={"id", "mig", "uuid", "name"}),
        "memory_gb": _gigabytes(gpu.memory_mb),
        "free_gb": _gigabytes(gpu.free_mb),
        "processes": [process.model_dump() for process in gpu.processes],
        "capability": ".".join(map(str, gpu.capability)) if gpu.capability else None,
        "bf16": gpu.has_bf16,
        "visible": gpu.is_visible,
        "accessible": findings.is_accessible(gpu),
        "busy_by": findings.busy_by(gpu),
        "label": gpu.label,
        "state": findings.state(gpu),
    }


def _gigabytes(memory_mb: int | None) -> float | None:
    return None if memory_mb is None else round(memory_mb / 1024, 1)


def _memory(findings: Findings) -> Report:
    """Return what was asked for, what it takes on each device, and where it fits."""
    fits_cpu = (
        "cpu" in findings.needs and findings.host.memory_free_mb >= findings.need_mb("cpu")
    )  # fmt: skip
    fitting = [gpu.uuid for gpu in findings.accessible if not findings.is_too_small(gpu)]
    return {
        "model": findings.model,
        "needs": [{"device": device, **need._asdict()} for device, need in findings.needs.items()],
        "fits": fitting + ["cpu"] * fits_cpu,
        "fits_gpus": list(findings.fits_gpus),
    }


def lines(report: Report) -> Iterator[str]:
    labels = {gpu["uuid"]: gpu["label"] for gpu in report["gpus"]}
    yield from wrapped(" ".join(filter(None, (_verdict(report), _fits(report, labels)))))
    yield ""
    for paragraph in (
        _table_lines(report),
        _ways_lines(report, labels),
        issue_lines(report),
        _memory_lines(report),
        _recommended_lines(report) if report["ready"] else (),
    ):
        shown = list(paragraph)
        yield from [*shown, ""] if shown else ()
    versions = [f"{name} {version}" for name, version in report["versions"].items()]
    if report["driver"]["version"]:
        versions.append(f"driver {report['driver']['version']}")
    yield from wrapped(" · ".join(versions))


def not_ready(report: Report) -> str:
    """Say how much is in the way; empty where nothing is."""
    count = sum(issue["severity"] == "error" for issue in report["issues"])
    things = f"{count} problem{'s prevent' if count > 1 else ' prevents'}"
    return f"Not ready: {things} a run." if count else ""


def issue_lines(report: Report) -> Iterator[str]:
    """Yield what is in the way, worth a look and good to know."""
    is_first = True
    for severity, heading in HEADINGS.items():
        found = [issue for issue in report["issues"] if issue["severity"] == severity]
        if found:
            yield from [heading] if is_first else ["", heading]
            is_first = False
        for issue in found:
            yield from wrapped(issue["what"], f"  {MARKS[severity]} ", "    ")
            yield from wrapped(issue["remedy"], "    → ", "      ")


def _verdict(report: Report) -> str:
    if why_not := not_ready(report):
        return why_not
    if not any(gpu["visible"] for gpu in report["gpus"]):
        cpu = report["cpu"]
        why = "this machine has no NVIDIA GPU"
        if report["gpus"]:
            why = "its GPUs are hidden"
        elif any("driver" in issue["code"] for issue in report["issues"]):
            why = "no driver reports a GPU"
        return f"Ready, on the CPU ({cpu['processors']} processors, {cpu['free_gb']:g} GB): {why}."
    resources = report["recommended"]["resources"]
    if not resources:
        return "Ready, but no GPU is free for it now: a run would wait for one."
    number, count = resources.removeprefix("gpu="), report["gpu_count"]
    return f"Ready: a run should use {number} of {count} GPU{'s' if count > 1 else ''}."


def _table_lines(report: Report) -> Iterator[str]:
    if report["gpus"]:
        width = max(len(gpu["label"]) for gpu in report["gpus"])
        yield f"{'':{width}}  {'model':{NAME_WIDTH}}   memory     free  state"
    for gpu in report["gpus"]:
        sizes = (
            "–" if size is None else f"{size:.0f} GB" for size in (gpu["memory_gb"], gpu["free_gb"])
        )
        memory, free = (f"{size:>7}" for size in sizes)
        name = f"{gpu['name'][:NAME_WIDTH]:{NAME_WIDTH}}"
        yield "  ".join([f"{gpu['label']:{width}}", name, memory, free, gpu["state"]])


BESIDES = ("device", "why", "error")
"""What is said of a device where the workload does not say by what it would compute."""


def _ways_lines(report: Report, labels: dict[str, str]) -> Iterator[str]:
    known = [ways for ways in report["ways"] if not ways["error"] and len(ways) > len(BESIDES)]
    if known:
        yield f"{report['workload']} would be computed so"
    for ways in known:
        operations = {key: way for key, way in ways.items() if isinstance(way, str)}
        device, dtype = operations.pop("device"), operations.pop("dtype", "")
        what = "; ".join(f"{operation} {way}" for operation, way in operations.items())
        yield from wrapped(f"{labels.get(device, 'CPU')}  {dtype}: {what}", "  ", "    ")


def _fits(report: Report, labels: dict[str, str]) -> str:
    """Say for which GPUs a model is: those here, or else which of the common sizes."""
    if not (memory := report["memory"]):
        return ""
    here = [labels.get(uuid, "the CPU") for uuid in memory["fits"]]
    said = f"{memory['model']} fits {words.listed(here) if here else 'nothing here'}"
    if "cpu" not in {need["device"] for need in memory["needs"]}:
        return f"{said}."
    sizes = words.listed(memory["fits_gpus"]) if memory["fits_gpus"] else "more than 80 GB"
    return f"{said}, and GPUs of {sizes}."


def _memory_lines(report: Report) -> Iterator[str]:
    if not (memory := report["memory"]):
        return
    sizes = sorted({need["memory_mb"] for need in memory["needs"]})
    size = " to ".join(f"{size / 1024:.1f}" for size in dict.fromkeys((sizes[0], sizes[-1])))
    batches = sorted({(n["dtype"], n["batch_tokens"]) for n in memory["needs"]})
    manner = "; ".join(f"{dtype}, {tokens:,} tokens a batch" for dtype, tokens in batches)
    yield from wrapped(f"{memory['model']} takes about {size} GB ({manner}).")


def _recommended_lines(report: Report) -> Iterator[str]:
    command = f"  {report['recommended']['command']}"
    if len(command) > WIDTH:
        command = command.replace(" featuremill ", " \\\n    featuremill ")
    yield from ["To run", *command.split("\n")]
