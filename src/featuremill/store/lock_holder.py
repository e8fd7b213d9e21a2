"""Who is at work on something: the holder of a lock file writes into it who it is, for people.

One JSON object a line; later lines add to the first or replace what it says. The lock decides: what
stands in the file means something only while the lock is held.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def told(lock: int) -> Iterator[None]:
    """Let the held lock file with the descriptor `lock` say for the block who has it."""
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with contextlib.suppress(OSError):
        os.ftruncate(lock, 0)
        os.lseek(lock, 0, os.SEEK_SET)
    say(lock, host=platform.node(), pid=os.getpid(), started=started)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.ftruncate(lock, 0)


def say(lock: int, **facts: Any) -> None:
    """Add `facts` to what the held lock file says. No work ends because this cannot be written."""
    with contextlib.suppress(OSError):
        os.write(lock, json.dumps(facts).encode() + b"\n")


def read(path: Path) -> dict[str, Any]:
    """Return what the lock file `path` says; nothing where it says nothing that can be read."""
    facts: dict[str, Any] = {}
    with contextlib.suppress(OSError):
        for line in path.read_text("utf-8", "replace").splitlines():
            with contextlib.suppress(ValueError):  # the last one is being written
                told_now = json.loads(line)
                facts |= told_now if isinstance(told_now, dict) else {}
    return facts


def is_held(path: Path) -> bool | None:
    """Tell whether somebody holds the lock file `path`; None where there are no locks.

    Shares the lock for an instant when nobody holds it: who tries for it without waiting has to
    try twice.
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except PermissionError:
        raise
    except OSError:
        return None
    return False
