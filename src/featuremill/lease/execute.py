"""Run the command of a lease, in place of this process or as its child."""

from __future__ import annotations

import logging
import os
import signal

from .acquire import Lease
from .environment import of_child
from .program import die_with_parent

PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, but a command expects by default."""
FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that the terminal also sends to the command, so that they must not be passed on."""
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
STOPPED = (*FROM_THE_TERMINAL, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
"""Signals by which a user stops a command."""
CANNOT_BE_RUN, NOT_FOUND = 126, 127
"""Exit statuses of a shell."""
BLAMELESS = {CANNOT_BE_RUN, NOT_FOUND, *(128 + number for number in STOPPED)}
"""Exit statuses that do not count against the device."""
log = logging.getLogger("featuremill.lease")


def restore_signals() -> None:
    """Undo Python's changes to signals; signals that the parent ignores stay ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in PYTHON_IGNORES:
        signal.signal(number, signal.SIG_DFL)


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
    """Run the command as a child, end with its status, and record a quick failure of its device.

    This process holds the locks, too, so a command that closes inherited files keeps its lease. If
    this process is killed, the command is killed, too.
    """
    us = os.getpid()
    # A signal between the fork and these handlers would call the earlier ones, and an exception
    # from them may be lost in code that Python runs at a fork (such as logging's).
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*PASSED_ON, *FROM_THE_TERMINAL))
    child = os.fork()
    if child == 0:
        die_with_parent(us, signal.SIGKILL)
        _end_by_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os._exit(become(command, held))
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
        if -code != signal.SIGKILL:  # which has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(us, -code)
    return code


def _end_by_signals() -> None:
    """Restore the default action of signals: one that Python has recorded for a handler is lost at
    exec."""
    for number in PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
