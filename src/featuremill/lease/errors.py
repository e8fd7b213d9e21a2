"""Errors of leases, with the exit status of a command that they end."""

from __future__ import annotations

from .text import plain


class UserError(ValueError):
    """Bad config or bad input. The message is one sentence: where, what, and how to fix it."""

    exit_status = 2

    def __init__(self, sentence: str) -> None:
        super().__init__(plain(sentence))


class DeviceError(Exception):
    """A device failed and no other could take over; nothing is lost."""

    exit_status = 3


def sentence(error: Exception) -> str:
    """Return the message of an error of a lease: of an OSError, the file and the reason."""
    if isinstance(error, OSError) and error.strerror:
        return ": ".join(filter(None, (error.filename, error.strerror)))
    return str(error)
