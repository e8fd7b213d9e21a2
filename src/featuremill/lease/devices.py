"""The compute devices of this machine, without importing torch."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pynvml

from featuremill.base import gpu_name
from featuremill.base.environment import CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES
from featuremill.base.errors import UserError
from featuremill.lease.nvml import nvml, slices_of

BF16_CAPABILITY = (8, 0)
"""The first CUDA compute capability with bfloat16 matrix units (Ampere)."""
BF16_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
DeviceChoice = Literal["auto", "cuda", "cpu"]
"""As a config's `device` has it."""
MASK = CUDA_VISIBLE_DEVICES.name
CU_MULTIPROCESSOR_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, cuda.h


class Device(NamedTuple):
    """One device that a job may use: a GPU, a MIG slice of one, or the CPU."""

    kind: Literal["cuda", "cpu"]
    uuid: str
    name: str
    has_bf16: bool
    number: int = 0
    """The number in NVML and in PCI bus order, as in nvidia-smi. A slice has the number of its
    GPU."""
    memory_mb: int = 0
    num_multiprocessors: int = 0
    problem: str = ""
    """Why nothing can run on it, in NVML's words; empty for a device that works."""

    @property
    def label(self) -> str:
        """What a GPU is called everywhere."""
        return gpu_name.gpu(self.uuid, self.number)

    def __str__(self) -> str:
        return gpu_name.device(self.kind, self.uuid, self.name, self.number)

    @property
    def identity(self) -> dict[str, Any]:
        """What receipts and telemetry say of it."""
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
    """Return all NVIDIA GPUs of this machine in PCI bus order, broken ones with their problem.

    A GPU in MIG mode is replaced by its slices. A machine without a driver has none.
    """
    with nvml() as is_there:
        if not is_there:
            return []
        count = pynvml.nvmlDeviceGetCount()
        return [device for index in range(count) for device in _describe(index)]


def cuda_devices() -> list[Device]:
    """Return the NVIDIA GPUs that work and are visible by CUDA_VISIBLE_DEVICES."""
    return [
        device for device in visible(survey(), CUDA_VISIBLE_DEVICES.text()) if not device.problem
    ]


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
    """Apply CUDA's rule for a mask: indices or UUID prefixes; the first unknown entry ends the
    list."""
    if mask is None:
        return list(devices)
    allowed: list[Device] = []
    for token in (part.strip() for part in mask.split(",")):
        matches = matching(devices, token)
        if not matches:
            break
        allowed += matches
    return allowed


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


def planning_device(choice: str) -> Device:
    """Return the device for which "auto" options are resolved: the least capable one of those
    chosen.

    On a machine without a GPU, as where a cluster plans, `device: cuda` stands for an Ampere or
    newer one.
    """
    gpus = [] if choice == "cpu" else cuda_devices()
    if gpus:
        return min(gpus, key=lambda gpu: gpu.has_bf16)
    if choice == "cuda":
        return Device("cuda", "", "a GPU that this machine does not have", has_bf16=True)
    return cpu()


def with_processors(devices: Sequence[Device]) -> list[Device]:
    """Return `devices` with their numbers of multiprocessors, from CUDA's driver.

    It is called without torch, which not every workload needs. Visible devices have the order of
    the lease. Without an answer the number stays 0, and a workload uses the usual one.
    """
    # In NVML's order; otherwise CUDA puts the device first that it takes for the fastest.
    CUDA_DEVICE_ORDER.set_default("PCI_BUS_ID")
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
