"""Locks of the kernel, which end with their process."""

from featuremill.base.locking import claimed, is_still_there, locked, try_lock
from featuremill.store.run_lock import alone as run_alone

__all__ = ["claimed", "is_still_there", "locked", "run_alone", "try_lock"]
