"""The holder of a lock file: it writes its process into the file, for people.

Each line is a JSON object; keys of later lines are added or replace earlier ones. The content is
valid only while the lock is held.
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
def recorded(lock: int) -> Iterator[None]:
    """During the block, the held lock file with the descriptor `lock` names this process."""
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
    """Add `facts` to the held lock file. It is no error if they cannot be written."""
    with contextlib.suppress(OSError):
        os.write(lock, json.dumps(facts).encode() + b"\n")


def read(path: Path) -> dict[str, Any]:
    """Return the facts in the lock file `path`, as far as they can be read."""
    facts: dict[str, Any] = {}
    with contextlib.suppress(OSError):
        for line in path.read_text("utf-8", "replace").splitlines():
            with contextlib.suppress(ValueError):  # the last one is being written
                added = json.loads(line)
                facts |= added if isinstance(added, dict) else {}
    return facts


def is_held(path: Path) -> bool | None:
    """Return whether a process holds the lock file `path`; None where there are no locks.

    A free lock is taken, shared, for an instant: a process that does not wait for it must retry.
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
