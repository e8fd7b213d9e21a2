"""GPU leases: processes on a machine share its GPUs by means of kernel locks.

`featuremill lease --gpus N -- COMMAND…` is the command (`command.py`); `lease()` is the same as a
context manager. docs/lease.md has the guarantees. The modules, in the order of their use:

    environment.py  the environment variables
    request.py    the request, with defaults from the variables; --gpus and --devices
    offer.py      the devices to choose from
    folder.py     the folder of the locks
    turnstile.py  the queue: first come, first served
    choice.py     one pass over the devices, and the policies
    condition.py  busy, lost and cooling devices
    slots.py      the locks
    acquire.py    the lease: wait, choose, lock
    execute.py    run the command
    listing.py    the list of holders

The package is complete in itself: it imports the standard library, pynvml and its own modules,
these by relative imports. Other distributions are built from the same files, under other names.
Names of this module are imported on first use, so that code that needs only the type of a device
does not import the locks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .acquire import Lease, count_slots, lease
    from .request import GpuOptions, Request

__all__ = ["GpuOptions", "Lease", "Request", "count_slots", "lease"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "request" if name in ("Request", "GpuOptions") else "acquire"
    return getattr(import_module(f"{__name__}.{home}"), name)
