"""The supervisor's side: it says what happens, and a thread samples and writes.

Nothing here raises, and nothing waits for a disk or a driver longer than `LAST_SECONDS`.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from featuremill.extract.telemetry.gpus import Poller
from featuremill.extract.telemetry.sampler import Reports, Sampler
from featuremill.lease import Lease
from featuremill.lease.devices import Device
from featuremill.store.receipt import Usage

LAST_SECONDS = 2.0
"""How long the job waits for the last sample, and for the last line: so long only where a disk
hangs, or where the machine has far too much to do. NVML is not waited for."""
MOST_LETTERS = 2000
"""Of what an error says: a model's list of missing layers must not hide the end of the file."""
OF_A_GPU = ["power_w", "temperature_c", "sm_mhz", "memory_mhz", "throttle", "energy_j"]
"""What NVML tells of whole GPUs only, not of MIG slices."""
SLOTS = re.compile(r"@\d+of(\d+)")
log = logging.getLogger("featuremill.extract")


class Recorder:
    """Records one attempt at a shard."""

    def __init__(self, path: Path, journal_path: Path, facts: dict[str, Any]) -> None:
        """Start; `facts` are those of the start event that the caller knows."""
        self._sampler = Sampler(path, journal_path, facts)
        self.devices: list[dict[str, Any]] = []
        """Those that the job got last."""
        self._poller: Poller | None = None
        self._thread = threading.Thread(target=self._sampler.run, name="telemetry", daemon=True)
        with contextlib.suppress(RuntimeError):  # no memory for a thread: no samples
            self._thread.start()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        status = "ok" if kind is None else "failed" if issubclass(kind, Exception) else "stopped"
        message = str(error)[:MOST_LETTERS] if status == "failed" else None
        self._stop_asking()
        self._sampler.orders.put(("end", {"status": status, "message": message}))
        if self._thread.is_alive():
            self._thread.join(LAST_SECONDS)

    def waits(self) -> None:
        """Note that the job has no device, and waits for one."""
        self._stop_asking()
        self._sampler.worker = None
        self._sampler.reports = Reports()
        self.learns({"stage": "wait"})

    def has(self, held: Lease) -> None:
        """Note which devices the job got."""
        self.devices = [_described(device, held) for device in held.devices]
        self.learns({"stage": "load"})
        self._sampler.orders.put(("device", {"devices": self.devices}))
        uuids = [device.uuid for device in held.devices if device.kind == "cuda"]
        if not uuids:
            return
        if self._poller and self._poller.is_asking():
            log.debug("NVML does not answer; no values of GPUs from here on")
            return
        with contextlib.suppress(RuntimeError):
            self._poller = self._sampler.poller = Poller(uuids, self._sampler.energy_j)

    def starts(self, worker: int) -> None:
        """Note which process computes from here on."""
        self._sampler.worker = worker

    def learns(self, told: dict[str, Any]) -> None:
        """Note what the worker says of how far it is."""
        self._sampler.told = {**self._sampler.told, **told}
        if told.get("stage") in ("run", "finish"):
            self._sampler.reports.add(told["cost_done"])

    @property
    def told(self) -> dict[str, Any]:
        """What the worker said last of how far it is."""
        return self._sampler.told

    def sees_the_end(self) -> Usage:
        """Sample once more, while the worker is there; return the receipt's entry."""
        self._sampler.has_sampled.clear()
        self._sampler.orders.put(("sample", {}))
        if self._thread.is_alive():
            self._sampler.has_sampled.wait(LAST_SECONDS)
        shared = sorted({key for device in self.devices for key in device.get("of_whole_gpu", ())})
        known = {"of_whole_gpu": shared} if shared else {}
        return Usage.model_validate({**self._sampler.summary, **known})

    def _stop_asking(self) -> None:
        self._sampler.poller = None
        if self._poller:
            self._poller.stop()


def _described(device: Device, held: Lease) -> dict[str, Any]:
    """Return a device as its event has it."""
    found: dict[str, Any] = {"kind": device.kind, "uuid": device.uuid, "name": device.name}
    if device.kind == "cuda":
        name = next((s.name for s in held.slots if s.name.startswith(f"{device.uuid}@")), "")
        is_alone = bool(name) and set(SLOTS.findall(name)) == {"1"}
        shared = [] if is_alone else ["utilisation", "memory_mb", *OF_A_GPU]
        if device.uuid.startswith("MIG"):
            shared = OF_A_GPU if is_alone else ["memory_mb", *OF_A_GPU]
        found |= {"slot": name.rpartition("@")[2]} if name else {}
        found |= {"memory_mb": device.memory_mb} if device.memory_mb else {}
        found |= {"of_whole_gpu": shared} if shared else {}
    return found
