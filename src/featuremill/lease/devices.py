"""The compute devices of this machine, without importing torch."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pynvml

from . import gpu_name
from .environment import CUDA_VISIBLE_DEVICES
from .nvml import nvml, slices_of

BF16_CAPABILITY = (8, 0)
"""The first CUDA compute capability with bfloat16 matrix units (Ampere)."""
BF16_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
MASK = CUDA_VISIBLE_DEVICES.name


class Device(NamedTuple):
    """A device that a job may use: a GPU, a MIG slice of a GPU, or the CPU."""

    kind: Literal["cuda", "cpu"]
    uuid: str
    name: str
    has_bf16: bool
    number: int = 0
    """The number in NVML and in PCI bus order, as in nvidia-smi; a slice has its GPU's."""
    memory_mb: int = 0
    num_multiprocessors: int = 0
    problem: str = ""
    """Why nothing can run on it, in the words of NVML; "" for a device that works."""

    @property
    def is_slice(self) -> bool:
        """Whether it is a MIG slice, of which CUDA gives a process at most one."""
        return self.uuid.startswith("MIG-")

    @property
    def label(self) -> str:
        return gpu_name.gpu(self.uuid, self.number)

    def __str__(self) -> str:
        return gpu_name.device(self.kind, self.uuid, self.name, self.number)

    @property
    def identity(self) -> dict[str, Any]:
        """The description of the device in receipts and telemetry."""
        number = {"number": self.number} if self.kind == "cuda" else {}
        return {"kind": self.kind, "uuid": self.uuid, "name": self.name, **number}


def cpu() -> Device:
    name, flags = "", set[str]()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags.update(value.split())
                break
    name = name or platform.processor() or platform.machine()  # starts another process
    return Device("cpu", "cpu", name, bool(flags & BF16_CPU_FLAGS))


def survey() -> list[Device]:
    """Return all NVIDIA GPUs of this machine in PCI bus order; broken ones have a `problem`.

    A GPU in MIG mode is replaced by its slices. Without a driver, return none.
    """
    with nvml() as is_there:
        if not is_there:
            return []
        count = pynvml.nvmlDeviceGetCount()
        return [device for index in range(count) for device in _describe(index)]


def _describe(index: int) -> list[Device]:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name = pynvml.nvmlDeviceGetName(handle)
        capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
        slices = slices_of(handle)
        if slices is not None and not slices:
            return [Device("cuda", "", name, False, index, problem="MIG mode without slices")]
        return [_device(part, name, capability, index) for part in (slices or {0: handle}).values()]
    except pynvml.NVMLError as error:
        return [Device("cuda", "", gpu_name.gpu("", index), False, index, problem=str(error))]


def _device(handle: Any, name: str, capability: tuple[int, ...], index: int) -> Device:
    memory_mb = pynvml.nvmlDeviceGetMemoryInfo(handle).total // 2**20
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    return Device("cuda", uuid, name, capability >= BF16_CAPABILITY, index, memory_mb)


def matching(devices: Sequence[Device], token: str) -> list[Device]:
    """Return the devices of one entry of a list: a number, or the start of one UUID."""
    if token.isdecimal():
        return [device for device in devices if device.number == int(token)]
    matches = [device for device in devices if token and device.uuid.startswith(token)]
    return matches if len(matches) == 1 else []


def visible(devices: Sequence[Device], mask: str | None) -> list[Device]:
    """Apply CUDA's rule for masks: indices or UUID prefixes, up to the first unknown entry."""
    if mask is None:
        return list(devices)
    allowed: list[Device] = []
    for token in (part.strip() for part in mask.split(",")):
        matches = matching(devices, token)
        if not matches:
            break
        allowed += matches
    return allowed
