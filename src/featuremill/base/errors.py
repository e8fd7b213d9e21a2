"""The ways a command can end badly, each with its own exit status."""

from __future__ import annotations

from featuremill.base.text import plain


class WorkloadError(Exception):
    """A workload failed outside a record, which is a bug in it. The log has the traceback."""

    exit_status = 1


class UserError(Exception):
    """Bad config or bad input. One sentence: where, what, and what to do."""

    exit_status = 2

    def __init__(self, sentence: str) -> None:
        super().__init__(plain(sentence))


class DeviceError(Exception):
    """A device failed and no other could take over; nothing is lost."""

    exit_status = 3


class IntegrityError(Exception):
    """Stored data contradicts its own digest or the accounting; nothing wrong was delivered."""

    exit_status = 4
