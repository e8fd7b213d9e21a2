"""The child that asks NVML: one JSON line about all GPUs on standard output. Imports no torch."""

from __future__ import annotations

import json
import pwd
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pynvml

from featuremill.doctor.facts import Gpu, Node, Process
from featuremill.lease import gauges
from featuremill.lease.condition import display_of
from featuremill.lease.gauges import tell
from featuremill.lease.offer import Offer, offer
from featuremill.lease.request import Request

TROUBLE = (
    "hardware_slowdown",
    "software_thermal_limit",
    "hardware_thermal_limit",
    "hardware_power_brake",
)
"""Reasons for lower clocks that mean trouble; caps do not."""


def main() -> None:
    """Print what NVML tells, or why it tells nothing."""
    print(json.dumps(asdict(_node())))


def _node() -> Node:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Node(error=error.value, error_text=str(error))
    try:
        gpus = [gpu for number in range(_count()) for gpu in _gpus(number)]
        offered = _offer()
        return Node(
            driver=tell(pynvml.nvmlSystemGetDriverVersion),
            cuda=tell(pynvml.nvmlSystemGetCudaDriverVersion_v2),
            gpus=tuple(_with_visibility(gpus, offered) if offered else gpus),
            given_by=offered.given_by if offered else "",
        )
    finally:
        pynvml.nvmlShutdown()


def _count() -> int:
    return tell(pynvml.nvmlDeviceGetCount) or 0


def _gpus(number: int) -> Iterator[Gpu]:
    """Yield the GPU, or its slices when it is divided."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        whole = _describe(handle, Gpu(number, uuid=pynvml.nvmlDeviceGetUUID(handle)))
    except pynvml.NVMLError as error:
        is_lost = error.value == pynvml.NVML_ERROR_GPU_IS_LOST
        yield Gpu(number, trouble=str(error), is_lost=is_lost)
        return
    mode = tell(pynvml.nvmlDeviceGetMigMode, handle)
    if not (mode and mode[0]):
        yield whole
        return
    slices = list(_slices(handle, whole))
    yield from slices or [replace(whole, is_divided=True)]


def _slices(handle: Any, whole: Gpu) -> Iterator[Gpu]:
    for index in range(tell(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        one = tell(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        uuid = tell(pynvml.nvmlDeviceGetUUID, one) if one else None
        if uuid:
            known = Gpu(
                whole.id, index, uuid, capability=whole.capability, compute_mode=whole.compute_mode
            )
            yield _describe(one, known)


def _describe(handle: Any, known: Gpu) -> Gpu:
    power_mw = tell(pynvml.nvmlDeviceGetPowerUsage, handle)
    utilisation = tell(pynvml.nvmlDeviceGetUtilizationRates, handle)
    capability = tell(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    compute_mode = tell(pynvml.nvmlDeviceGetComputeMode, handle)
    return replace(
        _with_memory(handle, known),
        name=tell(pynvml.nvmlDeviceGetName, handle) or "unknown",
        capability=tuple(capability) if capability else known.capability,
        utilisation=utilisation.gpu if utilisation else None,
        temperature_c=tell(
            pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
        ),
        power_w=None if power_mw is None else power_mw / 1000,
        processes=_processes(handle),
        compute_mode=known.compute_mode if compute_mode is None else compute_mode,
        display=display_of(handle),
        ecc_errors=_ecc_errors(handle),
        throttle=_throttle(handle),
    )  # fmt: skip


def _with_memory(handle: Any, known: Gpu) -> Gpu:
    """Add the memory, in the form that tells the driver's reserve from use where there is one."""
    memory = gauges.memory_of(handle)
    if not memory:
        return replace(known, trouble="NVML does not tell its memory")
    total, used, free = (int(size // 2**20) for size in (memory.total, memory.used, memory.free))
    return replace(known, memory_mb=total, used_mb=used, free_mb=free)


def _processes(handle: Any) -> list[Process]:
    found = tell(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    return [
        Process(
            process.pid,
            _user(process.pid),
            _command(process.pid),
            None if process.usedGpuMemory is None else int(process.usedGpuMemory // 2**20),
        )
        for process in found
    ]


def _user(pid: int) -> str:
    try:
        return pwd.getpwuid(Path(f"/proc/{pid}").stat().st_uid).pw_name
    except (OSError, KeyError):
        return "unknown"


def _command(pid: int) -> str:
    """Return the program's name only: arguments may hold what nobody should read."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "unknown"


def _ecc_errors(handle: Any) -> int:
    uncorrected, since_boot = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    return tell(pynvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, since_boot) or 0


def _throttle(handle: Any) -> list[str]:
    reasons = gauges.throttles(handle) or []
    return [reason.replace("_", " ") for reason in reasons if reason in TROUBLE]


def _with_visibility(gpus: list[Gpu], offered: Offer) -> list[Gpu]:
    """Mark what the outside hides, by the same rule as every lease."""
    given = {device.uuid for device in offered.devices}
    return [
        replace(gpu, is_visible=not gpu.uuid or gpu.is_divided or gpu.uuid in given) for gpu in gpus
    ]


def _offer() -> Offer | None:
    try:
        return offer(Request())
    except pynvml.NVMLError:
        return None


if __name__ == "__main__":
    main()
