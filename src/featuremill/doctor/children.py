"""Questions that may hang or crash are asked in a child process that answers in lines of JSON."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from featuremill.base.environment import of_child

AFTER_KILL_SECONDS = 2.0
"""A process stuck in a driver cannot be killed; then nobody waits for it."""


def ask(
    module: str, *arguments: str, timeout: float, environment: Mapping[str, str] | None = None
) -> tuple[list[dict[str, Any]], str]:
    """Return what `python -m featuremill.doctor.<module>` answered, an object a line, and how it
    ended."""
    child = subprocess.Popen(
        [sys.executable, "-m", f"featuremill.doctor.{module}", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=of_child(environment or {}),
    )
    try:
        output, errors = child.communicate(timeout=timeout)
        manner = _manner_of_death(child.returncode, errors)
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode("utf-8", "replace")
        manner = f"no answer within {timeout:g} s"
    finally:
        _end(child)
    return list(_answers(output)), manner


def _answers(output: str) -> Iterator[dict[str, Any]]:
    """Yield what is an answer; a library may say something of its own."""
    for line in output.splitlines():
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict):
                yield answer


def _end(child: subprocess.Popen[str]) -> None:
    """Kill `child` if it lives, and reap it unless a driver holds it."""
    if child.poll() is None:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=AFTER_KILL_SECONDS)


def _manner_of_death(status: int, errors: str) -> str:
    """Say how a child ended, with the last line of what it wrote."""
    lines = errors.strip().splitlines()
    said = f": {lines[-1][:300]}" if lines else ""
    if status < 0:
        return f"its process was killed by {signal.Signals(-status).name}{said}"
    return f"its process left with status {status}{said}"
