"""What a load needs and is had without Python's lock: on threads, while this process imports.

Importing torch takes a second or two of one core. In that time CUDA's driver makes its context on
the GPU, a workload does what it can, and the file of weights comes from the disk.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from featuremill.base.devices import Device
from featuremill.base.environment import CUDA_DEVICE_ORDER
from featuremill.workload import StartsAhead, Workload, loading

PIECE_BYTES = 2**30
MOST_OF_MEMORY = 0.5
"""Of what is free. The first pages of a larger file might be gone before they are used."""


def start(workload: Workload, devices: Sequence[Device]) -> None:
    """Start what a load on `devices` needs besides torch, and return at once."""
    if devices[0].kind == "cuda" and "torch" in workload.Options.PACKAGES:
        CUDA_DEVICE_ORDER.set_default("PCI_BUS_ID")  # CUDA reads it now
        loading.beside("CUDA", partial(make_contexts, len(devices)))
    if isinstance(workload, StartsAhead):
        workload.start_ahead(devices)


def start_reading(path: Path) -> None:
    """Start to read a file of weights, so that `load` finds it in memory."""
    if path.is_file():
        loading.beside("weights", partial(_read, path))


def make_contexts(num_gpus: int) -> None:
    """Have CUDA's driver make the context of each GPU of this process that torch uses, the primary
    one."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuInit(0)
    for place in range(num_gpus):
        number, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuDeviceGet(ctypes.byref(number), place) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)


def _read(path: Path) -> None:
    import psutil  # here: on the thread

    if path.stat().st_size > MOST_OF_MEMORY * psutil.virtual_memory().available:
        return
    with path.open("rb") as file, Path(os.devnull).open("wb") as nowhere:
        # One call reads up to 2 GiB without a copy; each return may wait for Python's lock.
        while os.sendfile(nowhere.fileno(), file.fileno(), None, PIECE_BYTES):
            pass
