"""Questions that may hang or crash are asked in a child process that answers in one JSON line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

AFTER_KILL_SECONDS = 2.0
"""A process stuck in a driver cannot be killed; then nobody waits for it."""


class ChildError(Exception):
    """A child that did not answer; the text says how it ended."""


def ask(
    module: str, *arguments: str, timeout: float, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what `python -m featuremill.doctor.<module>` answers on its last line of output."""
    child = subprocess.Popen(
        [sys.executable, "-m", f"featuremill.doctor.{module}", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        output, errors = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise ChildError(f"no answer within {timeout:g} s") from None
    finally:
        end(child)
    try:
        answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        raise ChildError(manner_of_death(child.returncode, errors)) from None
    return answer


def end(child: subprocess.Popen[str]) -> None:
    """Kill `child` if it lives, and reap it unless a driver holds it."""
    if child.poll() is None:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=AFTER_KILL_SECONDS)


def manner_of_death(status: int, errors: str) -> str:
    """Say how a child ended, with the last line of what it wrote."""
    lines = errors.strip().splitlines()
    said = f": {lines[-1][:300]}" if lines else ""
    if status < 0:
        return f"its process was killed by {signal.Signals(-status).name}{said}"
    return f"its process left with status {status}{said}"
