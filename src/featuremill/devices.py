"""What compute devices this machine offers, without importing torch."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Literal, NamedTuple

import pynvml

from featuremill.errors import UserError

BF16_CAPABILITY = (8, 0)
"""The first CUDA compute capability with bfloat16 matrix units (Ampere)."""
BF16_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


class Device(NamedTuple):
    """One device that a job may use."""

    kind: Literal["cuda", "cpu"]
    uuid: str
    name: str
    has_bf16: bool
    number: int = 0
    """NVML's and the PCI bus order's number; what nvidia-smi shows."""
    memory_mb: int = 0
    num_multiprocessors: int = 0


def cpu() -> Device:
    """Return this machine's CPU as a device."""
    name, flags = platform.processor() or platform.machine(), set[str]()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags.update(value.split())
                break
    return Device("cpu", "cpu", name, bool(flags & BF16_CPU_FLAGS))


def cuda_devices() -> list[Device]:
    """Return the NVIDIA GPUs that NVML sees and CUDA_VISIBLE_DEVICES leaves visible.

    A machine without a driver has none. Devices are in PCI bus order, as NVML numbers them.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        found = [_describe(index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()
    return _visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _describe(index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle).total // 2**20
    name, uuid = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetUUID(handle)
    return Device("cuda", uuid, name, capability >= BF16_CAPABILITY, index, memory)


def _visible(devices: list[Device], mask: str | None) -> list[Device]:
    """Apply CUDA's own rule: indices or UUID prefixes, and nothing after the first unknown one."""
    if mask is None:
        return devices
    visible: list[Device] = []
    for token in (part.strip() for part in mask.split(",")):
        matches = [
            d for d in devices if token and (token == str(d.number) or d.uuid.startswith(token))
        ]
        if len(matches) != 1:
            break
        visible += matches
    return visible


def devices_for(choice: Literal["auto", "cuda", "cpu"]) -> list[Device]:
    """Return the devices that `device: choice` allows: all GPUs, or the one CPU."""
    if choice == "cpu":
        return [cpu()]
    gpus = cuda_devices()
    if not gpus and choice == "cuda":
        raise UserError(
            "device: cuda was asked for, but no NVIDIA GPU is visible here; "
            "check nvidia-smi and CUDA_VISIBLE_DEVICES, or set device: cpu."
        )
    return gpus or [cpu()]
