"""A queue of processes, strictly first come, first served; a dead waiter leaves the queue.

Each waiter holds a kernel lock on one byte of the queue's file, at the offset of its number, and is
first when no lower byte is locked. Numbers are assigned under a short lock. A waiter sleeps in the
kernel until the waiter before it has left or died. (With a plain lock, new waiters could overtake
those that the kernel is waking.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .environment import LEASE_FOLDER
from .errors import UserError
from .folder import open_lock

FLOCK = "hhqqi0q"
"""The kernel's struct flock: l_type, l_whence, l_start, l_len, l_pid."""
NUMBER_BYTES = 20
MAX_NUMBER = 2**62
"""Offsets in the kernel end at 2**63; a queue reaches this only if its file is damaged."""
MAX_TRIES = 10_000


class TurnstileTimeoutError(Exception):
    """The deadline passed before this process was first."""


@contextlib.contextmanager
def turn(path: Path, deadline: float | None, tick: Callable[[], float]) -> Iterator[None]:
    """Wait until this process is first in the queue, and stay first for the block.

    `tick` is called while waiting; it returns the seconds until its next call.

    Raises:
        TurnstileTimeoutError: if `deadline` (of time.monotonic) has passed.
    """
    ticket = _Ticket(path)
    try:
        if not ticket.is_first():
            ticket.wait(deadline, tick)
        yield
    finally:
        ticket.leave()


class _Ticket:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = open_lock(path)
        try:
            self._number = self._assign()
        except BaseException:  # a process with other jobs continues
            os.close(self._descriptor)
            raise
        self._num_users, self._users_lock = 1, threading.Lock()

    def _assign(self) -> int:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # held for microseconds
        last = os.pread(self._descriptor, NUMBER_BYTES, 0)
        number = int(last) + 1 if last.isdigit() and int(last) < MAX_NUMBER else 1
        tries = 0
        while not self._lock(number):  # only if a user damaged the file
            number, tries = number + 1, tries + 1
            if tries > MAX_TRIES:
                raise UserError(
                    "all places in the queue for GPUs are taken; see who has "
                    f"{self._path} open, or name another folder in {LEASE_FOLDER}."
                )
        try:
            os.pwrite(self._descriptor, str(number).encode(), 0)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return number

    def _lock(self, number: int) -> bool:
        try:
            self._call(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, number, 1)
        except OSError:
            return False
        return True

    def _call(self, command: int, kind: int, start: int, length: int) -> tuple[int, ...]:
        wanted = struct.pack(FLOCK, kind, os.SEEK_SET, start, length, 0)
        return struct.unpack(FLOCK, fcntl.fcntl(self._descriptor, command, wanted))

    def _waiter_before(self) -> int | None:
        kind, _, start, *_ = self._call(fcntl.F_OFD_GETLK, fcntl.F_RDLCK, 0, self._number)
        return None if kind == fcntl.F_UNLCK else start

    def is_first(self) -> bool:
        return self._waiter_before() is None

    def wait(self, deadline: float | None, tick: Callable[[], float]) -> None:
        """Sleep in the kernel on a thread, while this thread calls `tick` until the deadline."""
        self._num_users += 1
        waiter = threading.Thread(target=self._sleep_until_first, daemon=True)
        waiter.start()
        while waiter.is_alive():
            seconds = tick()
            if deadline is not None:
                seconds = min(seconds, deadline - time.monotonic())
                if seconds <= 0:
                    raise TurnstileTimeoutError
            waiter.join(seconds)
        if not self.is_first():
            raise OSError("the file system of the lease folder has no locks on ranges of bytes")

    def _sleep_until_first(self) -> None:
        try:
            before: int | None = self._number - 1
            while before is not None:
                self._call(fcntl.F_OFD_SETLKW, fcntl.F_RDLCK, before, 1)
                self._call(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, before, 1)
                before = self._waiter_before()
        finally:
            self._leave_file()

    def leave(self) -> None:
        self._call(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, self._number, 1)
        self._leave_file()

    def _leave_file(self) -> None:
        """Close the file after its last user, as the thread may sleep long after `leave`."""
        with self._users_lock:
            self._num_users -= 1
            if not self._num_users:
                os.close(self._descriptor)
