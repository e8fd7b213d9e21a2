"""The holder of a lock file, which describes itself in the file, for people.

Each line is a JSON object, whose keys are added to those of earlier lines or replace them. The
content is valid only while the lock is held.
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
    """Describe this process in a held lock file, with the descriptor `lock`, during the block."""
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
    """Add `facts` to the held lock file; errors are ignored."""
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
    """Return whether a process holds the lock file `path`; None if the file system has no locks. A
    free lock is taken (shared) for an instant, so `base.locking.claimed` retries."""
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
