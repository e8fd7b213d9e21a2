"""Issues of the machine as a whole: driver, torch, environment, files, space."""

from __future__ import annotations

from collections.abc import Iterator

from featuremill.base.environment import LEASE_FOLDER, Variable
from featuremill.doctor.facts import Gpu
from featuremill.doctor.findings import Findings, Issue, Severity, gigabytes
from featuremill.doctor.host import is_within

LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED, VERSION_MISMATCH = 12, 9, 18
NOT_ANSWERING = -1
FIRST_DRIVERS = {11: "450.80", 12: "525.60", 13: "580.65"}
"""The first driver branch that runs any minor version of a CUDA major version."""
MIN_OPEN_FILES = 320
"""plan keeps 256 spool files open at once."""
MIN_DISK_GB, LITTLE_DISK_GB = 0.2, 10.0
TWINS = "PyTorch's operations stand in for the kernels on GPUs, at about 0.7 of the speed"
TORCH_WITH_CUDA = "take the command for your CUDA from pytorch.org/get-started"


def check(findings: Findings) -> Iterator[Issue]:
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
    said: dict[str, list[Gpu]] = {}
    for gpu in findings.gpus:
        trial = findings.trial(gpu)
        for why in trial.ways.why if trial and trial.ways else ():
            said.setdefault(why, []).append(gpu)
    for why, gpus in said.items():
        numbers = ", ".join(gpu.label.removeprefix("GPU ") for gpu in gpus)
        yield _step_down(f"GPU {numbers}: {why}", gpus[0].uuid if len(gpus) == 1 else None)
    cpu = findings.cpu_trial
    for why in cpu.ways.why if cpu and cpu.ways else ():
        yield _step_down(why, None)


def _step_down(what: str, gpu: str | None) -> Issue:
    remedy = "Runs go on so, and their values are right; what is said of the compiler may help."
    return Issue("warning", "steps-down", what, remedy, gpu)


def _dotted(cuda: int) -> str:
    return f"{cuda // 1000}.{cuda % 1000 // 10}"


def _hidden(findings: Findings) -> Iterator[Issue]:
    hidden = [gpu for gpu in findings.gpus if not gpu.is_visible]
    if not hidden:
        return
    variable = findings.node.given_by
    value = Variable(variable).text() or ""
    names = ", ".join(gpu.label.removeprefix("GPU ") for gpu in hidden)
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
            f"Mend that folder, or name one on this machine's own disk in {LEASE_FOLDER}.",
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
