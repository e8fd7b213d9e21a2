"""Processes with a time limit: who is too late is killed, with everything that it has started."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

END_SECONDS = 20.0
"""What a killed process may take to be gone."""
TAIL_LINES = 4
"""What is told of the last words of a process that failed."""


class ChildError(Exception):
    """A process did not do what it was started for."""


class Child:
    """A process that is told lines and answers in lines."""

    def __init__(self, command: Sequence[str], log: Path | None = None) -> None:
        """Start it; what it says besides goes to `log`, or where our own goes."""
        self._log = log
        with log.open("ab") if log else contextlib.nullcontext() as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        assert self._process.stdout
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()

    def _listen(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                self._lines.put(line)
        self._lines.put("")

    def tell(self, line: str) -> None:
        """Send one line."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # what became of it is told by `answer`
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def answer(self, seconds: float) -> str:
        """Return the next line.

        Raises:
            ChildError: when there is none in time, or the process has ended.
        """
        try:
            line = self._lines.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise ChildError(f"no answer within {seconds:.0f} s, so it was killed") from None
        if not line:
            told = last_words(self._log) if self._log else ""
            raise ChildError(f"the process {_manner(self._process.wait())}{told}")
        return line

    def close(self) -> None:
        """Kill it, with its descendants."""
        kill(self._process)
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()


def run(
    command: Sequence[str],
    seconds: float,
    log: Path,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run a process to its end and return its status; what it prints goes to `log`.

    Raises:
        ChildError: when it is not done in time.
    """
    (status,) = filter(_is_known, watched(command, seconds, log, environment, seconds))
    assert status is not None
    return status


def _is_known(status: int | None) -> bool:
    return status is not None


def watched(
    command: Sequence[str],
    seconds: float,
    log: Path,
    environment: Mapping[str, str] | None = None,
    each_seconds: float = 2.0,
) -> Iterator[int | None]:
    """Run a process; yield None so often while it runs, and last its status.

    Raises:
        ChildError: when it is not done in time.
    """
    end = time.monotonic() + seconds
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
        )
    try:
        while True:
            left = max(0.0, end - time.monotonic())
            try:
                yield process.wait(min(left, each_seconds))
                return
            except subprocess.TimeoutExpired:
                if left <= each_seconds:
                    raise ChildError(f"not done within {seconds:.0f} s, so it was killed") from None
            yield None
    finally:
        kill(process)


def kill(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Kill a process and all that came from it, whatever session they are in."""
    if process.poll() is not None:
        return  # its number may be a stranger's by now
    process.send_signal(signal.SIGSTOP)  # it starts nothing more
    for pid in descendants(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # in a driver that does not answer
        process.wait(END_SECONDS)


def descendants(pid: int) -> list[int]:
    """Return the processes that came from one that is there yet, the youngest generation last."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended this moment
            parent = int(path.read_text("ascii", "replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = list(children.get(pid, ()))
    for each in found:  # which grows
        found += children.get(each, ())
    return found


def last_words(log: Path) -> str:
    """Return the last lines of what was printed, to follow a sentence."""
    lines = log.read_text("utf-8", "replace").split("\n") if log.exists() else []
    told = " | ".join([line.strip() for line in lines if line.strip()][-TAIL_LINES:])
    return f": {told}" if told else ""


def _manner(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
