"""Processes that plan shares its work with: each takes a function and its arguments at a time.

They are started when there is enough to do, import what this process imports, and end with it,
however that ends. What they are given to do does not depend on how many they are.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import queue
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
        """The number of processes that `map` uses. It reuses the same ones: each takes memory."""
        self._processes: list[_Process] = []
        self._idle: queue.LifoQueue[_Process] = queue.LifoQueue()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        for process in self._processes:
            process.tasks.close()
            process.answers.close()
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
            self._idle.put(self._processes[-1])

    def deal(
        self,
        function: Callable[..., Result],
        arguments: Sequence[tuple[Any, ...]],
        stream: Iterable[Any],
    ) -> list[Result]:
        """Return what `function(*arguments[i], values)` returned for every process i; value n of
        the `stream` is among the values of process n modulo their number.
        """
        if not self._processes:
            return [function(*arguments[0], stream)]
        failed: list[tuple[int, BaseException]] = []
        number = -1
        try:
            for process, each in zip(self._processes, arguments, strict=True):
                process.tasks.send((function, each, True))
            for number, value in enumerate(stream):
                # Waits while the pipe is full.
                self._processes[number % len(self._processes)].tasks.send(value)
        except BrokenPipeError:  # one has failed, and its answer says how
            pass
        except KNOWN as error:
            failed.append((number + 1, error))
        results = []
        for position, process in enumerate(self._processes):
            with contextlib.suppress(BrokenPipeError):
                process.tasks.send(None)
            try:
                results.append(process.answer())
            except KNOWN as error:  # that of the first value that fails, as of one process
                failed.append((position + len(self._processes) * process.num_done, error))
        if failed:
            raise min(failed, key=lambda each: each[0])[1]
        return results

    def map(
        self, function: Callable[..., Result], arguments: Iterable[tuple[Any, ...]]
    ) -> Iterator[Result]:
        """Yield what `function` returns for each of the arguments, in their order."""
        if not self._processes:
            yield from (function(*each) for each in arguments)
            return
        with ThreadPoolExecutor(min(self.at_once, len(self._processes))) as threads:
            try:
                yield from threads.map(lambda each: self._carry_out(function, each), arguments)
            except BaseException:
                self._kill()  # so that no thread waits for an answer any more
                raise

    def _carry_out(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        process = self._idle.get()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.tasks.send((function, arguments, False))
            return process.answer()
        finally:
            self._idle.put(process)

    def _kill(self) -> None:
        for process in self._processes:
            process.handle.kill()


class _Process:
    def __init__(self) -> None:
        self.num_done = 0
        """Values of a stream that were done when the answer came."""
        their_tasks, self.tasks = SPAWN.Pipe(duplex=False)
        self.answers, their_answers = SPAWN.Pipe(duplex=False)
        arguments = their_tasks, their_answers, os.getpid()
        self.handle = SPAWN.Process(target=_work, args=arguments, daemon=True)
        # The first process also starts multiprocessing's own, after which nothing is blocked.
        resource_tracker.ensure_running()
        with this_process.starting_child():
            self.handle.start()
        their_tasks.close()
        their_answers.close()

    def answer(self) -> Any:
        """Return what the task returned; raise what it raised.

        Raises:
            ChildProcessError: when the process is gone.
        """
        try:
            answer, is_error, self.num_done = self.answers.recv()
        except EOFError:
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


def _work(tasks: Connection, answers: Connection, parent: int) -> None:
    """Run the tasks from `tasks` until the pipe ends or one fails; answer with results."""
    this_process.die_with_parent(parent, signal.SIGKILL)
    late_pandas.set_up()
    pa.set_memory_pool(pa.system_memory_pool())  # its others keep 20 MB of each process
    while (task := _next(tasks)) is not None:
        function, arguments, has_stream = task
        numbers = itertools.count()
        values = iter(partial(_next, tasks), None)
        stream = (value for value, _ in zip(values, numbers, strict=False))
        is_error = True
        try:
            answer = function(*arguments, stream) if has_stream else function(*arguments)
            is_error = False
        except KNOWN as error:
            answer = error
        except Exception:
            answer = RuntimeError(f"a process of plan failed:\n{traceback.format_exc()}")
        answers.send((answer, is_error, next(numbers) - 1))
        if is_error:
            return


def _next(pipe: Connection) -> Any:
    """Return what comes next; None when there is nothing."""
    try:
        return pipe.recv()
    except EOFError:
        return None
