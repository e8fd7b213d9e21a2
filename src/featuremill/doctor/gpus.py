"""Read the GPUs of this machine with NVML, in a child process, as a driver may hang or crash.

`python -m featuremill.doctor.gpus` is the child. It prints one line of JSON; no torch is imported.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pynvml
from pydantic import BaseModel, ConfigDict

from featuremill.base.environment import of_child
from featuremill.lease import condition, folder, nvml
from featuremill.lease.devices import Device, survey
from featuremill.lease.errors import UserError
from featuremill.lease.nvml import tell
from featuremill.lease.offer import offer
from featuremill.lease.request import Request
from featuremill.lease.slots import Holder, holders

NVML_SECONDS = 30.0
AFTER_KILL_SECONDS = 2.0
"""Seconds to wait for a killed child, which may hang in the driver."""
NOT_ANSWERING = -1
"""The error code if the child printed nothing; NVML's own codes are positive."""


def ask(
    module: str, *arguments: str, timeout: float, environment: Mapping[str, str] | None = None
) -> tuple[list[dict[str, Any]], str]:
    """Run `python -m featuremill.doctor.<module>`. Return the JSON objects that it printed, one per
    line, and a phrase on how it ended."""
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
        status, lines = child.returncode, errors.strip().splitlines()
        end = f"its process ended with status {status}"
        if status < 0:
            end = f"its process was killed by {signal.Signals(-status).name}"
        end += f": {lines[-1][:300]}" if lines else ""
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode("utf-8", "replace")
        end = f"no answer within {timeout:g} s"
    finally:
        if child.poll() is None:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=AFTER_KILL_SECONDS)
    answers = []
    for line in output.splitlines():
        with contextlib.suppress(ValueError, TypeError):  # ignore lines of libraries
            answers.append(dict(json.loads(line)))
    return answers, end


class Gpu(BaseModel):
    """A GPU or a MIG slice."""

    model_config = ConfigDict(frozen=True)

    device: Device
    capability: tuple[int, int] | None = None
    free_mb: int | None = None
    problem: str = ""
    """Why nothing can run on the GPU, or ""."""
    used_by: str = ""
    """A phrase on use without a lease, by the rules of `lease`, or ""."""
    leased_by: str = ""
    """The holders of leases, or ""."""
    cooling: str = ""
    """Why leases exclude the GPU for some minutes, or ""."""
    is_visible: bool = True
    """Whether the GPU is not hidden by a scheduler or a variable."""

    @property
    def uuid(self) -> str:
        """The UUID; empty if NVML reports none."""
        return self.device.uuid

    @property
    def busy_by(self) -> str:
        """A phrase on use by others, with or without a lease; empty for a free GPU."""
        return self.used_by or self.leased_by


class Node(BaseModel):
    """The GPUs of this machine, or why there are none."""

    model_config = ConfigDict(frozen=True)

    driver: str | None = None
    cuda: int | None = None
    """The newest CUDA version that the driver supports, in NVML's format: 12040 is 12.4."""
    error: int | None = None
    """NVML's error code if it could not be initialised."""
    error_text: str = ""
    given_by: str = ""
    """The variable with which a scheduler, a container or a user chose GPUs."""
    gpus: tuple[Gpu, ...] = ()


def read_node(timeout: float) -> Node:
    """Return the GPUs that NVML reports; errors of NVML are in the result."""
    answers, end = ask("gpus", timeout=min(timeout, NVML_SECONDS))
    if not answers:
        return Node(error=NOT_ANSWERING, error_text=f"NVML: {end}")
    return Node.model_validate(answers[-1])


def _node() -> Node:
    with nvml.nvml() as is_there:
        if not is_there:
            error = nvml.trouble()
            return Node(error=getattr(error, "value", NOT_ANSWERING), error_text=str(error))
        where, held = None, tuple[Holder, ...]()
        with contextlib.suppress(UserError, OSError):  # findings.py reports that folder
            where = folder.find()
            held = holders(where)
        offered = offer(Request())
        return Node(
            driver=tell(pynvml.nvmlSystemGetDriverVersion),
            cuda=tell(pynvml.nvmlSystemGetCudaDriverVersion_v2),
            gpus=tuple(_gpu(device, where, held, offered.devices) for device in survey()),
            given_by=offered.given_by,
        )


def _gpu(
    device: Device, where: Path | None, held: Sequence[Holder], visible: Sequence[Device]
) -> Gpu:
    if device.problem:
        return Gpu(device=device, problem=device.problem)
    handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
    whole = tell(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) or handle
    now = condition.look(device)
    mine = [holder for holder in held if holder.device.partition("@")[0] == device.uuid]
    leases = dict.fromkeys(f"leased by {holder.user} (pid {holder.pid})" for holder in mine)
    return Gpu(
        device=device,
        capability=tell(pynvml.nvmlDeviceGetCudaComputeCapability, whole),
        free_mb=now.free_mb,
        problem=now.problem,
        used_by=condition.used_by_others(now, [holder.pid for holder in mine]),
        leased_by=", ".join(leases),
        cooling=condition.Failures(where, device.uuid).cooling() if where else "",
        is_visible=device in visible,
    )


if __name__ == "__main__":
    print(_node().model_dump_json())
