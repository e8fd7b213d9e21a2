"""File times that lie in the future: Snakemake refuses an output that is older than its input.

They come from a clock that was wrong, here or where a file was copied from. The run's own files are
brought back to the present; the user's are named.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from pathlib import Path

from featuremill.base.errors import UserError

OURS = ("plan.json", "manifest.parquet", "receipts/*/*.json", "*")
"""The run's declared files, those that others are made of first."""


def bring_back(run_folder: Path, clock: Path) -> None:
    """Give the run's own files of the future the present as their time.

    `clock` is a file that is touched to ask the file system, whose clock may be another than ours.
    """
    now = _now(clock)
    ours = [path for pattern in OURS for path in sorted(run_folder.glob(pattern))]
    late = dict.fromkeys(path for path in ours if path.is_file() and path.stat().st_mtime > now)
    for path in late:
        os.utime(path)


def refuse_future(inputs: Iterable[str], clock: Path) -> None:
    """Refuse inputs whose time lies in the future.

    Raises:
        UserError: naming the first one.
    """
    now = _now(clock)
    for path in inputs:
        if Path(path).exists() and (time := Path(path).stat().st_mtime) > now:
            when = datetime.datetime.fromtimestamp(time).isoformat(" ", "seconds")
            raise UserError(
                f"{path}: it was last changed in the future ({when}), by a clock that was wrong "
                "here or where it came from; Snakemake refuses what is made of it, so touch it."
            )


def _now(clock: Path) -> float:
    clock.touch()
    return clock.stat().st_mtime
