"""Results on their way from a device to the host, beside what the device computes next."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes between beginnings of tensors in one allocation."""


class Slabs:
    """Pinned memory from which the tensors of one batch are cut, one after the other.

    torch rounds each pinned allocation up to a power of two (pytorch#95823) and keeps it for the
    next of that size. Here all are powers of two, of a few sizes that depend only on what a batch
    is expected to take: they lose little, and the following batches use them again. A slab is free
    when its last tensor is gone and the copies into it are done, which torch itself sees to.
    """

    def __init__(self, layer_bytes: int, num_layers: int) -> None:
        """A slab has room for `layer_bytes` at least, and as many more of so many layers as fit."""
        self._layer_bytes = layer_bytes
        self._to_come = layer_bytes * num_layers
        self._slab = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def cut(self, source: Tensor) -> Tensor:
        """Return uninitialised memory for a copy of `source`."""
        if self._used + source.nbytes > len(self._slab):
            least = max(source.nbytes, self._layer_bytes)
            size = max(power_of_two(least), power_of_two(self._to_come // 2 + 1))
            self._slab, self._used = _pinned(size), 0
            self._to_come = max(0, self._to_come - size)
        end = self._used + source.nbytes
        copy = self._slab[self._used : end].view(source.dtype).view(source.shape)
        self._used = -(-end // ALIGNMENT) * ALIGNMENT
        return copy


def power_of_two(number: int) -> int:
    """Return the least power of two that is not below `number`."""
    return 1 << max(0, number - 1).bit_length()


def _pinned(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


class Transfer:
    """Copies of tensors to the host, under way from the moment this is made."""

    def __init__(self, tensors: Iterable[Tensor], slabs: Slabs) -> None:
        """Start each copy before the next tensor is asked for: with the features of many layers, no
        more than those of one wait on the device."""
        self._events: list[torch.cuda.Event] = []
        self._slabs = slabs
        self._copies = [self._copy(tensor) for tensor in tensors]

    def _copy(self, source: Tensor) -> Tensor:
        if source.device.type == "cpu":
            return source
        # On a stream of its own: the copy waits for the tensor, the next batch not for the copy.
        stream = _copy_stream(source.device)
        stream.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(stream):
            copy = self._slabs.cut(source)
            copy.copy_(source, non_blocking=True)
            source.record_stream(stream)  # its memory is not used again before it is copied
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(stream)
        self._events.append(event)
        return copy

    def wait(self) -> list[Tensor]:
        """Return the tensors on the host when they are there."""
        for event in self._events:
            event.synchronize()
        return self._copies


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
