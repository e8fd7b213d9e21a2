"""Asks NVML about leased GPUs, on a thread of its own: a call may take long, or never return."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import pynvml

from featuremill.lease.nvml import Gauges, gauges_of, nvml, tell
from featuremill.store.telemetry import EVERY_SECONDS

STALE_SECONDS = 5.0
"""Older readings are not used, and power is not integrated over a longer gap."""
LAST_CALL_SECONDS = 0.25
log = logging.getLogger("featuremill.extract")


class Poller:
    """The last readings of the GPUs with these UUIDs."""

    def __init__(self, uuids: Sequence[str], energy_j: dict[str, float]) -> None:
        """Start reading; the energy of each GPU is added to `energy_j` under its UUID."""
        self._uuids = uuids
        self._energy_j = energy_j
        self._last: dict[str, tuple[float, Gauges]] = {}
        self._read_at = -STALE_SECONDS
        self._read: list[dict[str, Any]] = []
        self._num_looks = 0
        self._is_stopped = False
        self._has_changed = threading.Condition()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._thread.start()

    def latest(self) -> list[dict[str, Any]]:
        """Return the GPUs' values; none if NVML has not answered for a while."""
        with self._has_changed:
            is_stale = time.monotonic() - self._read_at > STALE_SECONDS
            return [] if is_stale else self._read

    def refresh(self, seconds: float) -> None:
        """Read now, and wait at most `seconds` for the answer."""
        with self._has_changed:
            before = self._num_looks
            self._wake.set()
            self._has_changed.wait_for(lambda: self._num_looks > before, seconds)

    def stop(self) -> None:
        """Stop after the current call returns."""
        self._is_stopped = True
        self._wake.set()

    def is_asking(self) -> bool:
        """Return whether it still reads after `stop`, as where a call does not return."""
        self._thread.join(LAST_CALL_SECONDS)
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            with nvml() as is_there:
                while is_there and not self._is_stopped:
                    self._look()
                    self._wake.wait(EVERY_SECONDS)
                    self._wake.clear()
        except Exception:  # a faulty library costs samples, not a job
            log.debug("NVML: no values of GPUs from here on", exc_info=True)

    def _look(self) -> None:
        read = [self._look_at(uuid) for uuid in self._uuids]
        with self._has_changed:
            self._read, self._read_at = read, time.monotonic()
            self._num_looks += 1
            self._has_changed.notify_all()

    def _look_at(self, uuid: str) -> dict[str, Any]:
        handle = tell(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        now, gauges = time.monotonic(), gauges_of(handle) if handle else Gauges()
        taken = _energy_j(self._last.get(uuid), (now, gauges))
        self._last[uuid] = now, gauges
        if taken is not None:
            self._energy_j[uuid] = self._energy_j.get(uuid, 0.0) + taken
        values = {"uuid": uuid, **gauges._asdict(), "energy_j": self._energy_j.get(uuid)}
        return {
            key: round(value, 1) if isinstance(value, float) else value
            for key, value in values.items()
            if value is not None
        }


def _energy_j(last: tuple[float, Gauges] | None, now: tuple[float, Gauges]) -> float | None:
    """Return the energy of a GPU between two readings, in joules: by its counter, else by its
    power."""
    if last is None:
        return None if now[1].energy_j is None and now[1].power_w is None else 0.0
    seconds, before, after = now[0] - last[0], last[1], now[1]
    if before.energy_j is not None and after.energy_j is not None:
        return max(0.0, after.energy_j - before.energy_j)  # less: the driver was reloaded
    if before.power_w is None or after.power_w is None or seconds > STALE_SECONDS:
        return None
    return seconds * (before.power_w + after.power_w) / 2
