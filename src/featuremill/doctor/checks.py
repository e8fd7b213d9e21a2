"""Check the findings about this machine, or a Slurm cluster, for issues, with messages and remedies
(codes: docs/json.md)."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from featuremill.base.errors import UserError
from featuremill.base.this_process import installed, nearest_folder
from featuremill.doctor.findings import Findings, gigabytes
from featuremill.doctor.gpus import NOT_ANSWERING, Gpu
from featuremill.lease import folder as lease_folder
from featuremill.lease.environment import LEASE_FOLDER, Variable
from featuremill.workload import find_workload

Severity = Literal["error", "warning", "note"]
LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED = 12, 9
PCI_DEVICES, NVIDIA = Path("/sys/bus/pci/devices"), "0x10de"
MIN_DISK_GB, LITTLE_DISK_GB = 0.2, 10.0
MOUNTS = Path("/proc/self/mountinfo")
MAX_SECONDS = 30.0
"""Longest wait for Slurm's answer."""
PLUGIN, TRIED = "snakemake-executor-plugin-slurm", "2.8.0"
"""The plugin, and its tested version; docs/slurm-status.md lists its response to each event."""
LOCAL_FILE_SYSTEMS = {"btrfs", "ext2", "ext3", "ext4", "overlay", "tmpfs", "xfs", "zfs"}


class Issue(NamedTuple):
    """An issue that prevents a run (error), has a cost (warning) or is informative (note)."""

    severity: Severity
    code: str
    what: str
    remedy: str
    gpu: str | None = None
    """The UUID of the GPU, if the issue is about one."""


PYTORCH = "take the command for your CUDA from pytorch.org/get-started"
RESET = "reset it (nvidia-smi --gpu-reset -i {id}), or leave it out with --devices."
TABLE: dict[str, tuple[str, Severity, str, str]] = {
    "driver": ("driver", "warning",
        "NVIDIA's driver gives no answer ({error}){so}.",
        "Install the driver or load it (modprobe nvidia). Reboot after an update of it, or if "
        "nvidia-smi hangs. Start a container with --gpus all (Docker) or --nv (Apptainer)."),
    "no torch": ("torch", "error",
        "torch is not installed here.",
        "pip install '{requirement}' into the environment that runs this."),
    "torch without CUDA": ("torch", "error",
        "torch {torch} is built without CUDA, so it cannot use the GPUs.",
        f"Install a CUDA build of torch ({PYTORCH}), or set device: cpu."),
    "CPU": ("torch", "error",
        "torch could not compute on the CPU: {error}.",
        "Install torch anew, and the library that is named."),
    "problem": ("gpu-fails", "warning",
        "{gpu}: {problem}.",
        "See nvidia-smi -q -i {id}, and Xid in dmesg. Set its mode right (nvidia-smi -i {id} "
        f"-c DEFAULT, or -mig 0), {RESET}"),
    "fails": ("gpu-fails", "warning",
        "{gpu}: {work} failed: {error}.",
        "See whether this torch has kernels for it (torch.cuda.get_arch_list()) and fits the "
        f"driver, who holds its memory (nvidia-smi), and Xid in dmesg; {RESET}"),
    "fallback": ("steps-down", "warning",
        "{devices}{why}",
        "Runs work so, and their values are right. Triton needs a C compiler (gcc and "
        "python3-dev, or CC), and in TRITON_CACHE_DIR a folder that programs may be loaded from."),
    "busy": ("busy", "warning",
        "{gpu} is busy: {by}{failure}.",
        "Jobs wait for it or take another; ask its user, or leave it out with --devices."),
    "cooling": ("sick", "warning",
        "{gpu} gets no jobs: {why}.",
        "Wait until then; the logs of those jobs and dmesg (Xid) may show why they failed."),
    "hidden": ("hidden", "note",
        "{variable}={value} hides {gpus}{so}.",
        "If they are yours to use: unset {variable}. Keep what a scheduler set."),
    "no bf16": ("no-bf16", "note",
        "{gpu} has no bf16, which dtype: auto takes for the others.",
        "The command below leaves it out; with dtype: fp16 a run may use all."),
    "small": ("memory", "warning",
        "{gpu} has {free} free of {size}, and {needed}.",
        "Leave it out with --devices, take a smaller model or smaller batches, or see in "
        "nvidia-smi who uses the rest."),
    "too large": ("memory", "error",
        "{needed}; {largest} {where}.",
        "Take a smaller model or smaller batches, or gpus_per_job."),
    "too few": ("too-few", "error",
        "A run would take {count} of the GPUs here now, and --gpus wants {number}.",
        "See below why others are left out, or lower --gpus."),
    "results": ("files", "error",
        "{folder} {problem}, and results go there.",
        "Free space, change its permissions, or start the run in another folder."),
    "leases": ("files", "error",
        "Leases of GPUs cannot be kept: {problem}.",
        f"Fix that folder, or name one on this machine's own disk in {LEASE_FOLDER}."),
    "no plugin": ("slurm", "error",
        "{name} is not installed here, so Snakemake cannot submit jobs.",
        "pip install '{requirement}', or run inside one sbatch."),
    "controller": ("slurm", "error",
        "Slurm's controller gives no answer ({error}).",
        "Try scontrol ping; a login node of the cluster may be needed."),
    "local disk": ("slurm", "warning",
        "{folder} is on {kind}, so jobs on other nodes would not find the run.",
        "Start the run in a folder that every node sees (home, project or scratch)."),
}  # fmt: skip
"""Code, severity, message and remedy by row; `issue` formats the fields in braces."""


def issue(
    row: str, severity: Severity | None = None, gpu: Gpu | None = None, **words: Any
) -> Issue:
    """Return the issue of a row of TABLE; `severity` overrides that of the row."""
    code, usual, what, remedy = TABLE[row]
    if gpu:
        words |= {"gpu": gpu.device.label, "id": gpu.device.number}
    uuid = gpu.uuid or None if gpu else None
    return Issue(severity or usual, code, what.format(**words), remedy.format(**words), uuid)


def by_severity(issues: Iterable[Issue]) -> list[Issue]:
    """Return the issues sorted: errors, warnings, notes."""
    return sorted(issues, key=lambda each: get_args(Severity).index(each.severity))


def issues_of(findings: Findings) -> list[Issue]:
    """Return all issues of this machine, errors first."""
    issues = [each for check in CHECKS for each in check(findings)]
    return by_severity([*issues, *(each for gpu in findings.gpus for each in _gpu(findings, gpu))])


def _driver(findings: Findings) -> Iterator[Issue]:
    error, is_silent = findings.node.error, findings.node.error == NOT_ANSWERING
    has_card = any(path.read_text().strip() == NVIDIA for path in PCI_DEVICES.glob("*/vendor"))
    if error is None or (error in (LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED) and not has_card):
        return
    so = "" if is_silent else ", so runs go to the CPU"
    severity: Severity = "error" if is_silent else "warning"
    yield issue("driver", severity, error=findings.node.error_text, so=so)


def _torch(findings: Findings) -> Iterator[Issue]:
    trial, cpu = findings.torch_trial, findings.trials.get("cpu")
    if trial and trial.is_missing:
        packages = find_workload(findings.subject.workload).Options.PACKAGES
        yield issue("no torch", requirement=packages.get("torch", "torch"))
    elif trial and not cpu and not trial.cuda:
        yield issue("torch without CUDA", torch=trial.torch)
    elif cpu and cpu.error:
        yield issue("CPU", error=cpu.error.rstrip("."))


def _fallbacks(findings: Findings) -> Iterator[Issue]:
    labels = {gpu.uuid: f"{gpu.device.label}: " for gpu in findings.gpus}
    whys = dict.fromkeys(why for trial in findings.trials.values() for why in trial.why)
    for why in whys:
        uuids = [uuid for uuid, trial in findings.trials.items() if why in trial.why]
        devices = "".join(labels.get(uuid, "") for uuid in uuids).replace(": G", ", G")
        yield issue("fallback", devices=devices, why=why)


def _hidden(findings: Findings) -> Iterator[Issue]:
    if not (hidden := [gpu.device.label for gpu in findings.gpus if not gpu.is_visible]):
        return
    severity: Severity = "note"
    if len(hidden) == len(findings.gpus):
        severity = "error" if findings.is_chosen else "warning"
    so = "" if severity == "note" else ", so runs go to the CPU"
    variable = findings.node.given_by
    value, gpus = Variable(variable).text() or "''", ", ".join(hidden)
    yield issue("hidden", severity, variable=variable, value=value, gpus=gpus, so=so)


def _files(findings: Findings) -> Iterator[Issue]:
    try:
        with tempfile.TemporaryFile(dir=lease_folder.find()):
            pass
    except (UserError, OSError) as error:
        severity: Severity = "error" if findings.accessible else "note"
        yield issue("leases", severity, problem=str(error).rstrip("."))
    folder = nearest_folder(findings.results.absolute())
    free_gb = shutil.disk_usage(folder).free / 1e9
    if not os.access(folder, os.W_OK | os.X_OK):
        yield issue("results", folder=folder, problem="cannot be written to")
    elif free_gb < LITTLE_DISK_GB:
        severity = "error" if free_gb < MIN_DISK_GB else "warning"
        yield issue("results", severity, folder=folder, problem=f"has only {free_gb:.1f} GB free")


def _too_large(findings: Findings) -> Iterator[Issue]:
    tried = [gpu.device for gpu in findings.accessible] or [findings.cpu]
    largest = max(tried, key=lambda device: device.memory_mb)
    fits = largest.memory_mb >= findings.need_mb(largest.uuid)
    if findings.needs and largest.uuid in findings.trials and not fits:
        where = "is free for the CPU" if largest.kind == "cpu" else "is what the largest GPU has"
        size, needed = gigabytes(largest.memory_mb), findings.needed(largest.uuid)
        yield issue("too large", needed=needed, largest=size, where=where)


def _gpu(findings: Findings, gpu: Gpu) -> Iterator[Issue]:
    """Yield the issues of one GPU; not those of all GPUs, such as a torch without CUDA."""
    # A run can start if some GPU works, or is only in use.
    can_start = any(findings.is_accessible(each) or each.busy_by for each in findings.gpus)
    severity: Severity = "warning" if can_start else "error"
    trial = findings.trials.get(gpu.uuid)
    if gpu.problem:
        yield issue("problem", severity, gpu, problem=gpu.problem)
    if trial is None:
        return
    is_general = trial.is_missing or (trial.torch and not trial.cuda)
    error = "" if is_general else trial.error.rstrip(".")
    if gpu.used_by or (error and gpu.leased_by):
        failure = f"; a test calculation on it failed: {error}" if error else ""
        yield issue("busy", gpu=gpu, by=gpu.busy_by, failure=failure)
    elif error:
        work = "torch works, but a test of " + findings.subject.workload
        work = work if trial.is_of_workload else "a test calculation"
        yield issue("fails", severity, gpu, work=work, error=error)
    if findings.lacks_memory(gpu):
        free, size = gigabytes(gpu.free_mb or 0), gigabytes(gpu.device.memory_mb)
        yield issue("small", gpu=gpu, free=free, size=size, needed=findings.needed(gpu.uuid))
    elif findings.is_accessible(gpu) and findings.lacks_bf16(gpu):
        yield issue("no bf16", gpu=gpu)
    if gpu.cooling:
        yield issue("cooling", gpu=gpu, why=gpu.cooling)


CHECKS = (_driver, _torch, _fallbacks, _hidden, _files, _too_large)


def look_at_cluster(arguments: argparse.Namespace) -> tuple[list[Issue], dict[str, str]]:
    """Return the issues of a Slurm cluster, errors first, and the values of its config.

    Raises:
        UserError: Slurm is not installed, or an option requires this machine.
    """
    for name in ("model", "config", "devices"):
        if getattr(arguments, name):
            raise UserError(
                f"--slurm looks at the cluster, so it takes no --{name}; run featuremill doctor "
                "twice."
            )
    if not shutil.which("scontrol"):
        raise UserError(
            "scontrol: not in PATH, so there is no Slurm to look at from here; run "
            "featuremill doctor --slurm on a login node of the cluster."
        )
    issues, folder = [], nearest_folder(arguments.results.absolute())
    kind = lease_folder.file_system(folder, MOUNTS.read_text("utf-8", "replace"))
    if kind in LOCAL_FILE_SYSTEMS:
        issues.append(issue("local disk", folder=folder, kind=kind))
    if not installed([PLUGIN]):
        issues.append(issue("no plugin", name=PLUGIN, requirement=f"{PLUGIN}=={TRIED}"))
    command, seconds = ["scontrol", "show", "config"], min(arguments.timeout, MAX_SECONDS)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        config, status = done.stdout, f"status {done.returncode}"
        problem = (done.stderr.strip() or status) if done.returncode else ""
    except subprocess.TimeoutExpired:
        config, problem = "", f"no answer within {seconds:g} s"
    if problem:
        issues.append(issue("controller", error=problem.splitlines()[-1].rstrip(".")))
    return by_severity(issues), dict(re.findall(r"^(\w+) *= *(.*)$", config, re.MULTILINE))
