"""Copies of tensors from one device of a model to the next, the best method first."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Copies(NamedTuple):
    """A method: its name (for the receipt), and (tensor, device) → the tensor on `device`."""

    name: str
    bring: Callable[[Tensor, torch.device], Tensor]


def direct(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy from GPU to GPU, if that is another one, without waiting.

    On a wrongly configured machine (for example with an IOMMU between the GPUs), other numbers
    arrive, without an error.
    """
    return tensor.to(device, non_blocking=True)


def through_host(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the host, wait for that, and copy from there."""
    return tensor.cpu().to(device)


DIRECT = Copies("direct", direct)


def ways() -> list[Copies]:
    """Return the methods to copy tensors from a device to the next, the best first."""
    return [DIRECT, Copies("through the host", through_host)]
