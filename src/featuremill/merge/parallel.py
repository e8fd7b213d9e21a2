"""Work of one kind on several threads, with results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], num_threads: int
) -> Iterator[Result]:
    """Yield `function` of each item, in the items' order, computed on `num_threads` threads.

    Never more than `num_threads` results wait to be taken, so memory does not grow with the items.
    """
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > num_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
