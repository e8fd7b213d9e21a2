"""One pass over the devices: find the free ones, choose by the policy, and collect the reasons why
the others cannot be taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from . import condition, slots
from .devices import Device
from .errors import DeviceError
from .nvml import IDLE_MB
from .request import Request, wanted
from .slots import Slot


class Free(NamedTuple):
    """A free device, of which this process holds a slot during the choice."""

    device: Device
    slot: Slot
    num_taken: int
    last_leased: float
    free_mb: int
    position: int
    """The index in the order of the devices."""
    note: str


class Pass(NamedTuple):
    chosen: list[Free]
    """All requested slots, or none."""
    barred: dict[str, str]
    """The reason why each other device cannot be taken now, by label."""
    is_used_by_others: bool
    """Whether something other than a lease bars a device, so that a new pass is not urgent."""


class Chooser:
    """Tries to take the slots of a request; only for the first request of the queue."""

    def __init__(
        self, folder: Path, request: Request, devices: Sequence[Device], failures: Mapping[str, int]
    ) -> None:
        self._folder = folder
        self._request = request
        self._devices = devices
        self._failures = failures
        self._lost: dict[str, str] = {}

    def attempt(self) -> Pass:
        """Take all slots that are wanted, or none.

        Raises:
            DeviceError: so many devices stopped working that waiting cannot help.
        """
        free: list[Free] = []
        barred: dict[str, str] = {}
        cooling = self._cooling()
        leased = 0
        try:
            for index, device in enumerate(self._devices):
                if device.uuid in cooling:
                    barred[device.label] = cooling[device.uuid]
                    continue
                device_slot, why = self._try(device, index)
                if device_slot:
                    free.append(device_slot)
                else:
                    barred[device.label] = why
                    leased += why.startswith("held by")
            if len(self._devices) - len(self._lost) < self._request.num_gpus:
                why = "; ".join(f"{name}: {problem}" for name, problem in self._lost.items())
                raise DeviceError(f"{wanted(self._request.num_gpus)} and too few work: {why}.")
        except BaseException:
            for taken in free:  # a process with other jobs continues
                taken.slot.close()
            raise
        free.sort(key=self._rank)
        num_gpus = self._request.num_gpus
        chosen = free[:num_gpus] if len(free) >= num_gpus else []
        for other in free[len(chosen) :]:
            other.slot.close()
        return Pass(chosen, barred, leased < len(barred))

    def _try(self, device: Device, index: int) -> tuple[Free | None, str]:
        """Return a slot of `device`, or the reason why there is none."""
        now = condition.look(device)
        if now.problem:
            self._lost[device.label] = now.problem
            return None, now.problem
        self._lost.pop(device.label, None)  # it works again
        name = slots.scoped(device.uuid, self._folder)
        num_slots = 1 if now.is_exclusive else self._request.slots_per_gpu
        taking = slots.take(self._folder, name, num_slots)
        if taking.slot is None:
            return None, f"held by {', '.join(map(str, taking.in_the_way)) or 'others'}"
        now = condition.look(device)  # again: the reading before the lock is old
        # Other programs may share the device, or an outer lease holds it for this process.
        is_shared = self._request.policy == "memory" or name != device.uuid
        why = now.problem
        if not why and now.free_mb < self._request.min_free_mb:
            why = f"{now.free_mb} MB free of the {self._request.min_free_mb} asked for"
        if not (why or is_shared):
            leased = slots.holders(self._folder, name) if taking.num_taken else ()
            why = condition.used_by_others(now, [holder.pid for holder in leased])
        if why:
            taking.slot.close()
            return None, why
        is_displaying = now.used_mb > IDLE_MB  # which `used_by_others` allows
        note = f"{now.used_mb} MB are in use by a display; it is used anyway"
        note = note if is_displaying and not (is_shared or taking.num_taken) else ""
        when = taking.last_leased
        return Free(device, taking.slot, taking.num_taken, when, now.free_mb, index, note), ""

    def _rank(self, free: Free) -> tuple[float, ...]:
        """Return the sort key of a free device, lowest first; docs/lease.md describes the order."""
        failures = self._failures.get(free.device.uuid, 0)
        if self._request.policy == "memory":
            return (failures, -free.free_mb, free.position)
        if self._request.policy == "sequential":
            return (failures, free.position)
        return (failures, free.num_taken, free.last_leased, free.position)

    def _cooling(self) -> dict[str, str]:
        """Return the reasons of devices that cool down. If too many do, the work is the cause, and
        none is returned."""
        reasons = {
            d.uuid: condition.Failures(self._folder, d.uuid).cooling() for d in self._devices
        }
        cooling = {uuid: why for uuid, why in reasons.items() if why}
        enough = len(self._devices) - len(cooling) >= self._request.num_gpus
        return cooling if enough else {}
