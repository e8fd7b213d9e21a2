"""Trying devices: one child a device, each seeing only its own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from featuremill.doctor.children import ChildError, ask
from featuremill.doctor.facts import Gpu

MAX_AT_ONCE = 8


@dataclass(frozen=True)
class Trial:
    """What came of using one device through torch."""

    error: str = ""
    is_missing: bool = False
    torch: str | None = None
    cuda: str | None = None
    arch_list: list[str] = field(default_factory=list)
    multiprocessors: int | None = None
    seconds: float | None = None
    is_silent: bool = False
    """The child crashed or hung: no answer at all."""


def environment_of(uuid: str | None) -> dict[str, str]:
    """Return what makes a child see that GPU only, or none."""
    return {"CUDA_VISIBLE_DEVICES": uuid or "", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def try_cpu(timeout: float) -> Trial:
    """Try this machine's CPU."""
    return _try("cpu", None, timeout)


def try_gpus(gpus: Sequence[Gpu], timeout: float) -> dict[str, Trial]:
    """Return the trial of each GPU that can be tried, by UUID."""
    uuids = [g.uuid for g in gpus if g.uuid and g.is_visible and not g.trouble and not g.is_divided]
    if not uuids:
        return {}
    first = _try("cuda", uuids[0], timeout)
    if first.is_missing or (first.torch and not first.cuda):
        return dict.fromkeys(uuids, first)  # torch's own lack: the others would say the same
    with ThreadPoolExecutor(MAX_AT_ONCE) as pool:
        others = pool.map(lambda uuid: _try("cuda", uuid, timeout), uuids[1:])
        return dict(zip(uuids, [first, *others], strict=True))


def _try(kind: str, uuid: str | None, timeout: float) -> Trial:
    try:
        answer = ask("ask_torch", kind, timeout=timeout, environment=environment_of(uuid))
    except ChildError as error:
        return Trial(error=str(error), is_silent=True)
    return Trial(**answer)
