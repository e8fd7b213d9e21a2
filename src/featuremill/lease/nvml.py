"""NVML: opened here, and what it says of a GPU or a slice of one, each value by itself; None where
there is no answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pynvml

IDLE_MB = 1024
"""What may be in use on an idle device: a driver that counts its own. A program that draws may
compute so much: toolkits draw through Vulkan, and NVML then lists it as computing too."""
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
"""Bits of nvmlDeviceGetCurrentClocksEventReasons, in words; 0x1, being idle, slows nothing."""


@contextlib.contextmanager
def nvml() -> Iterator[bool]:
    """Keep NVML initialised for the block; yield whether it is there at all. Blocks may nest."""
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
    """Return why NVML cannot be initialised; None where it can."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return error
    pynvml.nvmlShutdown()
    return None


def tell(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return NVML's answer, or None where it has none (old driver, slice, lost card)."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def slices_of(handle: Any) -> dict[int, Any] | None:
    """Return the handles of a GPU's MIG slices by their index; None when it is not in MIG mode.

    Raises:
        pynvml.NVMLError: the GPU does not answer.
    """
    try:
        is_on, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return None
    if not is_on:
        return None
    found = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with contextlib.suppress(pynvml.NVMLError_NotFound):
            found[index] = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
    return found


class Display(NamedTuple):
    """What a display and the programs on it have of a device."""

    is_active: bool = False
    memory_mb: int = 0
    """Of the programs, as far as NVML tells."""
    pids: tuple[int, ...] = ()
    """The programs: processes that draw, and compute little or nothing."""


NO_DISPLAY = Display()


def display_of(handle: Any) -> Display:
    """Return what a display has of the device with this handle; where NVML errs, that is none."""
    drawing = _memory_by_pid(tell(pynvml.nvmlDeviceGetGraphicsRunningProcesses, handle))
    computing = _memory_by_pid(tell(pynvml.nvmlDeviceGetComputeRunningProcesses, handle))
    pids = [pid for pid in drawing if computing.get(pid, 0) <= IDLE_MB]
    is_active = tell(pynvml.nvmlDeviceGetDisplayActive, handle) == 1
    return Display(is_active, sum(drawing[pid] for pid in pids), tuple(pids))


def _memory_by_pid(processes: Iterable[Any] | None) -> dict[int, int]:
    """Return MB by pid; 0 where NVML does not tell."""
    return {process.pid: (process.usedGpuMemory or 0) // 2**20 for process in processes or ()}


class Gauges(NamedTuple):
    """The values of one GPU."""

    utilisation: int | None = None
    """Per cent of the last moments in which any kernel ran."""
    memory_mb: int | None = None
    """In use, by everybody; without what the driver keeps for itself, where NVML tells."""
    power_w: float | None = None
    temperature_c: int | None = None
    throttle: list[str] | None = None
    """Why the clocks are lower than they could be; empty for no reason."""
    energy_j: float | None = None
    """Since the driver was loaded (Volta and newer)."""


def gauges_of(handle: Any) -> Gauges:
    """Ask NVML for everything. A MIG slice has its GPU's values, but for the memory."""
    whole = tell(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) or handle
    utilisation = tell(pynvml.nvmlDeviceGetUtilizationRates, whole)
    memory = memory_of(handle)
    return Gauges(
        utilisation.gpu if utilisation else None,
        int(memory.used // 2**20) if memory else None,
        _thousandth(tell(pynvml.nvmlDeviceGetPowerUsage, whole)),
        tell(pynvml.nvmlDeviceGetTemperature, whole, pynvml.NVML_TEMPERATURE_GPU),
        throttles(whole),
        _thousandth(tell(pynvml.nvmlDeviceGetTotalEnergyConsumption, whole)),
    )


def memory_of(handle: Any) -> Any:
    """Return NVML's total, used and free bytes, in the form that tells the driver's reserve from
    use where there is one."""
    memory = tell(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return memory or tell(pynvml.nvmlDeviceGetMemoryInfo, handle)


def throttles(handle: Any) -> list[str] | None:
    """Return in words why the clocks are lower than they could be."""
    bits = tell(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if bits is None:  # the older name, which CUDA 14 drops
        bits = tell(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return None if bits is None else [words for bit, words in THROTTLES.items() if bits & bit]


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
