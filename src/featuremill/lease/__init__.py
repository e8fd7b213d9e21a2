"""The right to use GPUs: who has which, agreed by everybody on this machine through kernel locks.

`featuremill lease --gpus N -- COMMAND…` is the command (`command.py`); `lease()` is the same as a
context manager. docs/lease.md tells what is promised; the parts, in the order of their use:

    request.py    what is asked for, and the FEATUREMILL_* variables
    offer.py      the devices to choose among: what there is, what the outside gave
    folder.py     where the locks are
    turnstile.py  one queue, first come, first served
    choice.py     one pass over the devices, and the policies
    condition.py  busy, lost, cooling down
    slots.py      the locks
    acquire.py    all of it in turn
    execute.py    the command's run
    listing.py    who has what

Only the standard library and pynvml are imported, and what is named here when it is asked for: who
needs the type of a device does not need the locks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from featuremill.lease.acquire import Lease, count_slots, lease
    from featuremill.lease.request import Request

__all__ = ["Lease", "Request", "count_slots", "lease"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "request" if name == "Request" else "acquire"
    return getattr(import_module(f"{__name__}.{home}"), name)
