"""Trying devices: one child a device, each seeing only its own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from featuremill.doctor.children import ask_for_several
from featuremill.doctor.facts import Gpu

MAX_AT_ONCE = 8


@dataclass(frozen=True)
class Ways:
    """How ESM-2 would be computed on a device."""

    dtype: str
    attention: str
    products: str
    kernels: str
    why: list[str]
    """What each step down was for."""


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
    lacks_memory: bool = False
    """The error is want of memory."""
    is_silent: bool = False
    """The child crashed or hung: no answer at all."""
    ways: Ways | None = None
    """None where it did not come to that, or came to nothing."""
    is_of_esm2: bool = False
    """The product went well, and the error is of ESM-2's operations."""


def environment_of(uuid: str | None) -> dict[str, str]:
    """Return what makes a child see that GPU only, or none."""
    return {"CUDA_VISIBLE_DEVICES": uuid or "", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def try_cpu(head_width: int, timeout: float) -> Trial:
    """Try this machine's CPU."""
    return _try("cpu", None, head_width, timeout)


def try_gpus(gpus: Sequence[Gpu], head_width: int, timeout: float) -> dict[str, Trial]:
    """Return the trial of each GPU that can be tried, by UUID."""
    uuids = [g.uuid for g in gpus if g.uuid and g.is_visible and not g.trouble and not g.is_divided]
    if not uuids:
        return {}
    first = _try("cuda", uuids[0], head_width, timeout)
    if first.is_missing or (first.torch and not first.cuda):
        return dict.fromkeys(uuids, first)  # torch's own lack: the others would say the same
    with ThreadPoolExecutor(MAX_AT_ONCE) as pool:
        others = pool.map(lambda uuid: _try("cuda", uuid, head_width, timeout), uuids[1:])
        return dict(zip(uuids, [first, *others], strict=True))


def _try(kind: str, uuid: str | None, head_width: int, timeout: float) -> Trial:
    words = ("ask_torch", kind, str(head_width))
    answers, end = ask_for_several(*words, timeout=timeout, environment=environment_of(uuid))
    if not answers:
        return Trial(error=end, is_silent=True)
    trial = Trial(**answers[0])
    if trial.error:
        return trial
    if len(answers) == 1:
        return replace(trial, error=end, is_silent=True, is_of_esm2=True)
    if "error" in answers[1]:
        return replace(trial, **answers[1], is_of_esm2=True)
    return replace(trial, ways=Ways(**answers[1]))
