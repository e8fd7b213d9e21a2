"""What NVML tells of this machine's GPUs, asked in a child process: a driver may hang or crash.

`python -m featuremill.doctor.gpus` is that child: one JSON line on standard output, and no torch.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pynvml
from pydantic import BaseModel, ConfigDict

from featuremill.base.devices import BF16_CAPABILITY
from featuremill.base.environment import of_child
from featuremill.lease import condition, gpu_name, nvml
from featuremill.lease.nvml import NO_DISPLAY, Display, tell
from featuremill.lease.offer import Offer, offer
from featuremill.lease.request import Request

AFTER_KILL_SECONDS = 2.0
"""A process stuck in a driver cannot be killed; then nobody waits for it."""


def ask(
    module: str, *arguments: str, timeout: float, environment: Mapping[str, str] | None = None
) -> tuple[list[dict[str, Any]], str]:
    """Return what `python -m featuremill.doctor.<module>` answered, an object a line, and how it
    ended."""
    child = subprocess.Popen(
        [sys.executable, "-m", f"featuremill.doctor.{module}", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=of_child(environment or {}),
    )
    try:
        output, errors = child.communicate(timeout=timeout)
        manner = _manner_of_death(child.returncode, errors)
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode("utf-8", "replace")
        manner = f"no answer within {timeout:g} s"
    finally:
        _end(child)
    return list(_answers(output)), manner


def _answers(output: str) -> Iterator[dict[str, Any]]:
    """Yield what is an answer; a library may say something of its own."""
    for line in output.splitlines():
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict):
                yield answer


def _end(child: subprocess.Popen[str]) -> None:
    """Kill `child` if it lives, and reap it unless a driver holds it."""
    if child.poll() is None:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=AFTER_KILL_SECONDS)


def _manner_of_death(status: int, errors: str) -> str:
    """Say how a child ended, with the last line of what it wrote."""
    lines = errors.strip().splitlines()
    said = f": {lines[-1][:300]}" if lines else ""
    if status < 0:
        return f"its process was killed by {signal.Signals(-status).name}{said}"
    return f"its process left with status {status}{said}"


NVML_SECONDS = 30.0
NOT_ANSWERING = -1


class Process(BaseModel):
    pid: int
    user: str
    command: str
    memory_mb: int | None


class Gpu(BaseModel):
    """One GPU, or one MIG slice of a GPU; None where NVML does not tell."""

    model_config = ConfigDict(frozen=True)

    id: int
    """The number that nvidia-smi shows."""
    mig: int | None = None
    """The slice's index on its GPU."""
    uuid: str | None = None
    name: str = "unknown"
    capability: tuple[int, int] | None = None
    memory_mb: int | None = None
    used_mb: int | None = None
    """What processes hold, without the driver's own reserve where NVML tells them apart."""
    free_mb: int | None = None
    processes: tuple[Process, ...] = ()
    compute_mode: int | None = None
    display: Display = NO_DISPLAY
    ecc_errors: int = 0
    trouble: str = ""
    """Why NVML gives no answer about it."""
    is_lost: bool = False
    is_divided: bool = False
    """MIG is on, and there are no slices."""
    is_visible: bool = True

    @property
    def has_bf16(self) -> bool:
        """Whether it has bfloat16 matrix units."""
        return self.capability is not None and self.capability >= BF16_CAPABILITY

    @property
    def label(self) -> str:
        return gpu_name.gpu(self.uuid or "", self.id)


class Node(BaseModel):
    """The GPUs of this machine, or why there are none."""

    model_config = ConfigDict(frozen=True)

    driver: str | None = None
    cuda: int | None = None
    """The newest CUDA that the driver knows, as NVML writes it: 12040 is 12.4."""
    error: int | None = None
    """NVML's error code when it could not be started."""
    error_text: str = ""
    given_by: str = ""
    """The variable by which a scheduler, a container or a person gave some GPUs and not others."""
    gpus: tuple[Gpu, ...] = ()


def read_node(timeout: float) -> Node:
    """Return what NVML tells; never raises, whatever NVML does."""
    answers, end = ask("gpus", timeout=min(timeout, NVML_SECONDS))
    if not answers:
        return Node(error=NOT_ANSWERING, error_text=f"NVML: {end}")
    return Node.model_validate(answers[-1])


def _node() -> Node:
    with nvml.nvml() as is_there:
        if not is_there:
            error = nvml.trouble()
            return Node(error=getattr(error, "value", NOT_ANSWERING), error_text=str(error))
        count = tell(pynvml.nvmlDeviceGetCount) or 0
        gpus = [gpu for number in range(count) for gpu in _gpus(number)]
        offered = _offer()
        return Node(
            driver=tell(pynvml.nvmlSystemGetDriverVersion),
            cuda=tell(pynvml.nvmlSystemGetCudaDriverVersion_v2),
            gpus=tuple(_with_visibility(gpus, offered) if offered else gpus),
            given_by=offered.given_by if offered else "",
        )


def _gpus(number: int) -> Iterator[Gpu]:
    """Yield the GPU, or its slices when it is divided."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        slices = tell(nvml.slices_of, handle)
    except pynvml.NVMLError as error:
        is_lost = error.value == pynvml.NVML_ERROR_GPU_IS_LOST
        yield Gpu(id=number, trouble=str(error), is_lost=is_lost)
        return
    whole = _describe(handle, Gpu(id=number, uuid=uuid))
    if slices is None:
        yield whole
    elif not slices:
        yield whole.model_copy(update={"is_divided": True})
    for index, slice_ in (slices or {}).items():
        # What a slice does not tell, its GPU does.
        known = {"mig": index, "uuid": tell(pynvml.nvmlDeviceGetUUID, slice_)}
        known |= {"capability": whole.capability, "compute_mode": whole.compute_mode}
        if known["uuid"]:
            yield _describe(slice_, Gpu(id=number, **known))


def _describe(handle: Any, known: Gpu) -> Gpu:
    memory = nvml.memory_of(handle)
    uncorrected, since_boot = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    found = {
        "name": tell(pynvml.nvmlDeviceGetName, handle),
        "capability": tell(pynvml.nvmlDeviceGetCudaComputeCapability, handle),
        "memory_mb": memory and memory.total // 2**20,
        "used_mb": memory and memory.used // 2**20,
        "free_mb": memory and memory.free // 2**20,
        "trouble": None if memory else "NVML does not report its memory",
        "processes": _processes(handle),
        "compute_mode": tell(pynvml.nvmlDeviceGetComputeMode, handle),
        "display": nvml.display_of(handle),
        "ecc_errors": tell(
            pynvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, since_boot
        ),
    }  # fmt: skip
    values = {name: value for name, value in found.items() if value is not None}
    return Gpu.model_validate(known.model_dump() | values)


def _processes(handle: Any) -> list[Process]:
    found = tell(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    return [
        Process(
            pid=process.pid,
            user=condition.Process(process.pid).user or "unknown",
            command=condition.Process(process.pid).command or "unknown",
            memory_mb=None if process.usedGpuMemory is None else process.usedGpuMemory // 2**20,
        )
        for process in found
    ]


def _with_visibility(gpus: list[Gpu], offered: Offer) -> list[Gpu]:
    """Mark what the outside hides, by the same rule as every lease."""
    visible = {device.uuid for device in offered.devices}
    return [
        gpu.model_copy(update={"is_visible": not gpu.uuid or gpu.is_divided or gpu.uuid in visible})
        for gpu in gpus
    ]


def _offer() -> Offer | None:
    try:
        return offer(Request())
    except pynvml.NVMLError:
        return None


if __name__ == "__main__":
    print(_node().model_dump_json())
