"""GPU leases: which process may use which GPU, agreed on a machine through kernel locks.

`featuremill lease --gpus N -- COMMAND…` is the command (`command.py`); `lease()` is the same as a
context manager. docs/lease.md has the guarantees. The modules, in the order of their use:

    environment.py  the variables, how they are read
    request.py    what is asked for, with defaults from the variables
    gpu_options.py  --gpus and --devices of every command
    offer.py      the devices to choose among
    folder.py     where the locks are
    turnstile.py  one queue, first come, first served
    choice.py     one pass over the devices, and the policies
    condition.py  busy, lost, cooling down
    slots.py      the locks
    acquire.py    all of it in turn
    execute.py    runs the command
    listing.py    who holds what

The package is complete in itself: it imports the standard library, pynvml and its own modules,
these by relative imports. Other distributions are built from the same files, under other names.
Each name here is imported when it is used: code that needs the type of a device does not load the
locks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .acquire import Lease, count_slots, lease
    from .gpu_options import GpuOptions
    from .request import Request

__all__ = ["GpuOptions", "Lease", "Request", "count_slots", "lease"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = {"Request": "request", "GpuOptions": "gpu_options"}.get(name, "acquire")
    return getattr(import_module(f"{__name__}.{home}"), name)
