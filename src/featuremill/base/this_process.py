"""Facts of the running process and machine: parents, memory, processors, versions."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from featuremill import __version__
from featuremill.base import environment
from featuremill.lease.devices import Device

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""How people and schedulers stop a run."""
PR_SET_PDEATHSIG = 1  # linux/prctl.h
CU_MULTIPROCESSOR_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, cuda.h
NAMED_VERSIONS = ("torch", "numpy", "pyarrow", "esm", "transformers")


def die_with_parent(parent_pid: int, signal_number: signal.Signals) -> None:
    """Ask the kernel for `signal_number` when the parent dies; leave now if it has died already.

    Linux only; elsewhere an orphan ends at its next write to the parent's pipe.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal_number))
    if os.getppid() != parent_pid:
        sys.exit(128 + signal_number)


def name_of_process() -> str:
    """Return what tells this process from others: its pid, and the namespace that counts it."""
    return f"{os.getpid()}@{_pid_namespace()}"


def die_with_starter(starter: str, signal_number: signal.Signals) -> None:
    """Ask the kernel for `signal_number` when the parent dies; leave now if the process of the name
    `starter`, from which this one came, has died already.

    While Python starts, the parent can die: then whoever adopts orphans is the parent.
    """
    die_with_parent(os.getppid(), signal_number)
    pid, _, namespace = starter.partition("@")
    if namespace and namespace == _pid_namespace() and not _comes_from(int(pid)):
        sys.exit(128 + signal_number)


def _comes_from(ancestor: int) -> bool:
    pid = os.getpid()
    while pid > 1 and pid != ancestor:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
        except OSError:  # it has ended this moment
            return False
        pid = int(stat.rpartition(")")[2].split()[1])
    return pid == ancestor


def _pid_namespace() -> str:
    link = Path("/proc/self/ns/pid")
    return str(link.readlink()) if link.is_symlink() else ""


def num_cores() -> int:
    """Return how many of the machine's cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def with_processors(devices: Sequence[Device]) -> list[Device]:
    """Return `devices` with their numbers of multiprocessors, which CUDA's driver tells.

    It is asked without torch, which not every workload needs: the visible devices are numbered in
    the order of the lease. Where there is no answer the number stays 0, and a workload takes what
    is usual.
    """
    # As NVML numbers them; without it CUDA puts what it takes for the fastest first.
    environment.CUDA_DEVICE_ORDER.set_default("PCI_BUS_ID")
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return list(devices)
    return [
        device._replace(num_multiprocessors=_num_multiprocessors(driver, place))
        if device.kind == "cuda"
        else device
        for place, device in enumerate(devices)
    ]


def _num_multiprocessors(driver: ctypes.CDLL, place: int) -> int:
    number, count = ctypes.c_int(), ctypes.c_int()
    if (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(number), place)
        or driver.cuDeviceGetAttribute(ctypes.byref(count), CU_MULTIPROCESSOR_COUNT, number)
    ):
        return 0
    return count.value


def peak_memory_mb(devices: Sequence[Device]) -> int:
    """Return the peak of the memory that counts: the devices' own, or the process's on a CPU.

    Of several devices, that of the fullest: it says what a device must have. A workload that
    computes without torch has no number for a GPU's memory: then it is 0.
    """
    if devices[0].kind == "cuda":
        torch = sys.modules.get("torch")
        if torch is None:
            return 0
        peaks = [torch.cuda.max_memory_reserved(place) for place in range(len(devices))]
        return int(max(peaks) // 2**20)
    return peak_of_process_mb()


def peak_of_process_mb() -> int:
    """Return the most memory that this process has had."""
    # Linux's ru_maxrss is at least what the process had that started this one (getrusage(2)).
    status = Path("/proc/self/status")
    for line in status.read_text("ascii").splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak // 2**20 if sys.platform == "darwin" else peak // 2**10)


def allocated_peak_mb(devices: Sequence[Device]) -> int | None:
    """Return the most that torch had in use on one of the devices; None where it has none."""
    torch = sys.modules.get("torch")
    if torch is None or devices[0].kind != "cuda":
        return None
    peaks = [torch.cuda.max_memory_allocated(place) for place in range(len(devices))]
    return int(max(peaks) // 2**20)


def versions() -> dict[str, str]:
    """Return the versions that values can depend on, of what this process has loaded."""
    found = {"featuremill": __version__, "python": platform.python_version()}
    for name in NAMED_VERSIONS:
        if (module := sys.modules.get(name)) and hasattr(module, "__version__"):
            found[name] = str(module.__version__)
    return found
