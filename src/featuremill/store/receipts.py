"""Receipts, for those who read them: which devices computed a part, and what is in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERSION = 2
"""1 had one `device` in place of `devices`."""


def devices_of(receipt: dict[str, Any]) -> list[dict[str, str]]:
    """Return the devices that held the model: kind, uuid and name of each."""
    return receipt["devices"] if "devices" in receipt else [receipt["device"]]


def is_on_gpu(receipt: dict[str, Any]) -> bool:
    """Tell whether the part was computed on GPUs."""
    return devices_of(receipt)[0]["kind"] == "cuda"


def device_name(receipt: dict[str, Any]) -> str:
    """Return the model of the devices, such as "NVIDIA L4" or "2 × NVIDIA L4"."""
    names = [device["name"] for device in devices_of(receipt)]
    counts = {name: names.count(name) for name in names}
    return " + ".join(f"{n} × {name}" if n > 1 else name for name, n in counts.items())


def own_energy_j(receipt: Mapping[str, Any]) -> float | None:
    """Return the joules that the part's GPUs took for it; None where nothing told, or where they
    are of a whole GPU that others used too."""
    told = receipt.get("telemetry", {})
    return None if "energy_j" in told.get("of_whole_gpu", ()) else told.get("energy_j")


def has_counts(receipt: Mapping[str, Any], num_rows: int, num_failed: int) -> bool:
    """Tell whether the receipt counts what its part holds: so many rows, so many of them failed."""
    counts = (receipt.get("rows"), receipt.get("ok"), receipt.get("failed"))
    return counts == (num_rows, num_rows - num_failed, num_failed)
