"""Processes that plan shares its work with: each takes a function and its arguments at a time.

They are started when there is enough to do, import what this process imports, and end with it,
however that ends. What they are given to do does not depend on how many they are.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import pyarrow as pa

from featuremill.base import late_pandas, this_process
from featuremill.base.errors import IntegrityError, UserError, WorkloadError

Result = TypeVar("Result")
MAX_PROCESSES = 16
"""More processes would wait for the main process, and each takes some hundred MB."""
KNOWN = (UserError, WorkloadError, IntegrityError, OSError)
"""Errors that have a sentence of their own; anything else is a bug, and its stack is wanted."""
SPAWN = multiprocessing.get_context("spawn")
"""Not "fork": Arrow's threads would not be in the copy."""


class Processes:
    """Up to `num_processes` helpers; with one, or until `start`, this process does everything."""

    def __init__(self, num_processes: int) -> None:
        self._num_processes = min(num_processes, MAX_PROCESSES)
        self.at_once = MAX_PROCESSES
        """The number of processes that `map` uses, always the same ones: each takes memory."""
        self._processes: list[_Process] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.handle.kill()
        for process in self._processes:
            process.pipe.close()
            process.handle.join()
        self._processes = []

    @property
    def num_started(self) -> int:
        """The number of processes that are there, apart from this one."""
        return len(self._processes)

    def start(self, at_most: int) -> None:
        for _ in range(min(self._num_processes, at_most) if self._num_processes > 1 else 0):
            with _delaying_signals():  # else a half-started process would print an error
                self._processes.append(_Process())

    def deal(
        self,
        function: Callable[..., Result],
        arguments: Sequence[tuple[Any, ...]],
        stream: Iterable[Any],
    ) -> list[Result]:
        """Return what `function(*arguments[i], values)` returned for every process i; value n of
        the `stream` is among the values of process n modulo their number. After an error, the
        processes cannot be used again.
        """
        if not self._processes:
            return [function(*arguments[0], stream)]
        starts = [(function, each, True) for each in arguments]
        ends = [None] * len(starts)
        *_, results = [[*self._answers(messages)] for messages in (starts, stream, ends)]
        return results

    def map(
        self, function: Callable[..., Result], arguments: Iterable[tuple[Any, ...]]
    ) -> Iterator[Result]:
        """Yield what `function` returns for each of the arguments, in their order."""
        if not self._processes:
            yield from itertools.starmap(function, arguments)
            return
        yield from self._answers((function, each, False) for each in arguments)

    def _answers(self, messages: Iterable[Any]) -> Iterator[Any]:
        """Send message n to process n modulo their number, and yield the answers in that order. The
        first error is raised, of an answer or of `messages`, once each process has answered; it can
        then be used again, unless it is inside a task with a stream."""
        processes = self._processes[: self.at_once]
        busy, failed = deque[_Process](), list[Exception]()
        try:
            for process, message in zip(itertools.cycle(processes), _kept(failed, messages)):
                if len(busy) == len(processes):
                    yield busy.popleft().answer()
                with contextlib.suppress(ConnectionError):  # its answer says why
                    process.pipe.send(message)
                busy.append(process)  # not before: without a message there is no answer
            while busy:
                yield busy.popleft().answer()
        except Exception:
            for process in busy:
                with contextlib.suppress(Exception):
                    process.answer()
            raise
        if failed:
            raise failed[0]


def _kept(failed: list[Exception], values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values; an error that ends them is appended to `failed`."""
    try:
        yield from values
    except Exception as error:
        failed.append(error)


class _Process:
    def __init__(self) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.handle = SPAWN.Process(target=_work, args=(theirs, os.getpid()), daemon=True)
        # The first process also starts multiprocessing's own, after which nothing is blocked.
        resource_tracker.ensure_running()
        with this_process.starting_child():
            self.handle.start()
        theirs.close()

    def answer(self) -> Any:
        """Return what the process answers; raise what it raised.

        Raises:
            ChildProcessError: when the process is gone.
        """
        try:
            answer, is_error = self.pipe.recv()
        except (EOFError, OSError):
            self.handle.join()
            status = self.handle.exitcode or 0
            ended = f"left with status {status}"
            if status < 0:
                ended = f"was killed by {signal.Signals(-status).name}"
                ended += ", perhaps for lack of memory" if status == -signal.SIGKILL else ""
            raise ChildProcessError(f"a process of plan {ended}") from None
        if is_error:
            raise answer
        return answer


@contextlib.contextmanager
def _delaying_signals() -> Iterator[None]:
    """Delay the signals that end this process (`INTERRUPTS`) until the end of the block.

    Blocking them in this thread is not enough: another thread may receive a signal, and Python then
    runs the handler in this thread.
    """
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: came.append(number))
        for number in this_process.INTERRUPTS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for late in came:
        signal.raise_signal(late)


def _work(pipe: Connection, parent: int) -> None:
    """Answer each task from the `pipe` with its result or its error, until the other end is closed.
    A task with a stream also answers before each value; None ends the stream."""
    this_process.die_with_parent(parent, signal.SIGKILL)
    late_pandas.set_up()
    pa.set_memory_pool(pa.system_memory_pool())  # its others keep 20 MB of each process

    def values() -> Iterator[Any]:
        pipe.send((None, False))
        while (value := pipe.recv()) is not None:
            yield value
            pipe.send((None, False))

    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            function, arguments, has_stream = pipe.recv()
            try:
                answer = function(*arguments, *([values()] if has_stream else [])), False
            except KNOWN as error:
                answer = error, True
            except Exception:
                answer = RuntimeError(f"a process of plan failed:\n{traceback.format_exc()}"), True
            pipe.send(answer)
