"""This CPU: its vector instructions, and its threads as lanes, each of which computes whole pieces.

A single thread computes a piece, so the number of threads does not change its bits, and threads do
not wait for each other within a piece.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Barrier
from typing import TypeVar

import torch

from featuremill.kit.environment import Variable

__all__ = ["each", "number"]
MOST_ISA = Variable("ONEDNN_MAX_CPU_ISA")
ISAS_ALLOWED = {
    "AVX512_CORE_BF16": ("avx512_bf16", "avx512", "avx2"),
    "AVX512_CORE_FP16": ("avx512_bf16", "avx512", "avx2"),
    "AVX512_CORE": ("avx512", "avx2"),
    "AVX512_CORE_VNNI": ("avx512", "avx2"),
    "AVX2": ("avx2",),
    "AVX2_VNNI": ("avx2",),
    "AVX2_VNNI_2": ("avx2",),
    "AVX": (),
    "SSE41": (),
}
"""The allowed instructions, by value of ONEDNN_MAX_CPU_ISA."""
Piece = TypeVar("Piece")


def number() -> int:
    """Return the number of lanes: torch's threads."""
    return torch.get_num_threads()


def each(compute: Callable[[Piece], None], pieces: Iterable[Piece]) -> None:
    """Compute every piece, in order, each in a free lane; return when all are done.

    Raises:
        Exception: the first exception of a piece, after the pieces of other lanes are finished.
    """
    left = iter(list(pieces))
    pool = _pool(number())
    lanes = [pool.submit(_lane, compute, left) for _ in range(number())]
    wait(lanes)
    try:
        for lane in lanes:
            lane.result()
    except Exception:
        # If oneDNN had no memory for its code in a thread once, it always fails in that thread.
        _pool.cache_clear()
        raise


@torch.inference_mode()
def _lane(compute: Callable[[Piece], None], left: Iterator[Piece]) -> None:
    for piece in left:
        compute(piece)


@functools.lru_cache(maxsize=1)
def _pool(num_lanes: int) -> ThreadPoolExecutor:
    """Return a pool of threads, in each of which torch uses one thread."""
    all_there = Barrier(num_lanes + 1)

    def start() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # a thread's first call takes over the last number set
        all_there.wait()

    pool = ThreadPoolExecutor(num_lanes, "lane", start)
    try:
        for _ in range(num_lanes):
            pool.submit(int)
    except RuntimeError:  # no memory for one more thread
        all_there.abort()
        raise
    all_there.wait()
    torch.set_num_threads(num_lanes)  # for later threads; each lane keeps its own number
    return pool


def instructions(dtype: torch.dtype) -> str:
    """Return the instructions of this CPU that multiply numbers of `dtype`: "amx", "avx512_bf16",
    "avx512", "avx2", or "sse" if it has none of these. The variable ONEDNN_MAX_CPU_ISA can exclude
    later ones, for oneDNN and for featuremill."""
    is_bf16 = dtype == torch.bfloat16
    known = {
        "amx": is_bf16 and is_amx_granted(),
        "avx512_bf16": is_bf16 and torch.cpu._is_avx512_bf16_supported(),
        "avx512": torch.cpu._is_avx512_supported(),
        "avx2": torch.cpu._is_avx2_supported(),
    }
    allowed = ISAS_ALLOWED.get((MOST_ISA.text() or "").upper(), known)
    return next((isa for isa, has in known.items() if has and isa in allowed), "sse")


@functools.cache
def is_amx_granted() -> bool:
    """Return whether this process may use AMX, which it has to request from the kernel."""
    return bool(torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx())
