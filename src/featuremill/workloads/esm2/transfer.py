"""Results on their way from a device to the host, beside what the device computes next."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor


class Transfer:
    """Copies of tensors to the host, under way from the moment this is made."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """Start each copy before the next tensor is asked for: with the features of many layers, no
        more than those of one wait on the device."""
        self._events: list[torch.cuda.Event] = []
        self._copies = [self._copy(tensor) for tensor in tensors]

    def _copy(self, source: Tensor) -> Tensor:
        if source.device.type == "cpu":
            return source
        # On a stream of its own: the copy waits for the tensor, the next batch not for the copy.
        stream = _copy_stream(source.device)
        stream.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(stream):
            copy = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
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
