"""Read NVML: the values of a GPU or a slice, None for each that NVML does not have."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pynvml

IDLE_MB = 1024
"""MiB that may be in use on an idle device, if the driver counts its own memory. A drawing program
may use as much for computing: NVML lists programs that draw through Vulkan as computing."""
COMPUTE_MODE_PROHIBITED = 2
COMPUTE_MODES_EXCLUSIVE = (1, 3)
"""Exclusive thread (historical) and exclusive process: one CUDA context, so one slot."""

THROTTLES = {
    0x2: "set_clocks",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal_limit",
    0x40: "hardware_thermal_limit",
    0x80: "hardware_power_brake",
    0x100: "display_clocks",
}
"""Names of the bits of nvmlDeviceGetCurrentClocksEventReasons, without bit 0x1 (idle)."""


@contextlib.contextmanager
def nvml() -> Iterator[bool]:
    """Keep NVML initialised for the block; yield whether it exists. Blocks may nest."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()


def trouble() -> pynvml.NVMLError | None:
    """Return why NVML cannot be initialised, or None."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return error
    pynvml.nvmlShutdown()
    return None


def tell(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the value of an NVML function, or None if it fails (old driver, slice, lost card)."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def slices_of(handle: Any) -> dict[int, Any] | None:
    """Return the handles of a GPU's MIG slices by index; None if it is not in MIG mode.

    Raises:
        pynvml.NVMLError: if the GPU does not answer.
    """
    try:
        is_on, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return None
    if not is_on:
        return None
    slices = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with contextlib.suppress(pynvml.NVMLError_NotFound):
            slices[index] = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
    return slices


class Display(NamedTuple):
    """The memory and the processes of a display on a device."""

    is_active: bool = False
    memory_mb: int = 0
    """Memory of its programs in MiB, if NVML has it."""
    pids: tuple[int, ...] = ()
    """The pids of its programs, which draw and compute little or nothing."""


NO_DISPLAY = Display()


def display_of(handle: Any) -> Display:
    """Return the use of a device by a display; NO_DISPLAY values if NVML fails."""
    drawing = _memory_by_pid(tell(pynvml.nvmlDeviceGetGraphicsRunningProcesses, handle))
    computing = _memory_by_pid(tell(pynvml.nvmlDeviceGetComputeRunningProcesses, handle))
    pids = [pid for pid in drawing if computing.get(pid, 0) <= IDLE_MB]
    is_active = tell(pynvml.nvmlDeviceGetDisplayActive, handle) == 1
    return Display(is_active, sum(drawing[pid] for pid in pids), tuple(pids))


def _memory_by_pid(processes: Iterable[Any] | None) -> dict[int, int]:
    """Return MiB by pid; 0 if NVML has no number."""
    return {process.pid: (process.usedGpuMemory or 0) // 2**20 for process in processes or ()}


class Gauges(NamedTuple):
    """The readings of a GPU; None is unknown."""

    utilisation: int | None = None
    """Percentage of the last sample period in which a kernel ran."""
    memory_mb: int | None = None
    """MiB in use by all processes, without the driver's reserve if NVML separates it."""
    power_w: float | None = None
    temperature_c: int | None = None
    throttle: list[str] | None = None
    """Reasons for reduced clocks."""
    energy_j: float | None = None
    """Energy since the driver was loaded, in joules (Volta and newer)."""


def gauges_of(handle: Any) -> Gauges:
    """Read all values. A MIG slice has the values of its GPU, except for the memory."""
    whole_gpu = tell(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) or handle
    utilisation = tell(pynvml.nvmlDeviceGetUtilizationRates, whole_gpu)
    memory = memory_of(handle)
    bits = tell(pynvml.nvmlDeviceGetCurrentClocksEventReasons, whole_gpu)
    if bits is None:  # the older name, which CUDA 14 drops
        bits = tell(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, whole_gpu)
    return Gauges(
        utilisation.gpu if utilisation else None,
        int(memory.used // 2**20) if memory else None,
        _thousandth(tell(pynvml.nvmlDeviceGetPowerUsage, whole_gpu)),
        tell(pynvml.nvmlDeviceGetTemperature, whole_gpu, pynvml.NVML_TEMPERATURE_GPU),
        None if bits is None else [words for bit, words in THROTTLES.items() if bits & bit],
        _thousandth(tell(pynvml.nvmlDeviceGetTotalEnergyConsumption, whole_gpu)),
    )


def memory_of(handle: Any) -> Any:
    """Return total, used and free bytes, without the driver's reserve if NVML separates it."""
    memory = tell(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return memory or tell(pynvml.nvmlDeviceGetMemoryInfo, handle)


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
