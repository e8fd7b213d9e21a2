"""The right to use one GPU: an exclusive kernel lock on a file named by the device's UUID.

The kernel frees the lock when its holder dies, so nothing can leak it. The descriptor is handed to
the worker, so the device stays taken while anything that could hold its memory lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.devices import Device

POLL_SECONDS = 0.2
SAY_SECONDS = 60.0
log = logging.getLogger("featuremill.lease")


class Lease(NamedTuple):
    """A device that is ours until the lease is closed; a CPU needs no lock and has no
    descriptor."""

    device: Device
    descriptor: int | None


@contextlib.contextmanager
def lease(devices: Sequence[Device]) -> Iterator[Lease]:
    """Wait for one of `devices` to be free and hold it for the length of the block."""
    cpus = [device for device in devices if device.kind == "cpu"]
    if cpus:
        yield Lease(cpus[0], None)
        return
    taken = _acquire(devices)
    try:
        yield taken
    finally:
        if taken.descriptor is not None:
            os.close(taken.descriptor)  # never LOCK_UN: a worker may still hold the same lock


def _acquire(devices: Sequence[Device]) -> Lease:
    said = time.monotonic()
    while True:
        for device in devices:
            descriptor = os.open(_folder() / f"{device.uuid}.0", os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            return Lease(device, descriptor)
        if time.monotonic() - said >= SAY_SECONDS:
            said = time.monotonic()
            log.info("waiting for one of %d GPUs", len(devices))
        time.sleep(POLL_SECONDS)


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"featuremill-leases-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
