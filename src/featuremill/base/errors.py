"""The ways a command can end badly, each with its own exit status."""

from __future__ import annotations

from featuremill.lease.errors import DeviceError as DeviceError
from featuremill.lease.errors import UserError as UserError

UserError.__module__ = "featuremill"  # the name by which programs catch it, in tracebacks too


class WorkloadError(Exception):
    """A workload failed outside a record, which is a bug in it. The log has the traceback."""

    exit_status = 1


class IntegrityError(Exception):
    """Stored data contradicts its own digest or the accounting; nothing wrong was delivered."""

    exit_status = 4


def error_of(status: int, sentence: str) -> Exception:
    """Return the error with which a command ended that has this exit status and message."""
    kinds = {kind.exit_status: kind for kind in (UserError, DeviceError, IntegrityError)}
    return kinds.get(status, WorkloadError)(sentence)
