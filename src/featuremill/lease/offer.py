"""Find the devices of a lease: those of the machine that scheduler and request permit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from .devices import MASK, Device, matching, survey, visible
from .environment import (
    CUDA_VISIBLE_DEVICES,
    NVIDIA_VISIBLE_DEVICES,
    SLURM_JOB_GPUS,
    SLURM_STEP_GPUS,
    Variable,
)
from .errors import DeviceError, UserError
from .request import Request, wanted

GIVEN_BY_SCHEDULERS = (SLURM_STEP_GPUS, SLURM_JOB_GPUS, NVIDIA_VISIBLE_DEVICES)
"""Variables that are read if CUDA_VISIBLE_DEVICES is not set, if they name existing devices."""
NAMES_NOTHING = ("", "all", "none", "void")
NO_DEVICES = ("", "-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES for a job without devices."""


class Offer(NamedTuple):
    """The devices that a lease may choose from."""

    devices: tuple[Device, ...]
    """Devices that work and are large enough, in the requested order, else in bus order."""
    excluded: dict[str, str]
    """Requested devices that cannot be used, each with the reason."""
    given_by: str
    """The variable with which a scheduler or user chose devices; "" if there is none."""
    num_given: int
    """Number of devices in that variable, usable or not; 0 if there is none."""

    def check(self, num_gpus: int) -> None:
        """Raise an error if there are too few devices, so that waiting cannot help."""
        if len(self.devices) >= num_gpus:
            return
        why = "; ".join(f"{name}: {reason}" for name, reason in self.excluded.items())
        where = f"{self.given_by} leaves" if self.given_by else "there are"
        kind = DeviceError if why else UserError
        raise kind(
            f"{wanted(num_gpus)} and {where} {len(self.devices)}"
            + (f" ({why})." if why else "; ask for fewer.")
        )


def offer(request: Request, avoid: Collection[str] = ()) -> Offer:
    """Return the devices for `request`; none on a machine without a GPU."""
    everything = survey()
    granted, source = _granted(everything)
    wanted = _wanted(everything, granted, source, request.devices) if request.devices else granted
    usable: list[Device] = []
    excluded: dict[str, str] = {}
    for device in dict.fromkeys(wanted):
        if device.problem:
            excluded[device.label] = device.problem
        elif device.uuid in avoid:
            excluded[device.label] = "it failed"
        elif device.memory_mb < request.min_free_mb:
            excluded[device.label] = f"it has {device.memory_mb} MB in all"
        else:
            usable.append(device)
    whole = [device for device in usable if not device.is_slice]
    if 1 < request.num_gpus <= len(whole):
        usable = whole
    num_given = len(set(granted)) if source else 0
    return Offer(tuple(usable), excluded, source, num_given)


def _granted(everything: Sequence[Device]) -> tuple[list[Device], str]:
    """Return the devices that a scheduler or user grants, and the name of the variable."""
    mask = CUDA_VISIBLE_DEVICES.text()
    if mask is not None:
        granted = visible(everything, mask)
        if everything and not granted and mask.strip() not in NO_DEVICES:
            # The CPU must not replace a missing GPU.
            lost = [f"{d.label}: {d.problem}" for d in everything if d.problem]
            kind = DeviceError if lost else UserError
            raise kind("; ".join([f"{MASK}={mask} names no GPU that is here", *lost]) + ".")
        return granted, MASK
    for variable in GIVEN_BY_SCHEDULERS:
        text = variable.text() or ""
        if text in NAMES_NOTHING:
            continue
        tokens = [token.strip() for token in text.split(",")]
        if all(matching(everything, token) for token in tokens):
            return visible(everything, text), variable.name
    return list(everything), ""


def _wanted(
    everything: Sequence[Device], granted: Sequence[Device], source: str, wanted: str
) -> list[Device]:
    chosen: list[Device] = []
    for token in (part.strip() for part in wanted.split(",")):
        matches = named(everything, token)
        if not set(matches) & set(granted):
            raise UserError(f"GPU {token} is hidden by {source}={Variable(source).text()}.")
        chosen += [device for device in matches if device in granted]
    return chosen


def named(everything: Sequence[Device], token: str) -> list[Device]:
    """Return the devices of one entry of a list; raise UserError if there are none."""
    if matches := matching(everything, token):
        return matches
    name = f"GPU {token}" if token.isdecimal() else repr(token)
    if not everything:
        raise UserError(f"{name} does not exist; this machine has no GPU.")
    if not token.isdecimal():
        uuids = ", ".join(device.uuid for device in everything if device.uuid)
        raise UserError(f"{name} is not the start of one device's UUID; this machine has {uuids}.")
    here = f"0–{last}" if (last := everything[-1].number) else "GPU 0 only"
    raise UserError(f"{name} does not exist; this machine has {here}.")
