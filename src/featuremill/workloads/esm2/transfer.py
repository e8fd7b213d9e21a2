"""Copy results from a device to the host, while the device computes the next batch."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

__all__ = ["Slabs", "Transfer"]
ALIGNMENT = 64
"""Bytes between the starts of tensors in one allocation."""


class Slabs:
    """Pinned memory that is divided among the tensors of one batch.

    torch rounds each pinned allocation up to a power of two (pytorch#95823) and caches it for the
    next of that size. Slabs have a few sizes, which are powers of two and depend only on the
    expected size of a batch. So little is wasted, and later batches reuse them. torch frees a slab
    when its last tensor is deleted and the copies into it are done.
    """

    def __init__(self, layer_bytes: int, num_layers: int) -> None:
        """A slab has space for a layer of `layer_bytes`, or for more, up to `num_layers`."""
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
    """Return the least power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()


def _pinned(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


class Transfer:
    """Copies of tensors to the host, which start when the object is created."""

    def __init__(self, tensors: Iterable[Tensor], slabs: Slabs) -> None:
        """Start each copy before the next tensor, so that only one layer is on the device."""
        self._events: list[torch.cuda.Event] = []
        self._slabs = slabs
        self._copies = [self._copy(tensor) for tensor in tensors]

    def _copy(self, source: Tensor) -> Tensor:
        if source.device.type == "cpu":
            return source
        # On a separate stream, so that the next batch does not wait for the copy.
        stream = _copy_stream(source.device)
        stream.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(stream):
            copy = self._slabs.cut(source)
            copy.copy_(source, non_blocking=True)
            source.record_stream(stream)  # no reuse of its memory before the copy
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(stream)
        self._events.append(event)
        return copy

    def wait(self) -> list[Tensor]:
        """Wait for the copies; return the tensors on the host."""
        for event in self._events:
            event.synchronize()
        return self._copies


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
