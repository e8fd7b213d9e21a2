"""How tensors get from one device of a model's to the next, the best way first."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Copies(NamedTuple):
    """A way, by name (for the receipt), and (tensor, device) → the tensor on `device`."""

    name: str
    bring: Callable[[Tensor, torch.device], Tensor]


def direct(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy from GPU to GPU, where that is another one, without waiting for it.

    Where the machine is set up wrongly (an IOMMU between the GPUs, say), other numbers arrive than
    were sent and nobody says so.
    """
    return tensor.to(device, non_blocking=True)


def through_host(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the host, wait for that, and copy from there."""
    return tensor.cpu().to(device)


DIRECT = Copies("direct", direct)


def ways() -> list[Copies]:
    """Return what may bring tensors from a device to the next, the best first."""
    return [DIRECT, Copies("through the host", through_host)]
