"""What is wrong with the machine and with each GPU, and what to do; docs/json.md has the codes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import get_args

from featuremill.base.environment import LEASE_FOLDER, Variable
from featuremill.base.words import counted
from featuremill.doctor.findings import Findings, Issue, Severity, gigabytes
from featuremill.doctor.gpus import NOT_ANSWERING, Gpu
from featuremill.doctor.trial import Trial
from featuremill.lease.nvml import COMPUTE_MODE_PROHIBITED, COMPUTE_MODES_EXCLUSIVE
from featuremill.workload import find_workload

LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, VERSION_MISMATCH = 12, 9, 18
FIRST_DRIVERS = {11: "450.80", 12: "525.60", 13: "580.65"}
"""The first driver branch that runs any minor version of a CUDA major version."""
MIN_OPEN_FILES = 320
"""plan keeps 256 spool files open at once."""
MIN_DISK_GB, LITTLE_DISK_GB = 0.2, 10.0
TORCH_WITH_CUDA = "take the command for your CUDA from pytorch.org/get-started"
PASSING = ("exclusive", "full")
"""Failures that end when whoever uses the GPU is done: a run can start, and waits."""
ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([a-z]?)")
REMEDIES = {
    "driver-mismatch": "Reboot, or unload and load the nvidia kernel modules: the driver was "
    "updated.",
    "driver-silent": "See whether nvidia-smi hangs as well; then look for Xid in dmesg, and "
    "reboot.",
    "no-driver": "Install NVIDIA's driver; in a container, start it with --gpus all (Docker) or "
    "--nv (Apptainer).",
    "driver-not-loaded": "Nothing to do where there is no GPU, as on a login node; else: modprobe "
    "nvidia.",
    "torch-missing": "pip install '{requirement}' into the environment that runs this.",
    "torch-without-cuda": f"Install a CUDA build of torch ({TORCH_WITH_CUDA}), or set device: cpu.",
    "driver-too-old": "Install driver {first} or later, or a torch built for CUDA {major} or older "
    f"({TORCH_WITH_CUDA}).",
    "steps-down": "Runs work so, and their values are right. Triton needs a C compiler (gcc and "
    "python3-dev, or CC), and in TRITON_CACHE_DIR a folder that programs may be loaded from.",
    "hidden": "If they are yours to use: unset {variable}. What a scheduler gave should stay as it "
    "is.",
    "cpu-failed": "Install torch anew; if a library is named, install that.",
    "open-files": "ulimit -n 4096 before the run.",
    "lock-folder": f"Fix that folder, or name one on this machine's own disk in {LEASE_FOLDER}.",
    "results-not-writable": "Change its permissions, or start the run in another folder.",
    "disk-space": "Free space, or start the run in another folder. A run first prints what it will "
    "write.",
    "too-large": "Take a smaller model{or_lower}.",
    "mig-without-slices": "Make slices: nvidia-smi mig -i {id} -cgi …, or switch MIG off: "
    "nvidia-smi -i {id} -mig 0.",
    "lost": "Look for Xid in dmesg; nvidia-smi --gpu-reset -i {id}, or reboot.",
    "nvml-error": "nvidia-smi -q -i {id} shows more; reset it or leave it out with --devices.",
    "prohibited": "sudo nvidia-smi -i {id} -c DEFAULT.",
    "no-kernels": "Install a torch whose torch.cuda.get_arch_list() names it (for older cards: one "
    "built for an older CUDA), or leave it out with --devices.",
    "exclusive": "Wait for it, or: sudo nvidia-smi -i {id} -c DEFAULT.",
    "full": "Wait for it, or ask its user.",
    "no-memory": "See in nvidia-smi who holds it; of a GPU in slices, take a larger one; or leave "
    "it out with --devices.",
    "fails-check": "See whether this torch fits the driver; look for Xid in dmesg; reset it or "
    "leave it out with --devices.",
    "no-answer": "Look for Xid in dmesg; reset it or leave it out with --devices.",
    "allocation-failed": "Look at nvidia-smi; reset it, or leave it out with --devices.",
    "too-few": "See below why others are left out, or lower --gpus.",
    "busy": "Jobs wait for it or take another; leave it out with --devices, or ask its user. If it "
    "is a display, FEATUREMILL_POLICY=memory uses the GPU anyway.",
    "too-small": "Leave it out with --devices, or take a smaller model{or_option}.",
    "too-old": "The command below leaves it out; with dtype: fp16 a run may use all.",
    "little-memory": "See in nvidia-smi who holds the rest, and wait or ask.",
    "cooling": "Wait until then; the logs of those jobs and dmesg (Xid) may show why they failed.",
    "ecc": "nvidia-smi -q -d ECC,ROW_REMAPPER -i {id}; reset it; if they come back, have it "
    "replaced.",
}
"""What to do, by code. {id} is the GPU's number; the other words are given where the issue is."""


def _issue(severity: Severity, code: str, what: str, **words: object) -> Issue:
    return Issue(severity, code, what, REMEDIES[code].format(**words))


def _of(gpu: Gpu, severity: Severity, code: str, what: str, remedy: str = "") -> Issue:
    """Return an issue of one GPU; `what` goes on after its name."""
    told = (remedy or REMEDIES[code]).format(id=gpu.id)
    return Issue(severity, code, f"{gpu.label}{what}", told, gpu.uuid)


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
    yield from _steps_down(findings)
    yield from _hidden(findings)
    cpu = findings.cpu_trial
    if cpu and cpu.error and not cpu.is_missing:
        yield _issue("error", "cpu-failed", f"torch could not compute on the CPU: {cpu.error}.")
    yield from _host(findings)
    yield from _wish(findings)


def _driver(findings: Findings) -> Iterator[Issue]:
    error, said = findings.node.error, findings.node.error_text
    num_cards = findings.host.num_nvidia_cards
    if error is None:
        return
    if error == VERSION_MISMATCH:
        what = "NVIDIA's library and the loaded driver have different versions"
        yield _issue("warning", "driver-mismatch", f"{what}, so runs go to the CPU.")
    elif error == NOT_ANSWERING:
        yield _issue("error", "driver-silent", f"The NVIDIA driver gives no answer ({said}).")
    elif num_cards or error not in (LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED):
        cards = f"This machine has {num_cards} NVIDIA card(s), but no" if num_cards else "No"
        what = f"{cards} driver answers ({said}), so runs go to the CPU."
        yield _issue("warning", "no-driver", what)
    elif error == DRIVER_NOT_LOADED:
        what = "NVIDIA's library is installed, but its driver is not loaded."
        yield _issue("note", "driver-not-loaded", what)


def _torch(findings: Findings) -> Iterator[Issue]:
    trial, node = findings.torch_trial, findings.node
    if trial is None:
        return
    if trial.is_missing:
        packages = find_workload(findings.workload).Options.PACKAGES
        requirement = packages.get("torch", "torch")
        what = "torch is not installed here."
        yield _issue("error", "torch-missing", what, requirement=requirement)
        return
    name = f"torch {trial.torch}"
    if findings.lacks_cuda:
        what = f"{name} is built without CUDA, so it cannot use the GPUs."
        yield _issue("error", "torch-without-cuda", what)
    elif findings.is_driver_too_old:
        assert trial.cuda and node.cuda
        needed, major = int(trial.cuda.partition(".")[0]), node.cuda // 1000
        known = f"{major}.{node.cuda % 1000 // 10}"
        what = f"Driver {node.driver} supports CUDA {known}, and {name} needs CUDA {needed}."
        first = FIRST_DRIVERS.get(needed, "of that CUDA")
        yield _issue("error", "driver-too-old", what, first=first, major=major)


def _steps_down(findings: Findings) -> Iterator[Issue]:
    """Say which operations would not be computed in the first way there is, and why."""
    said: dict[str, list[Gpu]] = {}
    for gpu in findings.gpus:
        for why in getattr(findings.trial(gpu), "why", ()):
            said.setdefault(why, []).append(gpu)
    for why, gpus in said.items():
        names = ", ".join(gpu.label for gpu in gpus)
        uuid = gpus[0].uuid if len(gpus) == 1 else None
        yield _issue("warning", "steps-down", f"{names}: {why}")._replace(gpu=uuid)
    for why in getattr(findings.cpu_trial, "why", ()):
        yield _issue("warning", "steps-down", why)


def _hidden(findings: Findings) -> Iterator[Issue]:
    hidden = [gpu for gpu in findings.gpus if not gpu.is_visible]
    if not hidden:
        return
    variable = findings.node.given_by
    value = Variable(variable).text() or ""
    what = f"{variable}={value or repr(value)} hides {', '.join(gpu.label for gpu in hidden)}"
    severity: Severity = "note"
    if len(hidden) == len(findings.gpus):
        what += ", so runs go to the CPU"
        severity = "error" if findings.is_chosen else "warning"
    yield _issue(severity, "hidden", f"{what}.", variable=variable)


def _host(findings: Findings) -> Iterator[Issue]:
    host = findings.host
    if host.open_files < MIN_OPEN_FILES:
        what = f"A process may have only {host.open_files} files open, and plan needs 256 at once."
        yield _issue("error", "open-files", what)
    if host.lock_trouble:
        what = f"Leases of GPUs cannot be kept in {host.lock_folder}: {host.lock_trouble}."
        yield _issue("error" if findings.accessible else "note", "lock-folder", what)
    if not host.results_writable:
        what = f"{host.results} cannot be written to, and results go there."
        yield _issue("error", "results-not-writable", what)
    elif host.results_free_gb < LITTLE_DISK_GB:
        severity: Severity = "error" if host.results_free_gb < MIN_DISK_GB else "warning"
        what = f"Only {host.results_free_gb:.1f} GB are free in {host.results}."
        yield _issue(severity, "disk-space", what)


def too_few(count: int, wanted: int) -> Issue:
    """Return the issue of a machine with fewer GPUs than `--gpus` says."""
    what = f"A run would take {counted(count, 'GPU')} here now, and --gpus wants {wanted}."
    return _issue("error", "too-few", what)


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
        what = f"{findings.needed(uuid)}; {gigabytes(largest)} {where}."
        option = findings.batch_option
        or_lower = f", or lower options: {option} if the batch is what is large" if option else ""
        yield _issue("error", "too-large", what, or_lower=or_lower)


def of_gpu(findings: Findings, gpu: Gpu) -> Iterator[Issue]:
    """Yield what is wrong with `gpu` and what is good to know of it."""
    trial = findings.trial(gpu)
    if gpu.trouble or gpu.is_divided:
        yield _failure(findings, gpu, *_unreachable(gpu))
        return
    if trial is None:  # hidden: said once for all
        return
    is_said = findings.lacks_cuda or findings.is_driver_too_old or trial.is_missing  # once for all
    if trial.error and not is_said:
        yield _failure(findings, gpu, *_failed(findings, gpu, trial))
    yield from _used(findings, gpu)
    yield from _small(findings, gpu)
    yield from _sick(findings, gpu)


def _failure(findings: Findings, gpu: Gpu, code: str, what: str) -> Issue:
    """Return a failure: an error when it is why no GPU is left, for then nothing can start."""
    is_not_tried = gpu.uuid not in findings.trials
    others_fail = is_not_tried and bool(findings.trials)  # for reasons that are said themselves
    is_passing = code in PASSING or others_fail or bool(findings.accessible)
    return _of(gpu, "warning" if is_passing else "error", code, f": {what}")


def _unreachable(gpu: Gpu) -> tuple[str, str]:
    """Return the code of what is wrong, and that in words."""
    if gpu.is_divided:
        return "mig-without-slices", "MIG is on, but there are no slices, so nothing can run on it."
    if gpu.is_lost:
        return "lost", "the driver has lost it."
    return "nvml-error", f"it answers with an error ({gpu.trouble})."


def _failed(findings: Findings, gpu: Gpu, trial: Trial) -> tuple[str, str]:
    """Return the code of why the trial failed, and that in words."""
    error = trial.error.rstrip(".")
    if gpu.compute_mode == COMPUTE_MODE_PROHIBITED:
        return "prohibited", "its compute mode is Prohibited."
    if gpu.capability and trial.arch_list and not has_kernels(gpu.capability, trial.arch_list):
        architecture = f"sm_{''.join(map(str, gpu.capability))}"
        return "no-kernels", f"torch {trial.torch} has no kernels for it ({architecture})."
    by = findings.busy_by(gpu)
    if by and gpu.compute_mode in COMPUTE_MODES_EXCLUSIVE:
        return "exclusive", f"its compute mode lets one process in, and that is {by}."
    if by and trial.lacks_memory:
        return "full", f"there is not memory enough on it to begin; it is in use by {by}."
    if trial.lacks_memory:
        free = "" if gpu.free_mb is None else f" ({gigabytes(gpu.free_mb)} free)"
        what = f"there is not memory enough on it for 64 MB and cuBLAS's handle{free}: {error}."
        return "no-memory", what
    if trial.is_of_workload:
        what = f"torch works on it, and {findings.workload} would not be computed: {error}."
        return "fails-check", what
    if trial.is_silent:
        return "no-answer", f"a test calculation on it failed: {trial.error}."
    return "allocation-failed", f"a test calculation on it, in 64 MB, failed: {error}."


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
        yield _of(gpu, "warning", "busy", f" is in use by {by}.")


def _small(findings: Findings, gpu: Gpu) -> Iterator[Issue]:
    needed = findings.needed(gpu.uuid)
    if findings.is_too_small(gpu):
        what = f" has {gigabytes(gpu.memory_mb or 0)}, and {needed}."
        option = findings.batch_option
        remedy = REMEDIES["too-small"].format(or_option=f" or {option}" if option else "")
        yield _of(gpu, "note", "too-small", what, remedy)
    elif findings.is_short(gpu):
        what = f" has {gigabytes(gpu.free_mb or 0)} free, and {needed}."
        yield _of(gpu, "warning", "little-memory", what)
    elif findings.is_accessible(gpu) and findings.is_too_old(gpu):
        yield _of(gpu, "note", "too-old", " has no bf16, which dtype: auto takes for the others.")


def _sick(findings: Findings, gpu: Gpu) -> Iterator[Issue]:
    if cooling := findings.cooling.get(gpu.uuid or ""):
        yield _of(gpu, "warning", "cooling", f" gets no jobs: {cooling}.")
    if gpu.ecc_errors:
        what = f" had {gpu.ecc_errors} uncorrectable memory errors since the driver was loaded."
        yield _of(gpu, "warning", "ecc", what)
