"""Take a lease: wait in the queue and for devices, then hold the slots of the devices."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from . import condition, devices, folder, slots, turnstile
from .choice import Chooser
from .devices import MASK, Device
from .environment import CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES, LEASED, Variable
from .errors import DeviceError, UserError
from .nvml import nvml
from .offer import Offer, offer
from .program import NO_GPU
from .request import Request
from .slots import Slot

POLL_SECONDS = 0.05
POLL_SECONDS_USED_BY_OTHERS = 0.5
SAY_SECONDS = 60.0
SAY_FIRST_SECONDS = 0.1
"""Shorter waits are not reported, such as those for a slot that another request only tries."""
CHECK_SECONDS = 0.5
PATIENCE_SECONDS = 0.25
"""Shortest wait, as another request may hold the turnstile for a moment."""
Choice = Literal["auto", "cuda", "cpu"]
log = logging.getLogger("featuremill.lease")


class Lease(NamedTuple):
    """Devices that this process holds until the lease is closed; the CPU needs no slot."""

    devices: tuple[Device, ...]
    slots: tuple[Slot, ...]
    environment: dict[str, str]
    """Environment variables for a process that uses the devices."""
    since: float
    """The time when it was taken, by time.monotonic."""
    how: str

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors of the locks; child processes inherit them only if they are passed on."""
        return tuple(descriptor for slot in self.slots for descriptor in slot.descriptors)

    def split(self, counts: Sequence[int]) -> list[Lease]:
        """Return leases of `counts` devices each, which replace this lease."""
        names = self.environment[MASK].split(",")
        parts = []
        for end, count in zip(itertools.accumulate(counts), counts, strict=True):
            part = slice(end - count, end)
            devices, slots = self.devices[part], self.slots[part]
            environment = self.environment | {
                MASK: ",".join(names[part]),
                LEASED.name: ",".join(slot.name for slot in slots),
            }
            how = ", ".join(device.label for device in devices)
            parts.append(Lease(devices, slots, environment, self.since, how))
        return parts

    def close(self) -> None:
        """Release the slots, unless a child process still holds them."""
        for slot in self.slots:
            slot.close()

    def failed(self, how: str) -> None:
        """Record that the devices failed; after several quick failures a device cools down."""
        if time.monotonic() - self.since < condition.QUICK_SECONDS:
            for device in self.devices:
                if device.kind == "cuda":
                    condition.Failures(folder.find(), device.uuid).add(how)

    def worked(self) -> None:
        for device in self.devices:
            if device.kind == "cuda":
                condition.Failures(folder.find(), device.uuid).forget()


@contextlib.contextmanager
def lease(
    choice: Choice = "auto",
    request: Request | None = None,
    failures: Mapping[str, int] | None = None,
    avoid: Collection[str] = (),
) -> Iterator[Lease]:
    """Hold the devices of `request` (default: the FEATUREMILL_* variables) for the block.

    `failures` counts the caller's failures by UUID: such devices are taken last. Devices in `avoid`
    are never taken.

    Raises:
        UserError: if this machine has no such devices.
        DeviceError: if too few devices work, or none became free in time.
    """
    held = acquire(choice, request or Request.from_environment(), failures, avoid)
    log.debug("leased %s", held.how)
    try:
        yield held
    finally:
        held.close()


def acquire(
    choice: Choice,
    request: Request,
    failures: Mapping[str, int] | None = None,
    avoid: Collection[str] = (),
    report: Callable[[str], None] = log.info,
    check: Callable[[], None] | None = None,
    shares_given: bool = True,
    command: str | None = None,
) -> Lease:
    """Take a lease without a block. It lasts as long as a process has its descriptors open.

    `report` is called with a sentence about the reason for waiting, at first and then once a
    minute. `check` is called at least twice a second while waiting; an exception from it ends the
    wait. With `shares_given`, a job that a scheduler gave exactly the devices of `request` takes
    them at once, even if other jobs were given the same. `command` is shown in the list of GPUs
    (default: the command of this process).
    """
    request.check()
    if choice == "cpu":
        return _on_cpu("as asked")
    with nvml():
        offered = offer(request, avoid)
        if not offered.devices and not offered.excluded:
            if choice == "cuda":
                raise UserError(NO_GPU.format(_no_gpu(offered)))
            return _on_cpu(_no_gpu(offered))
        offered.check(request.num_gpus)
        if shares_given and offered.num_given == request.num_gpus:
            return _pass_through(request, offered, command)
        return _Waiting(request, offered, failures or {}, report, check, command).acquire()


def count_slots(request: Request) -> int:
    """Return the number of leases of one GPU that the devices of `request` allow at once."""
    request.check()
    with nvml():
        conditions = [condition.look(device) for device in offer(request).devices]
    working = [state for state in conditions if not state.problem]
    return sum(1 if state.is_exclusive else request.slots_per_gpu for state in working)


def _no_gpu(offered: Offer) -> str:
    if offered.given_by:
        return f"no GPU is visible here: {offered.given_by}={Variable(offered.given_by).text()!r}"
    return "no NVIDIA GPU is visible here"


def _on_cpu(why: str) -> Lease:
    return Lease((devices.cpu(),), (), {MASK: ""}, time.monotonic(), f"the CPU: {why}")


def _pass_through(request: Request, offered: Offer, command: str | None) -> Lease:
    """Take the devices that a scheduler gave this job, even if other jobs have the same ones. Free
    slots are locked, so that other leases see them."""
    where = folder.find()
    taken = []
    for device in offered.devices:
        name = slots.scoped(device.uuid, where)
        taking = slots.take(where, name, request.slots_per_gpu)
        if taking.slot:
            taken.append(taking.slot)
        else:
            level = logging.INFO if _is_first_to_say(where / f"{name}.said") else logging.DEBUG
            log.log(
                level,
                "%s, which %s gives this job, is leased to others too%s: jobs take longer, and "
                "its memory is for all of them; if that is too little, wait until they have ended, "
                "or start fewer at once.",
                device.label,
                offered.given_by,
                f" ({'; '.join(map(str, taking.in_the_way))})" if taking.in_the_way else "",
            )
    held = _lease(request, offered.devices, taken, command, CUDA_VISIBLE_DEVICES.text())
    return held._replace(how=f"{held.how} as {offered.given_by} gave it")


def _is_first_to_say(note: Path) -> bool:
    """Return whether no job of this session, and so of this run, has logged the message before."""
    session = f"{os.getsid(0)}".encode()
    descriptor = folder.open_lock(note)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.pread(descriptor, len(session) + 1, 0) == session:
            return False
        with contextlib.suppress(OSError):  # the disk is full
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, session, 0)
    finally:
        os.close(descriptor)
    return True


def _lease(
    request: Request,
    chosen: tuple[Device, ...],
    taken: list[Slot],
    command: str | None,
    inherited: str | None = None,
) -> Lease:
    for slot in taken:
        slot.note(command=command)
    if request.index_mode and any(device.is_slice for device in chosen):
        for slot in taken:
            slot.close()
        raise UserError("a MIG slice has no number; leave --index-mode out.")
    names = [str(d.number) if request.index_mode else d.uuid for d in chosen]
    environment = {
        MASK: inherited if inherited and not request.index_mode else ",".join(names),
        CUDA_DEVICE_ORDER.name: "PCI_BUS_ID",
        LEASED.name: ",".join(slot.name for slot in taken),
    }
    how = ", ".join(device.label for device in chosen)
    return Lease(chosen, tuple(taken), environment, time.monotonic(), how)


class _Waiting:
    def __init__(
        self,
        request: Request,
        offered: Offer,
        failures: Mapping[str, int],
        report: Callable[[str], None],
        check: Callable[[], None] | None,
        command: str | None,
    ) -> None:
        self._request = request
        self._report = report
        self._check = check
        self._command = command
        self._devices = offered.devices
        self._folder: Path = folder.find()
        self._chooser = Chooser(self._folder, request, offered.devices, failures)
        # Requests inside a lease have their own queue: in the common queue, they could wait for a
        # job that waits for their parent.
        first_name = slots.scoped(offered.devices[0].uuid, self._folder)
        name = f"{first_name}.turnstile" if "@" in first_name else "turnstile"
        self._queue = self._folder / name
        self._deadline: float | None = None
        if request.wait_seconds is not None:
            self._deadline = time.monotonic() + max(request.wait_seconds, PATIENCE_SECONDS)
        self._say_at = time.monotonic() + SAY_FIRST_SECONDS
        self._what = f"{request.num_gpus} GPU{'s' if request.num_gpus > 1 else ''}"

    def acquire(self) -> Lease:
        try:
            with turnstile.turn(self._queue, self._deadline, self._say_in_queue):
                while not (passed := self._chooser.attempt()).chosen:
                    why = "; ".join(f"{name}: {reason}" for name, reason in passed.barred.items())
                    self._say(why)
                    if self._deadline is not None and time.monotonic() >= self._deadline:
                        raise self._too_late(why)
                    is_urgent = not passed.is_used_by_others
                    time.sleep(POLL_SECONDS if is_urgent else POLL_SECONDS_USED_BY_OTHERS)
        except turnstile.TurnstileTimeoutError:
            raise self._too_late("others came first and still wait") from None
        for free in passed.chosen:
            if free.note:
                log.info("%s: %s", free.device.label, free.note)
        chosen = tuple(free.device for free in passed.chosen)
        return _lease(self._request, chosen, [free.slot for free in passed.chosen], self._command)

    def _say_in_queue(self) -> float:
        names = {device.uuid: device.label for device in self._devices}
        is_time = time.monotonic() >= self._say_at
        held = [
            f"{names[holder.device]}: held by {holder}"
            for holder in (slots.holders(self._folder) if is_time else ())
            if holder.device in names
        ]
        # GPUs are free, so why does it take long? A process that was stopped keeps its place.
        pids = slots.processes_with(self._queue) if is_time and not held else ()
        stopped = [
            f"{process} is stopped: continue or end it"
            for process in map(condition.Process, pids)
            if process.is_stopped
        ]
        return self._say("; ".join(["others came first", *held, *stopped]))

    def _say(self, why: str) -> float:
        """Report the reason for waiting, if it is time; return the seconds until the next call."""
        now = time.monotonic()
        if now >= self._say_at:
            self._say_at = now + SAY_SECONDS
            self._report(f"waiting for {self._what} ({why})")
        if self._check is None:
            return self._say_at - now
        self._check()
        return min(self._say_at - now, CHECK_SECONDS)

    def _too_late(self, why: str) -> DeviceError:
        return DeviceError(
            f"{self._what} did not become free in {self._request.wait_seconds:g} s: {why}."
        )
