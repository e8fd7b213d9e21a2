"""The condition of a device: readings of NVML, processes without a lease, and recent failures."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from .devices import Device
from .errors import UserError
from .folder import open_lock, plain, read_note
from .nvml import (
    COMPUTE_MODE_PROHIBITED,
    COMPUTE_MODES_EXCLUSIVE,
    IDLE_MB,
    NO_DISPLAY,
    Display,
    display_of,
    memory_of,
)

DISPLAY_MB = 4096
"""Memory in MiB that a display may use beyond that of listed drawing programs; under WSL2, Windows
lists none."""
QUICK_SECONDS = 60.0
"""A lease that fails sooner is a quick failure."""
MAX_QUICK_FAILURES = 3
COOL_SECONDS = 300.0
"""Time that a device cools down after MAX_QUICK_FAILURES, and that a failure is remembered."""


class Condition(NamedTuple):
    """NVML's readings of a device at this moment."""

    free_mb: int = 0
    used_mb: int = 0
    processes: tuple[int, ...] = ()
    is_exclusive: bool = False
    problem: str = ""
    """Why nothing can run on it; empty for a device that works."""
    display: Display = NO_DISPLAY
    """The use by a display, which is read only if memory or processes are in use."""


def look(device: Device) -> Condition:
    """Read the condition by NVML. Values that NVML lacks (processes in a container, modes of a
    slice) have their defaults."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
        memory = memory_of(handle) or pynvml.nvmlDeviceGetMemoryInfo(handle)  # raises the reason
        free_mb, used_mb = memory.free // 2**20, memory.used // 2**20
        processes = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle, [])
        mode = _ask(pynvml.nvmlDeviceGetComputeMode, handle, 0)
        is_in_use = processes or used_mb > IDLE_MB
        display = display_of(handle) if is_in_use else NO_DISPLAY
    except pynvml.NVMLError as error:
        return Condition(problem=str(error))
    return Condition(
        free_mb,
        used_mb,
        tuple(process.pid for process in processes),
        mode in COMPUTE_MODES_EXCLUSIVE,
        "its compute mode is Prohibited" if mode == COMPUTE_MODE_PROHIBITED else "",
        display,
    )


NOT_KNOWN = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLError_InvalidArgument,
)


def _ask(question: Callable[[Any], Any], handle: Any, otherwise: Any) -> Any:
    try:
        return question(handle)
    except NOT_KNOWN:
        return otherwise


class Process(NamedTuple):
    pid: int

    @property
    def user(self) -> str:
        """The name of its user; "" if it is unknown."""
        try:
            return pwd.getpwuid(Path(f"/proc/{self.pid}").stat().st_uid).pw_name
        except (OSError, KeyError):
            return ""

    @property
    def command(self) -> str:
        """The name of the program, without arguments, which may be secret."""
        try:
            return plain(Path(f"/proc/{self.pid}/comm").read_text(errors="replace").strip())
        except OSError:
            return ""

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, as by Ctrl-Z."""
        try:
            return (
                Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"
            )
        except OSError:
            return False

    def __str__(self) -> str:
        who = ": ".join(filter(None, (self.user, self.command)))
        return f"process {self.pid}" + (f" ({who})" if who else "")


def strangers_on(condition: Condition, holders: Collection[int]) -> list[Process]:
    """Return the processes that use a device without a lease; `holders` are the pids with a lease.
    Programs of a display are ignored, but not those that they start, such as a training in a
    terminal."""
    ours = {*holders, os.getpid()}
    computing = [pid for pid in condition.processes if pid not in condition.display.pids]
    strangers = [pid for pid in computing if not _descends(pid, ours)]
    if holders:  # an unknown process may be a lease's, in another container
        strangers = [pid for pid in strangers if Path(f"/proc/{pid}").exists()]
    return [*map(Process, strangers)]


def used_by_others(condition: Condition, holders: Collection[int]) -> str:
    """Describe the use of a device without a lease; "" if there is none.

    If other leases hold slots of the device, its memory is not considered, nor that of a display.
    """
    if strangers := strangers_on(condition, holders):
        have = "has" if len(strangers) == 1 else "have"
        return f"used by {', '.join(map(str, strangers))}, which {have} no lease"
    unknown_mb = condition.used_mb - condition.display.memory_mb
    if not holders and unknown_mb > (DISPLAY_MB if condition.display.is_active else IDLE_MB):
        return (
            f"{condition.used_mb} MB in use without a lease; if that is a display, "
            "FEATUREMILL_POLICY=memory uses the GPU anyway"
        )
    return ""


def _descends(pid: int, ancestors: Collection[int]) -> bool:
    while pid > 1:
        if pid in ancestors:
            return True
        try:
            stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
        except OSError:  # ended, or in another PID namespace
            return False
        pid = int(stat.rpartition(")")[2].split()[1])
    return False


class Failures:
    """The recent quick failures of a device, in a file that all users share and can read."""

    def __init__(self, folder: Path, uuid: str) -> None:
        self._path = folder / f"{uuid}.failures"

    def read(self) -> list[tuple[float, str]]:
        """Return the time (seconds since 1970) and description of each recent quick failure."""
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            failures = [(float(when), plain(str(how))) for when, how in read_note(self._path) or []]
            return [item for item in failures if 0 <= time.time() - item[0] < COOL_SECONDS]
        return []

    def _write(self, failures: list[tuple[float, str]]) -> None:
        with contextlib.suppress(UserError, OSError):  # losing this note must not cost results
            descriptor = open_lock(self._path)
            try:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(failures).encode(), 0)
            finally:
                os.close(descriptor)

    def add(self, how: str) -> None:
        self._write([*self.read()[-10:], (time.time(), how)])

    def forget(self) -> None:
        if self._path.exists():
            self._write([])

    def cooling(self) -> str:
        """Return why the device cools down now; "" if it does not."""
        failures = self.read()
        if len(failures) < MAX_QUICK_FAILURES:
            return ""
        until = time.strftime("%H:%M:%S", time.localtime(failures[-1][0] + COOL_SECONDS))
        return f"cooling down until {until}: {len(failures)} quick failures, {failures[-1][1]}"
