"""What NVML says of a GPU at this moment: every value by itself, None where there is no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

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


class Gauges(NamedTuple):
    """The values of one GPU."""

    utilisation: int | None = None
    """Per cent of the last moments in which any kernel ran."""
    memory_mb: int | None = None
    """In use, by everybody; without what the driver keeps for itself, where NVML tells."""
    power_w: float | None = None
    temperature_c: int | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    throttle: list[str] | None = None
    """Why the clocks are lower than they could be; empty for no reason."""
    energy_j: float | None = None
    """Since the driver was loaded (Volta and newer)."""


def read(handle: Any) -> Gauges:
    """Ask NVML for everything. A MIG slice has its GPU's values, but for the memory."""
    whole = tell(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) or handle
    utilisation = tell(pynvml.nvmlDeviceGetUtilizationRates, whole)
    memory = memory_of(handle)
    return Gauges(
        utilisation.gpu if utilisation else None,
        int(memory.used // 2**20) if memory else None,
        _thousandth(tell(pynvml.nvmlDeviceGetPowerUsage, whole)),
        tell(pynvml.nvmlDeviceGetTemperature, whole, pynvml.NVML_TEMPERATURE_GPU),
        tell(pynvml.nvmlDeviceGetClockInfo, whole, pynvml.NVML_CLOCK_SM),
        tell(pynvml.nvmlDeviceGetClockInfo, whole, pynvml.NVML_CLOCK_MEM),
        throttles(whole),
        _thousandth(tell(pynvml.nvmlDeviceGetTotalEnergyConsumption, whole)),
    )


def tell(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return NVML's answer, or None where it has none (old driver, slice, lost card)."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


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
