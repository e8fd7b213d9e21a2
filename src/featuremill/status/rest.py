"""What plan.speeds.earlier takes from here until it has its own: receipts as dictionaries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MOST_PARTS = 50


def newest_whole(receipts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest `receipts` that tell how long a part takes, the oldest of them first."""
    whole = [one for one in receipts if one["cost"] and not one.get("resumed_batches")]
    return sorted(whole, key=lambda receipt: str(receipt.get("finished")))[-MOST_PARTS:]


def working_seconds(seconds: dict[str, float]) -> float:
    """Return how long a job was at it while it had its device."""
    return float(seconds.get("total", 0.0)) - float(seconds.get("wait", 0.0))
