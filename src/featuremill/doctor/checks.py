"""What is wrong with the machine and with each GPU, and what to do: docs/doctor.md lists it all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import get_args

from featuremill.doctor.findings import WORKLOAD, Findings, Issue, Severity, gigabytes
from featuremill.doctor.gpus import NOT_ANSWERING, Gpu
from featuremill.doctor.host import is_within
from featuremill.doctor.trial import Trial
from featuremill.lease import folder
from featuremill.lease.nvml import COMPUTE_MODE_PROHIBITED, COMPUTE_MODES_EXCLUSIVE

LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, VERSION_MISMATCH = 12, 9, 18
FIRST_DRIVERS = {11: "450.80", 12: "525.60", 13: "580.65"}
"""The first driver branch that runs any minor version of a CUDA major version."""
MIN_OPEN_FILES = 320
"""plan keeps 256 spool files open at once."""
MIN_DISK_GB, LITTLE_DISK_GB = 0.2, 10.0
TWINS = "PyTorch's operations stand in for the kernels on GPUs, at about 0.7 of the speed"
PASSING = ("exclusive", "full")
"""Failures that end when whoever uses the GPU is done: a run can start, and waits."""
ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([a-z]?)")
TORCH_WITH_CUDA = "take the command for your CUDA from pytorch.org/get-started"


def issues_of(findings: Findings) -> list[Issue]:
    """Return all issues, what stands in the way first."""
    of_gpus = (issue for gpu in findings.gpus for issue in of_gpu(findings, gpu))
    return by_severity([*of_node(findings), *of_gpus])


def by_severity(issues: Iterable[Issue]) -> list[Issue]:
    """Return what stands in the way, then what costs, then what is good to know."""
    return sorted(issues, key=lambda issue: get_args(Severity).index(issue.severity))


def of_node(findings: Findings) -> Iterator[Issue]:
    """Yield the issues that are not about one GPU."""
    yield from _driver(findings)
    yield from _torch(findings)
    yield from _kernels(findings)
    yield from _steps_down(findings)
    yield from _hidden(findings)
    yield from _none_usable(findings)
    yield from _host(findings)
    yield from _wish(findings)


def _driver(findings: Findings) -> Iterator[Issue]:
    node, num_cards = findings.node, findings.host.num_nvidia_cards
    if node.error is None:
        return
    if node.error == VERSION_MISMATCH:
        yield Issue(
            "warning",
            "driver-mismatch",
            "NVIDIA's library and the loaded driver have different versions, so runs go to the "
            "CPU.",
            "Reboot, or unload and load the nvidia kernel modules: the driver was updated.",
        )
    elif node.error == NOT_ANSWERING:
        yield Issue(
            "error",
            "driver-silent",
            f"The NVIDIA driver gives no answer ({node.error_text}).",
            "See whether nvidia-smi hangs as well; then look for Xid in dmesg, and reboot.",
        )
    elif num_cards or node.error not in (LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED):
        cards = f"This machine has {num_cards} NVIDIA card(s), but no" if num_cards else "No"
        yield Issue(
            "warning",
            "no-driver",
            f"{cards} driver answers ({node.error_text}), so runs go to the CPU.",
            "Install NVIDIA's driver; in a container, start it with --gpus all (Docker) or --nv "
            "(Apptainer).",
        )
    elif node.error == DRIVER_NOT_LOADED:
        yield Issue(
            "note",
            "driver-not-loaded",
            "NVIDIA's library is installed, but its driver is not loaded.",
            "Nothing to do where there is no GPU, as on a login node; else: modprobe nvidia.",
        )


def _torch(findings: Findings) -> Iterator[Issue]:
    trial = findings.torch_trial
    if trial is None:
        return
    if trial.is_missing:
        yield Issue(
            "error",
            "torch-missing",
            "torch is not installed here.",
            "pip install 'featuremill[esm2]' into the environment that runs this.",
        )
        return
    if findings.lacks_cuda:
        yield Issue(
            "error",
            "torch-without-cuda",
            f"torch {trial.torch} is built without CUDA, so it cannot use the GPUs.",
            f"Install a CUDA build of torch ({TORCH_WITH_CUDA}), or set device: cpu.",
        )
    elif findings.is_driver_too_old:
        assert trial.cuda and findings.node.cuda
        major = int(trial.cuda.partition(".")[0])
        yield Issue(
            "error",
            "driver-too-old",
            f"Driver {findings.node.driver} knows CUDA {_dotted(findings.node.cuda)}, "
            f"and torch {trial.torch} needs CUDA {major}.",
            f"Install driver {FIRST_DRIVERS.get(major, 'of that CUDA')} or later, or a torch built "
            f"for CUDA {findings.node.cuda // 1000} or older ({TORCH_WITH_CUDA}).",
        )

    tried = findings.host.tried_torch
    if trial.torch and not is_within(trial.torch, tried):
        yield Issue(
            "warning",
            "torch-untried",
            f"torch {trial.torch} is none of the releases that were tried (torch{tried}).",
            f"Where a run fails or warns: pip install 'torch{tried}', in the build for your CUDA.",
        )


def _kernels(findings: Findings) -> Iterator[Issue]:
    """Say what keeps Triton from compiling kernels."""
    if not findings.needs_kernels:
        return
    found = findings.compiling
    if found.triton is None:
        yield Issue(
            "warning",
            "triton-missing",
            f"Triton is not installed, so {TWINS}.",
            "pip install triton (torch's builds for CUDA bring it).",
        )
    elif found.compiler is None:
        yield Issue(
            "warning",
            "compiler-missing",
            "There is no C compiler for Triton (CC is not set, and neither gcc nor clang is on "
            f"PATH), so {TWINS}.",
            "apt install gcc python3-dev, or name one in CC.",
        )
    elif found.compiler_trouble:
        yield Issue(
            "warning",
            "compiler-fails",
            f"{found.compiler} cannot compile for this Python ({found.compiler_trouble}), so "
            f"{TWINS}.",
            "Another compiler in CC." if found.has_headers else "apt install python3-dev.",
        )
    if found.folder_trouble:
        yield Issue(
            "warning",
            "kernel-folder",
            f"Compiled kernels cannot be kept in {found.folder} ({found.file_system}): "
            f"{found.folder_trouble}; so {TWINS}.",
            "Name a folder that programs may be loaded from in TRITON_CACHE_DIR, or in "
            "FEATUREMILL_CACHE for the weights as well.",
        )


def _steps_down(findings: Findings) -> Iterator[Issue]:
    """Say which operations would not be computed in the first way there is, and why."""
    remedy = "Runs go on so, and their values are right; what is said of the compiler may help."
    said: dict[str, list[Gpu]] = {}
    for gpu in findings.gpus:
        for why in getattr(findings.trial(gpu), "why", ()):
            said.setdefault(why, []).append(gpu)
    for why, gpus in said.items():
        numbers = ", ".join(gpu.number for gpu in gpus)
        uuid = gpus[0].uuid if len(gpus) == 1 else None
        yield Issue("warning", "steps-down", f"GPU {numbers}: {why}", remedy, uuid)
    for why in getattr(findings.cpu_trial, "why", ()):
        yield Issue("warning", "steps-down", why, remedy)


def _dotted(cuda: int) -> str:
    return f"{cuda // 1000}.{cuda % 1000 // 10}"


def _hidden(findings: Findings) -> Iterator[Issue]:
    hidden = [gpu for gpu in findings.gpus if not gpu.is_visible]
    if not hidden:
        return
    variable = findings.node.given_by
    value = os.environ.get(variable, "")
    names = ", ".join(gpu.number for gpu in hidden)
    are_all = len(hidden) == len(findings.gpus)
    ending = ", so runs go to the CPU" if are_all else ""
    severity: Severity = "note"
    if are_all:
        severity = "error" if findings.is_chosen else "warning"
    yield Issue(
        severity,
        "hidden",
        f"{variable}={value or repr(value)} hides GPU {names}{ending}.",
        f"If they are yours to use: unset {variable}. What a scheduler gave should stay as it is.",
    )


def _none_usable(findings: Findings) -> Iterator[Issue]:
    """Say so when a run would start on nothing."""
    cpu = findings.cpu_trial
    if cpu and cpu.error and not cpu.is_missing:
        yield Issue(
            "error",
            "cpu-failed",
            f"torch could not compute on the CPU: {cpu.error}.",
            "Install torch anew; if a library is named, install that.",
        )


def _host(findings: Findings) -> Iterator[Issue]:
    host = findings.host
    if host.open_files < MIN_OPEN_FILES:
        yield Issue(
            "error",
            "open-files",
            f"A process may have only {host.open_files} files open, and plan needs 256 at once.",
            "ulimit -n 4096 before the run.",
        )
    if host.lock_trouble:
        yield Issue(
            "error" if findings.accessible else "note",
            "lock-folder",
            f"Leases of GPUs cannot be kept in {host.lock_folder}: {host.lock_trouble}.",
            f"Mend that folder, or name one on this machine's own disk in {folder.VARIABLE}.",
        )
    if not host.results_writable:
        yield Issue(
            "error",
            "results-not-writable",
            f"{host.results} cannot be written to, and results go there.",
            "Change its permissions, or start the run in another folder.",
        )
    elif host.results_free_gb < LITTLE_DISK_GB:
        is_full = host.results_free_gb < MIN_DISK_GB
        yield Issue(
            "error" if is_full else "warning",
            "disk-space",
            f"Only {host.results_free_gb:.1f} GB are free in {host.results}.",
            "Make room, or start the run in another folder; a run says first what it will write.",
        )


def _wish(findings: Findings) -> Iterator[Issue]:
    """Say so when what was asked for fits nowhere."""
    if not findings.needs:
        return
    sizes = [(gpu.memory_mb or 0, gpu.uuid) for gpu in findings.accessible]
    if findings.cpu_trial and not findings.cpu_trial.error:
        sizes = [(findings.host.memory_free_mb, "cpu")]
    if sizes and not any(size >= findings.need_mb(uuid) for size, uuid in sizes):
        largest, uuid = max(sizes)
        where = "are free for the CPU" if uuid == "cpu" else "is what the largest GPU has"
        yield Issue(
            "error",
            "too-large",
            f"{findings.needed(uuid)}; {gigabytes(largest)} {where}.",
            "Take a smaller model, or lower options: batch_tokens if the batch is what is large.",
        )


def of_gpu(findings: Findings, gpu: Gpu) -> Iterator[Issue]:
    """Yield what is wrong with `gpu` and what is good to know of it."""
    if gpu.trouble or gpu.is_divided:
        yield _issue(findings, gpu, _unreachable(gpu))
        return
    trial = findings.trial(gpu)
    if trial is None:  # hidden: said once for all
        return
    if trial.error and (findings.lacks_cuda or findings.is_driver_too_old):  # said once for all
        return
    if trial.error and not trial.is_missing:
        yield _issue(findings, gpu, _failed(findings, gpu, trial))
    yield from _used(findings, gpu)
    yield from _small(findings, gpu)
    yield from _sick(findings, gpu)


def _issue(findings: Findings, gpu: Gpu, found: tuple[str, str, str]) -> Issue:
    """Return a failure: an error when it is why no GPU is left, for then nothing can start."""
    code, what, remedy = found
    is_not_tried = gpu.uuid not in findings.trials
    others_fail = is_not_tried and bool(findings.trials)  # for reasons that are said themselves
    is_passing = code in PASSING or others_fail or bool(findings.accessible)
    severity: Severity = "warning" if is_passing else "error"
    return Issue(severity, code, f"{gpu.label} ({gpu.name}): {what}", remedy, gpu.uuid)


def _unreachable(gpu: Gpu) -> tuple[str, str, str]:
    if gpu.is_divided:
        return (
            "mig-without-slices",
            "MIG is on, but there are no slices, so nothing can run on it.",
            f"Make slices: nvidia-smi mig -i {gpu.id} -cgi …, or switch MIG off: "
            f"nvidia-smi -i {gpu.id} -mig 0.",
        )
    if gpu.is_lost:
        return (
            "lost",
            "the driver has lost it.",
            f"Look for Xid in dmesg; nvidia-smi --gpu-reset -i {gpu.id}, or reboot.",
        )
    return (
        "nvml-error",
        f"it answers with an error ({gpu.trouble}).",
        f"nvidia-smi -q -i {gpu.id} tells more; reset it or leave it out with --devices.",
    )


def _failed(findings: Findings, gpu: Gpu, trial: Trial) -> tuple[str, str, str]:
    if gpu.compute_mode == COMPUTE_MODE_PROHIBITED:
        return (
            "prohibited",
            "its compute mode is Prohibited.",
            f"sudo nvidia-smi -i {gpu.id} -c DEFAULT.",
        )
    if gpu.capability and trial.arch_list and not has_kernels(gpu.capability, trial.arch_list):
        return (
            "no-kernels",
            f"torch {trial.torch} has no kernels for it (sm_{''.join(map(str, gpu.capability))}).",
            "Install a torch whose torch.cuda.get_arch_list() names it (for older cards: one built "
            "for an older CUDA), or leave it out with --devices.",
        )
    by = findings.busy_by(gpu)
    if by and gpu.compute_mode in COMPUTE_MODES_EXCLUSIVE:
        return (
            "exclusive",
            f"its compute mode lets one process in, and that is {by}.",
            f"Wait for it, or: sudo nvidia-smi -i {gpu.id} -c DEFAULT.",
        )
    if by and trial.lacks_memory:
        return (
            "full",
            f"there is not memory enough on it to begin; it is in use by {by}.",
            "Wait for it, or ask its user.",
        )
    if trial.lacks_memory:
        free = "" if gpu.free_mb is None else f" ({gigabytes(gpu.free_mb)} free)"
        return (
            "no-memory",
            f"there is not memory enough on it for 64 MB and cuBLAS's handle{free}: "
            f"{trial.error.rstrip('.')}.",
            "See in nvidia-smi who holds it; of a GPU in slices, take a larger one; or leave it "
            "out with --devices.",
        )
    if trial.is_of_workload:
        return (
            "fails-check",
            f"torch works on it, and {WORKLOAD} would not be computed: {trial.error.rstrip('.')}.",
            "See whether this torch fits the driver; look for Xid in dmesg; reset it or leave it "
            "out with --devices.",
        )
    if trial.is_silent:
        return (
            "no-answer",
            f"a small product on it came to nothing: {trial.error}.",
            "Look for Xid in dmesg; reset it or leave it out with --devices.",
        )
    return (
        "allocation-failed",
        f"64 MB and a small product on it failed: {trial.error.rstrip('.')}.",
        "Look at nvidia-smi; reset it, or leave it out with --devices.",
    )


def has_kernels(capability: tuple[int, int], arch_list: list[str]) -> bool:
    """Tell whether code for these architectures runs on a GPU of that capability.

    Binary code runs within its major version, from its minor version on; with the suffix `a` on
    that one alone; PTX is compiled for anything later.
    """
    for found in map(ARCHITECTURE.fullmatch, arch_list):
        if not found:
            continue
        kind, major, minor, suffix = found[1], int(found[2]), int(found[3]), found[4]
        if suffix == "a":
            fits = (major, minor) == capability
        elif kind == "compute":
            fits = (major, minor) <= capability
        else:
            fits = major == capability[0] and minor <= capability[1]
        if fits:
            return True
    return False


def _used(findings: Findings, gpu: Gpu) -> Iterator[Issue]:
    if by := findings.used_by_others(gpu):
        yield Issue(
            "warning",
            "busy",
            f"{gpu.label} ({gpu.name}) is in use by {by}.",
            "Jobs wait for it or take another; leave it out with --devices, or ask its user. If it "
            "is a display, FEATUREMILL_POLICY=memory takes the GPU all the same.",
            gpu.uuid,
        )
    elif by := findings.leased_by(gpu):
        yield Issue(
            "note",
            "leased",
            f"{gpu.label} ({gpu.name}) is in use by {by}.",
            "Nothing to do: jobs wait their turn. featuremill lease --list shows who has what.",
            gpu.uuid,
        )
    elif findings.used_by_display(gpu):
        yield Issue(
            "note",
            "display",
            f"{gpu.label} ({gpu.name}) drives a display, which holds "
            f"{gigabytes(gpu.used_mb or 0)}.",
            "Nothing to do: jobs take it all the same, and the screen may lag while they compute.",
            gpu.uuid,
        )
    if gpu.compute_mode in COMPUTE_MODES_EXCLUSIVE:
        yield Issue(
            "note",
            "exclusive",
            f"{gpu.label} ({gpu.name}) lets one process in at a time (exclusive compute mode).",
            f"Fine with one slot a GPU; for more: sudo nvidia-smi -i {gpu.id} -c DEFAULT.",
            gpu.uuid,
        )


def _small(findings: Findings, gpu: Gpu) -> Iterator[Issue]:
    need_mb = findings.need_mb(gpu.uuid)
    if gpu.memory_mb is not None and gpu.memory_mb < need_mb:
        yield Issue(
            "note",
            "too-small",
            f"{gpu.label} ({gpu.name}) has {gigabytes(gpu.memory_mb)}, and "
            f"{findings.needed(gpu.uuid)}.",
            "Leave it out with --devices, or take a smaller model or batch_tokens.",
            gpu.uuid,
        )
    elif gpu.free_mb is not None and gpu.free_mb < need_mb and not findings.leased_by(gpu):
        yield Issue(
            "warning",
            "little-memory",
            f"{gpu.label} ({gpu.name}) has {gigabytes(gpu.free_mb)} free, and "
            f"{findings.needed(gpu.uuid)}.",
            "See in nvidia-smi who holds the rest, and wait or ask.",
            gpu.uuid,
        )


def _sick(findings: Findings, gpu: Gpu) -> Iterator[Issue]:
    if cooling := findings.cooling.get(gpu.uuid or ""):
        yield Issue(
            "warning",
            "cooling",
            f"{gpu.label} ({gpu.name}) gets no jobs: {cooling}.",
            "Wait until then; the logs of those jobs and dmesg (Xid) may tell why they failed.",
            gpu.uuid,
        )
    if gpu.ecc_errors:
        yield Issue(
            "warning",
            "ecc",
            f"{gpu.label} ({gpu.name}) had {gpu.ecc_errors} uncorrectable memory errors since the "
            "driver was loaded.",
            f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu.id}; reset it; if they come back, have it "
            "replaced.",
            gpu.uuid,
        )
    if gpu.throttle:
        yield Issue(
            "warning",
            "throttled",
            f"{gpu.label} ({gpu.name}) is slowed down now: {', '.join(gpu.throttle)}.",
            f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {gpu.id}; see to its cooling.",
            gpu.uuid,
        )
