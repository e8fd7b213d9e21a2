"""The devices that a config allows, and their properties for workloads, without torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Literal

from featuremill.base.environment import RUN_SEES
from featuremill.base.errors import UserError
from featuremill.lease.devices import BF16_CAPABILITY, Device, cpu, survey, visible
from featuremill.lease.environment import CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES

__all__ = ["BF16_CAPABILITY", "Device", "cpu", "cuda_devices"]
DeviceChoice = Literal["auto", "cuda", "cpu"]
"""The values of `device` in a config."""
ALL = "all"
"""RUN_SEES where CUDA_VISIBLE_DEVICES is not set."""
CU_MULTIPROCESSOR_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, cuda.h


def cuda_devices() -> list[Device]:
    """Return the NVIDIA GPUs that work and are visible by CUDA_VISIBLE_DEVICES. In a job from which
    an executor hides all GPUs, return those of the run: it plans for other jobs."""
    mask = CUDA_VISIBLE_DEVICES.text()
    if mask == "":
        mask = RUN_SEES.value()
    devices = visible(survey(), None if mask == ALL else mask)
    return [device for device in devices if not device.problem]


def devices_for(choice: DeviceChoice) -> list[Device]:
    """Return the devices that `device: choice` allows: all GPUs, or the CPU."""
    if choice == "cpu":
        return [cpu()]
    gpus = cuda_devices()
    if not gpus and choice == "cuda":
        raise UserError(
            "device: cuda was asked for, but no NVIDIA GPU is visible here; "
            "`featuremill doctor` shows why, or set device: cpu."
        )
    return gpus or [cpu()]


def refuse_slices(devices: Sequence[Device], num_devices: int) -> None:
    """Refuse `num_devices` of `devices` for one process if some of these would be MIG slices.

    Raises:
        UserError: CUDA gives a process one MIG slice at most.
    """
    num_slices = sum(device.is_slice for device in devices)
    if num_devices > 1 and num_slices and len(devices) - num_slices < num_devices:
        raise UserError(
            "gpus_per_job: a process can use one MIG slice only; set gpus_per_job: 1, or take "
            "whole GPUs."
        )


def planning_device(choice: str) -> Device:
    """Return the device for which "auto" options are resolved: the least capable of the allowed
    ones. On a machine without a GPU, where a cluster may plan, "cuda" means Ampere or newer."""
    gpus = [] if choice == "cpu" else cuda_devices()
    if gpus:
        return min(gpus, key=lambda gpu: gpu.has_bf16)
    if choice == "cuda":
        return Device("cuda", "", "a GPU that this machine does not have", has_bf16=True)
    return cpu()


def with_processors(devices: Sequence[Device]) -> list[Device]:
    """Return `devices`, in the order of the lease, with their numbers of multiprocessors. If CUDA's
    driver does not answer, the number stays 0, and a workload uses a default."""
    # In NVML's order; otherwise CUDA puts the device first that it takes for the fastest.
    CUDA_DEVICE_ORDER.set_default("PCI_BUS_ID")
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return list(devices)
    return [
        device._replace(num_multiprocessors=_num_multiprocessors(driver, ordinal))
        if device.kind == "cuda"
        else device
        for ordinal, device in enumerate(devices)
    ]


def _num_multiprocessors(driver: ctypes.CDLL, ordinal: int) -> int:
    number, count = ctypes.c_int(), ctypes.c_int()
    if (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(number), ordinal)
        or driver.cuDeviceGetAttribute(ctypes.byref(count), CU_MULTIPROCESSOR_COUNT, number)
    ):
        return 0
    return count.value
