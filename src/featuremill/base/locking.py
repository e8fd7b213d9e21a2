"""Kernel locks on files, which end with their process, so that none is left behind.

Some shared file systems have none (NFS without lockd, Lustre without flock). Nothing is computed
there until the user confirms that no other process does so (FEATUREMILL_WITHOUT_LOCKS).
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from featuremill.base.environment import WITHOUT_LOCKS
from featuremill.base.errors import UserError

ADVICE = "move the run to one that has them"
PATIENCE_SECONDS = 0.5
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""The errors of file systems without locks."""


@contextmanager
def locked(
    path: Path, waiting: Callable[[], object] = lambda: None, advice: str = ADVICE
) -> Iterator[int]:
    """Hold the lock `path` for the block; yield its descriptor, which children may inherit.

    `waiting` is called once if another process holds it. `advice` is part of the error message.

    Raises:
        UserError: the file system has no locks.
    """
    while True:
        with path.open("a") as file:  # the holder's description must stay
            if claimed(file, path, advice) is False:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            if is_still_there(file, path):
                yield file.fileno()
                return


def is_still_there(file: IO[Any], path: Path) -> bool:
    """Return whether the open file is still the one at `path`. Another process may have removed the
    file during the wait for its lock, which then protects nothing."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def claimed(file: IO[Any], path: Path, advice: str = ADVICE) -> bool | None:
    """Take the lock of the open file like `try_lock`, but retry for half a second: a test whether a
    lock is held takes it for an instant."""
    until = time.monotonic() + PATIENCE_SECONDS
    while (is_ours := try_lock(file, path, advice)) is False and time.monotonic() < until:
        time.sleep(0.02)
    return is_ours


def try_lock(file: IO[Any], path: Path, advice: str = ADVICE) -> bool | None:
    """Take the lock of the open file. Return False if another process holds it, and None if there
    are no locks and FEATUREMILL_WITHOUT_LOCKS is set.

    Raises:
        UserError: the file system of `path` has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        if WITHOUT_LOCKS.value():
            return None
        raise UserError(
            f"the file system of {path} has no locks ({error.strerror}); {advice}, or set "
            f"{WITHOUT_LOCKS}=1 when nothing else computes this run."
        ) from None
    return True
