"""Runs the command of a lease: in place of this process, or as its child."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from typing import NoReturn

from .acquire import Lease
from .environment import of_child

PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores and that a command expects not to be ignored."""
FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""The terminal sends these to the command as well; passed on, they would arrive twice."""
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
STOPPED = (*FROM_THE_TERMINAL, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
"""A command that ended by these was stopped by hand."""
CANNOT_BE_RUN, NOT_FOUND = 126, 127
"""Exit statuses of a shell."""
PR_SET_PDEATHSIG = 1  # linux/prctl.h
BLAMELESS = {CANNOT_BE_RUN, NOT_FOUND, *(128 + number for number in STOPPED)}
"""Exit statuses that do not count against the device."""
log = logging.getLogger("featuremill.lease")


def restore_signals() -> None:
    """Undo Python's changes to signals; signals that the parent ignores stay ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in PYTHON_IGNORES:
        signal.signal(number, signal.SIG_DFL)


def die_with_parent(parent_pid: int, signal_number: signal.Signals) -> None:
    """Ask the kernel for `signal_number` when the parent dies; exit now if it has died already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal_number))
    if os.getppid() != parent_pid:
        sys.exit(128 + signal_number)


def become(command: list[str], held: Lease) -> int:
    """Replace this process by the command, which inherits the locks; return only on failure."""
    for descriptor in held.descriptors:
        os.set_inheritable(descriptor, True)
    _end_by_signals()
    try:
        os.execvpe(command[0], command, of_child(held.environment))  # noqa: S606
    except OSError as error:
        log.error("%s: %s", command[0], error.strerror)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_BE_RUN


def run_beside(command: list[str], held: Lease) -> int:
    """Run the command as a child and end as it ends; record a quick failure of its device.

    This process holds the locks, too, so a command that closes inherited files keeps its lease. If
    this process is killed, the command is killed with it.
    """
    us = os.getpid()
    # A signal between the fork and these handlers would go to the earlier ones, and an exception
    # from them gets lost in Python's own code at a fork (logging's, for example).
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*PASSED_ON, *FROM_THE_TERMINAL))
    child = os.fork()
    if child == 0:
        _be_the_child(command, held, us, mask)
    for number in FROM_THE_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    passed_on: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        passed_on.append(number)
        os.kill(child, number)

    for number in PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        held.worked()
    elif not passed_on and -code not in STOPPED and code not in BLAMELESS:
        held.failed(f"{command[0]} left with status {code}")
    if code < 0:
        if -code != signal.SIGKILL:  # it cannot have a handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(us, -code)
    return code


def _be_the_child(
    command: list[str], held: Lease, parent: int, mask: set[signal.Signals | int]
) -> NoReturn:
    die_with_parent(parent, signal.SIGKILL)
    _end_by_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os._exit(become(command, held))


def _end_by_signals() -> None:
    """Let signals end this process: a signal that Python has only recorded for a handler is lost at
    exec."""
    for number in PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
