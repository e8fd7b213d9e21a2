"""Spread the layers of a model over several devices of a job, in order; the last layers may be on
the CPU.

`over` adds hooks to an `nn.Module`. A workload that calls its layers itself uses `places`, `dealt`
and `Copies`.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from featuremill.base.devices import Device, refuse_slices
from featuremill.base.errors import UserError, WorkloadError
from featuremill.workload.networks import set_matmul_precision

__all__ = ["DIRECT", "HOST", "Copies", "dealt", "free_bytes", "num_wrong", "over", "places", "ways"]
Value = TypeVar("Value")
HOST = torch.device("cpu")
PROBE_NUMBERS = 2**18
"""Numbers that are copied between devices and back: 1 MiB."""
log = logging.getLogger("featuremill.workload")


class Copies(NamedTuple):
    """A method to copy tensors: its name, and a function that returns a tensor on a device."""

    name: str
    bring: Callable[[Tensor, torch.device], Tensor]

    @property
    def noted(self) -> str:
        """The text about copies for a receipt, after the name of a device."""
        return "" if self is DIRECT else f"; copies between GPUs: {self.name}"


def direct(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to another GPU without waiting, or to the host with waiting.

    On a misconfigured machine (for example with an IOMMU between the GPUs), copies between GPUs are
    corrupted without an error.
    """
    return tensor.cpu() if device == HOST else tensor.to(device, non_blocking=True)


def through_host(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to the host, wait for that, and copy it to the device."""
    return tensor if tensor.device == device else tensor.cpu().to(device)


DIRECT = Copies("direct", direct)


def ways() -> list[Copies]:
    """Return the methods to copy tensors between devices, the fastest first."""
    return [DIRECT, Copies("through the host", through_host)]


def num_wrong(way: Copies, source: torch.device, target: torch.device) -> int:
    """Return how many of `2 * PROBE_NUMBERS` numbers are wrong after a copy there and back."""
    probe = torch.arange(1, 1 + PROBE_NUMBERS, dtype=torch.int32)
    there = way.bring(probe.to(source), target)
    back = way.bring(there, source)
    return sum(int((arrived.cpu() != probe).sum()) for arrived in (there, back))


def places(devices: Sequence[Device]) -> list[torch.device]:
    """Return the torch devices of a job, after `set_matmul_precision`.

    Raises:
        UserError: if one of several devices is a MIG slice.
    """
    refuse_slices(devices, len(devices))
    if devices[0].kind == "cpu":
        return [torch.device("cpu")] * len(devices)
    set_matmul_precision()
    # A job sees only its own GPUs, in the order of the lease.
    return [torch.device("cuda", number) for number in range(len(devices))]


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a GPU, including torch's unused cache; 1 for a CPU."""
    if device.type != "cuda":
        return 1
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def dealt(sizes: Sequence[int], devices: Sequence[torch.device]) -> list[range]:
    """Return the range of layers for each device, in order: each device gets a share of the bytes
    in `sizes` in proportion to its free memory."""
    if len(devices) == 1:
        return [range(len(sizes))]
    free = [*accumulate(map(free_bytes, devices))]
    ends = [*accumulate(sizes)]
    # The middle of a layer's bytes decides.
    middles = [(2 * end - size) * free[-1] for end, size in zip(ends, sizes, strict=True)]
    edges = [bisect_left(middles, 2 * ends[-1] * share) for share in free[:-1]]
    return [range(*both) for both in pairwise([0, *edges, len(sizes)])]


def over(
    network: nn.Module,
    num_layers: int,
    devices: Sequence[torch.device],
    gpu_layers: int | None = None,
) -> Copies:
    """Put the first `gpu_layers` (all, if not given) of a network on `devices`, the others on the
    CPU, and everything else on the first device; return the method that copies tensors between
    devices.

    The inputs of a layer are copied to its device, and the outputs of the last one to the first
    device.

    Raises:
        UserError: if the network has no list of its layers, or layers on two devices share weights.
        WorkloadError: if no method copies tensors correctly.
    """
    num_on_devices = num_layers if devices[0] == HOST else min(gpu_layers or num_layers, num_layers)
    if len(devices) == 1 and num_on_devices == num_layers:
        network.to(devices[0])
        return DIRECT
    layers = _layers(network, num_layers)
    held = [*layers]
    del layers[:]
    network.to(devices[0])
    layers.extend(held)
    numbers_of = dealt([*map(_num_bytes, held[:num_on_devices])], devices)
    if num_on_devices < num_layers:
        devices = [*devices, HOST]
        numbers_of.append(range(num_on_devices, num_layers))
    copies = _proven([*pairwise(devices), *((devices[0], device) for device in devices[2:])])
    device_of: dict[nn.Parameter, torch.device] = {}
    for device, numbers in zip(devices, numbers_of, strict=True):
        for layer in held[numbers.start : numbers.stop]:
            if any(device_of.setdefault(each, device) != device for each in layer.parameters()):
                raise UserError(
                    "gpus_per_job: layers of this network share weights, so they cannot be on two "
                    "devices; set gpus_per_job: 1, and leave gpu_layers out."
                )
            layer.to(device)
        _bring_inputs(held[numbers.start : numbers.stop], device, copies)

    def bring_back(_: nn.Module, __: Any, outputs: Any) -> Any:
        _make_current(devices[0])
        return each_tensor(outputs, lambda tensor: copies.bring(tensor, devices[0]))

    held[-1].register_forward_hook(bring_back)
    return copies


def _layers(network: nn.Module, number: int) -> nn.ModuleList:
    """Return the list of the network's layers: the largest ModuleList of that length."""
    lists = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    fitting = [modules for modules in lists if len(modules) == number]
    if not fitting:
        raise UserError(
            f"gpus_per_job: a {type(network).__name__} has no list of its {number} layers, which "
            "several devices need; set gpus_per_job: 1, and leave gpu_layers out."
        )
    return max(fitting, key=_num_bytes)


def _num_bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


def _proven(pairs: Iterable[tuple[torch.device, torch.device]]) -> Copies:
    """Return the fastest method whose copies are correct, there and back, for each pair."""
    for way in ways():
        if not (wrong := sum(num_wrong(way, *pair) for pair in pairs)):
            return way
        log.warning("copies between GPUs, %s: %s numbers arrive wrong", way.name, f"{wrong:,}")
    raise WorkloadError(
        "copies between GPUs arrive wrong by every method; nothing was computed: see whether this "
        "torch fits the driver and the devices (featuremill doctor)"
    )


def _bring_inputs(layers: Sequence[nn.Module], device: torch.device, copies: Copies) -> None:
    """Add hooks that copy the inputs of `layers` to `device`. Inputs that all layers share, such as
    masks, are copied once per forward pass."""
    known = WeakIdKeyDictionary()

    def bring(tensor: Tensor) -> Tensor:
        if tensor.device == device:
            return tensor
        if tensor not in known:
            known[tensor] = copies.bring(tensor, device)
        return cast(Tensor, known[tensor])

    def bring_all(layer: nn.Module, inputs: Any, named: Any) -> Any:
        _make_current(device)
        if layer is layers[0]:
            known.clear()
        return each_tensor(inputs, bring), each_tensor(named, bring)

    for layer in layers:
        layer.register_forward_pre_hook(bring_all, with_kwargs=True)


def _make_current(device: torch.device) -> None:
    """Set the current GPU, on which Triton launches kernels."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def each_tensor(value: Value, change: Callable[[Tensor], Tensor]) -> Value:
    """Return a tensor, or tuples, lists and dictionaries of tensors, with each tensor changed."""
    changed: Any = value
    kind: Any = type(value)
    if isinstance(value, Tensor):
        changed = change(value)
    elif kind is dict:
        changed = {name: each_tensor(item, change) for name, item in changed.items()}
    elif isinstance(value, tuple | list):
        parts = [each_tensor(item, change) for item in value]
        changed = kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    return cast(Value, changed)


def on_device(value: Value, device: torch.device) -> Value:
    """Return tensors, as in `each_tensor`, on `device`; the host does not wait for copies to it."""
    return each_tensor(value, lambda tensor: tensor.to(device, non_blocking=True))


def pinned(value: Value, device: torch.device) -> Value:
    """Return tensors on the host, as in `each_tensor`, in pinned memory if `device` is a GPU: then
    copies do not block the host."""
    return value if device.type == "cpu" else each_tensor(value, Tensor.pin_memory)
