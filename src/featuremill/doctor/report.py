"""The report of `featuremill doctor`: as JSON (docs/json.md), and as text of 80 columns."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator
from functools import partial
from typing import Any, get_args

from featuremill.base import text, this_process, words
from featuremill.doctor.checks import PLUGIN, Issue, Severity
from featuremill.doctor.findings import Findings
from featuremill.doctor.gpus import Gpu
from featuremill.lease.environment import DEVICES

PACKAGES = ("torch", "triton", "snakemake", "nvidia-ml-py", "numpy", "pyarrow", "fair-esm")
VERSION = 5
WIDTH = 80
NAME_WIDTH = 25
HEADINGS = {"error": "Problems", "warning": "Worth a look", "note": "Notes"}
MARKS = dict(zip(get_args(Severity), "✗!·", strict=True))
Report = dict[str, Any]
_wrapped = partial(text.wrapped, width=WIDTH)
"""`text.wrapped` with the width of the report."""


def recommended(findings: Findings) -> list[Gpu]:
    """Return the GPUs that a run should use; issues have the reasons against the others."""
    usable = _usable(findings)
    return [gpu for gpu in usable if not (findings.lacks_memory(gpu) or findings.lacks_bf16(gpu))]


def _usable(findings: Findings) -> list[Gpu]:
    """Return the GPUs that a job can lease, now or after another job."""
    visible = [gpu for gpu in findings.gpus if gpu.is_visible and not gpu.used_by]
    return [gpu for gpu in visible if findings.is_accessible(gpu) or gpu.leased_by]


def _command(findings: Findings, gpus: list[Gpu]) -> str:
    command = f"{this_process.program()} run {shlex.quote(findings.config or 'YOUR.yaml')}"
    if gpus:
        command += f" --resources gpu={len(gpus)}"
    # Without the variable, a lease takes any GPU that works.
    if gpus and (gpus != _usable(findings) or len(findings.gpus) < len(findings.node.gpus)):
        devices = [gpu.device for gpu in gpus]
        names = [each.uuid if each.is_slice else each.number for each in devices]
        command = f"{DEVICES}={','.join(map(str, names))} {command}"
    return command


def as_json(findings: Findings, issues: list[Issue], gpus: list[Gpu]) -> Report:
    """Return the report as JSON; `gpus` are the recommended GPUs."""
    torch, cpu = findings.torch_trial, findings.cpu
    is_ready = not any(issue.severity == "error" for issue in issues)
    where = words.counted(len(gpus), "GPU") if gpus else "the CPU"
    return {
        "version": VERSION,
        "ready": is_ready,
        "ready_for": where if is_ready else None,
        "gpu_ready": is_ready and bool(gpus),
        "gpus": [_gpu(findings, gpu) for gpu in findings.gpus],
        "issues": [issue._asdict() for issue in issues],
        "recommended": {
            "resources": f"gpu={len(gpus)}" if gpus else None,
            "command": _command(findings, gpus),
        },
        "memory": _memory(findings) if findings.needs else None,
        "workload": findings.subject.workload,
        "ways": [
            {"device": device, **trial.ways, "why": trial.why, "error": trial.error or None}
            for device, trial in findings.trials.items()
        ],
        "driver": {"version": findings.node.driver, "cuda": findings.node.cuda},
        "torch": torch.model_dump(include={"torch", "cuda", "arch_list"}) if torch else None,
        "cpu": {
            "name": cpu.name,
            "processors": this_process.num_cores(),
            "free_gb": round(cpu.memory_mb / 1024, 1),
            "bf16": cpu.has_bf16,
        },
        "versions": {
            "featuremill": this_process.VERSION,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()}",
            **this_process.installed(PACKAGES),
            **({"driver": driver} if (driver := findings.node.driver) else {}),
        },
    }


def _gpu(findings: Findings, gpu: Gpu) -> Report:
    device = gpu.device
    return {
        "id": device.number,
        "uuid": gpu.uuid or None,
        "name": device.name,
        "label": device.label,
        "memory_gb": round(device.memory_mb / 1024, 1) or None,
        "free_gb": None if gpu.free_mb is None else round(gpu.free_mb / 1024, 1),
        "capability": ".".join(map(str, gpu.capability)) if gpu.capability else None,
        "bf16": device.has_bf16,
        "visible": gpu.is_visible,
        "accessible": findings.is_accessible(gpu),
        "busy_by": gpu.busy_by or None,
        "state": findings.state(gpu),
    }


def _memory(findings: Findings) -> Report:
    devices = [gpu.device for gpu in findings.accessible] or [findings.cpu]
    fits = [
        each.uuid
        for each in devices
        if each.uuid in findings.needs and each.memory_mb >= findings.need_mb(each.uuid)
    ]
    needs = [{"device": device, **need._asdict()} for device, need in findings.needs.items()]
    return {"model": findings.model, "needs": needs, "fits": fits}


def lines(report: Report) -> Iterator[str]:
    """Yield the lines of the report as text."""
    labels = {gpu["uuid"]: gpu["label"] for gpu in report["gpus"]}
    yield from _wrapped(" ".join(filter(None, (_verdict(report), _fits(report, labels)))))
    yield ""
    for paragraph in (_table(report), _method_lines(report, labels), _issue_lines(report)):
        shown = list(paragraph)
        yield from [*shown, ""] if shown else ()
    if report["ready"]:
        command = f"  {report['recommended']['command']}"
        if len(command) > WIDTH:
            command = command.replace(" featuremill ", " \\\n    featuremill ")
        yield from ["To run", *command.split("\n"), ""]
    yield from _wrapped(_version_line(report))


def of_cluster(issues: list[Issue], config: dict[str, str]) -> Report:
    """Return the report on a Slurm cluster with this `config` as JSON."""
    versions = this_process.installed(("snakemake", PLUGIN))
    return {
        "version": VERSION,
        "ready": not any(issue.severity == "error" for issue in issues),
        "cluster": config.get("ClusterName"),
        "issues": [issue._asdict() for issue in issues],
        "versions": versions | {"slurm": config.get("SLURM_VERSION", "unknown")},
    }


def lines_of_cluster(report: Report) -> Iterator[str]:
    """Yield the lines of the report as text, without control characters from Slurm."""
    verdict = _not_ready(report) or f"Ready: the cluster {report['cluster']} takes jobs."
    page = [*_wrapped(verdict), "", *_issue_lines(report), *_wrapped(_version_line(report))]
    yield from map(text.one_line, page)


def _version_line(report: Report) -> str:
    return " · ".join(f"{name} {version}" for name, version in report["versions"].items())


def _not_ready(report: Report) -> str:
    """Return a sentence with the number of errors; empty without errors."""
    count = sum(issue["severity"] == "error" for issue in report["issues"])
    problems = f"{count} problem{'s prevent' if count > 1 else ' prevents'}"
    return f"Not ready: {problems} a run." if count else ""


def _issue_lines(report: Report) -> Iterator[str]:
    """Yield the issues, with a heading for each severity."""
    blank: list[str] = []
    for severity, heading in HEADINGS.items():
        issues = [issue for issue in report["issues"] if issue["severity"] == severity]
        if issues:
            yield from (*blank, heading)
            blank = [""]
        for issue in issues:
            yield from _wrapped(issue["what"], f"  {MARKS[severity]} ", "    ")
            yield from _wrapped(issue["remedy"], "    → ", "      ")


def _verdict(report: Report) -> str:
    if why_not := _not_ready(report):
        return why_not
    if not any(gpu["visible"] for gpu in report["gpus"]):
        cpu = report["cpu"]
        why = "this machine has no NVIDIA GPU"
        if report["gpus"]:
            why = "its GPUs are hidden"
        elif any(issue["code"] == "driver" for issue in report["issues"]):
            why = "no driver reports a GPU"
        return f"Ready, on the CPU ({cpu['processors']} processors, {cpu['free_gb']:g} GB): {why}."
    if not report["gpu_ready"]:
        return "Ready, but no GPU is free for it now: a run would wait for one."
    number = report["ready_for"].partition(" ")[0]
    return f"Ready: a run should use {number} of {words.counted(len(report['gpus']), 'GPU')}."


def _fits(report: Report, labels: dict[str, str]) -> str:
    if not (memory := report["memory"]):
        return ""
    here = [labels.get(uuid, "the CPU") for uuid in memory["fits"]]
    sizes = sorted({need["memory_mb"] for need in memory["needs"]})
    size = " to ".join(f"{size / 1024:.1f}" for size in dict.fromkeys((sizes[0], sizes[-1])))
    batches = sorted({(need["dtype"], need["batch_tokens"]) for need in memory["needs"]})
    manner = "; ".join(f"{dtype}, {tokens:,} tokens a batch" for dtype, tokens in batches)
    fits = f"{memory['model']} fits {words.listed(here) if here else 'nothing here'}"
    return f"{fits}; it needs about {size} GB ({manner})."


def _table(report: Report) -> Iterator[str]:
    if report["gpus"]:
        width = max(len(gpu["label"]) for gpu in report["gpus"])
        yield f"{'':{width}}  {'model':{NAME_WIDTH}}   memory     free  state"
    for gpu in report["gpus"]:
        memory, free = (
            f"{'–' if size is None else f'{size:.0f} GB':>7}"
            for size in (gpu["memory_gb"], gpu["free_gb"])
        )
        name = f"{gpu['name'][:NAME_WIDTH]:{NAME_WIDTH}}"
        yield "  ".join([f"{gpu['label']:{width}}", name, memory, free, gpu["state"]])


def _method_lines(report: Report, labels: dict[str, str]) -> Iterator[str]:
    for number, ways in enumerate(ways for ways in report["ways"] if ways.get("dtype")):
        if not number:
            yield f"{report['workload']} would be computed so"
        methods = {key: method for key, method in ways.items() if isinstance(method, str)}
        device, dtype = methods.pop("device"), methods.pop("dtype")
        what = "; ".join(f"{operation} {method}" for operation, method in methods.items())
        yield from _wrapped(f"{labels.get(device, 'CPU')}  {dtype}: {what}", "  ", "    ")
