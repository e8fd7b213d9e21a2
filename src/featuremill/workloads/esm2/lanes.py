"""A CPU's threads as lanes, each of which computes whole pieces by itself.

What a lane computes is computed by one thread, so no number of threads can change its bits, nor
does a thread wait for others before its own pieces are done.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Barrier
from typing import TypeVar

import torch

Piece = TypeVar("Piece")


def number() -> int:
    """Return how many lanes there are: torch's threads."""
    return torch.get_num_threads()


def each(compute: Callable[[Piece], None], pieces: Iterable[Piece]) -> None:
    """Compute every piece, the first ones first, in whatever lane is free; return when all are.

    Raises:
        Exception: the first that a piece raised; those that other lanes had begun are done by then.
    """
    left = iter(list(pieces))
    pool = _pool(number())
    lanes = [pool.submit(_lane, compute, left) for _ in range(number())]
    wait(lanes)
    try:
        for lane in lanes:
            lane.result()
    except Exception:
        # A thread in which oneDNN once had no memory for its code is refused it ever after.
        _pool.cache_clear()
        raise


@torch.inference_mode()
def _lane(compute: Callable[[Piece], None], left: Iterator[Piece]) -> None:
    for piece in left:
        compute(piece)


@functools.lru_cache(maxsize=1)
def _pool(num_lanes: int) -> ThreadPoolExecutor:
    """Return so many threads of which each has itself alone for torch's operations."""
    all_there = Barrier(num_lanes + 1)

    def start() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # a thread's first question takes over whatever was set last
        all_there.wait()

    pool = ThreadPoolExecutor(num_lanes, "lane", start)
    try:
        for _ in range(num_lanes):
            pool.submit(int)
    except RuntimeError:  # no memory for one more thread
        all_there.abort()
        raise
    all_there.wait()
    torch.set_num_threads(num_lanes)  # of threads to come; each lane keeps its own number
    return pool
