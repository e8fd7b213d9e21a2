"""What a page about more than one run says of each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from featuremill.kit import text
from featuremill.kit.runs import Accounts, FailedGroup, Results, failed_groups


class Brief(NamedTuple):
    """One finished run."""

    folder: str
    report: str
    """Its page, seen from the one that says this."""
    counts: Accounts
    devices: str
    duration: str
    """How long devices were at work."""
    groups: Sequence[FailedGroup]
    """Why records have no features, and how many."""


def brief(folder: Path, seen_from: Path) -> Brief:
    """Return what a page in the folder `seen_from` says of the run in `folder`.

    Raises:
        UserError: when it is not finished.
    """
    delivery = Results(folder).read_delivery()
    names = {device.name for receipt in delivery.receipts for device in receipt.devices}
    seconds = sum(receipt.seconds.get("run", 0) for receipt in delivery.receipts)
    listed = folder / "failed.tsv"
    return Brief(
        str(folder),
        os.path.relpath(folder / "report.html", seen_from),
        delivery.counts,
        text.listed(sorted(names)),
        text.duration(seconds),
        failed_groups(listed).groups if listed.exists() else (),
    )
