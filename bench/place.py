"""Where a run computes, and everything that differs by it: steps, engines, clocks, memory."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Literal, NamedTuple

import torch

from featuremill.base.devices import Device, cpu, cuda_devices, with_processors
from featuremill.lease.devices import MASK
from featuremill.workload import networks

Name = Literal["cpu", "gpu", "rehearsal"]


class Place(NamedTuple):
    """A CPU, a GPU, or a CPU on which the steps for a GPU are rehearsed."""

    name: Name

    @property
    def has_gpu_steps(self) -> bool:
        """Whether steps and engines are those for a GPU."""
        return self.name != "cpu"

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Where tensors stand, in torch's words."""
        return "cuda" if self.name == "gpu" else "cpu"

    @property
    def only(self) -> str:
        """What a row is called, after the engine, that leaves the host's share out."""
        return f"{self.device.upper().replace('CUDA', 'GPU')} only"

    def compute_device(self) -> Device:
        """Return the device that a run would get."""
        if self.device == "cpu":
            return cpu()
        return with_processors(cuda_devices()[:1])[0]

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def free_memory(self) -> tuple[int, int]:
        """Return the bytes that are free on the GPU, and all it has; a CPU's are not counted."""
        if self.device == "cpu":
            return sys.maxsize, sys.maxsize
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return int(free), int(total)

    def allocated_bytes(self) -> int:
        """Return what tensors take on the GPU."""
        return int(torch.cuda.memory_allocated()) if self.device == "cuda" else 0

    def reserved_bytes(self) -> int:
        """Return what torch's allocator holds of the GPU, for tensors or for later ones."""
        return int(torch.cuda.memory_reserved()) if self.device == "cuda" else 0

    def peak_reserved_bytes(self) -> int:
        """Return the most that it held since `forget_peak`."""
        return int(torch.cuda.max_memory_reserved()) if self.device == "cuda" else 0

    def forget_peak(self) -> None:
        """Begin a new peak of allocated memory."""
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def peak_bytes(self) -> int:
        """Return the most that tensors took on the GPU since `forget_peak`."""
        return int(torch.cuda.max_memory_allocated()) if self.device == "cuda" else 0


class Stopwatch:
    """Measures what a device does in the block: a GPU by its own events."""

    def __init__(self, place: Place) -> None:
        self._has_events = place.device == "cuda"

    def __enter__(self) -> Stopwatch:
        if self._has_events:
            event: Any = torch.cuda.Event
            self._start, self._end = (event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            self._start.record()
        else:
            self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_events:
            self._end.record()
            torch.cuda.synchronize()
            self.seconds = float(self._start.elapsed_time(self._end)) / 1000
        else:
            self.seconds = time.perf_counter() - self._started


def keep_to_one_gpu() -> None:
    """Have this process and its children see one GPU: the first that is visible, as NVML counts.

    A job of ours takes what it is given this way, whoever else is on it (docs/lease.md). Otherwise
    it would wait for the GPU until the benchmark is gone from there, and the benchmark for it.
    """
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if found := cuda_devices():
        os.environ[MASK] = found[0].uuid


def set_matmul_precision() -> None:
    """Have fp32 mean fp32 in this process, for the reference and for every engine.

    NVIDIA's containers turn TF32 on; its libraries read their variable when they are loaded.
    """
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    networks.set_matmul_precision()
