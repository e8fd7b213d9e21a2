"""File times that lie in the future: Snakemake refuses an output that is older than its input.

They come from a clock that was wrong, here or where a file was copied from.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path

from featuremill.base.errors import UserError


def refuse_future(inputs: Iterable[str], clock: Path) -> None:
    """Refuse inputs whose time lies in the future.

    Raises:
        UserError: naming the first one.
    """
    now = now_by(clock)
    for path in inputs:
        if Path(path).exists() and (time := Path(path).stat().st_mtime) > now:
            when = datetime.datetime.fromtimestamp(time).isoformat(" ", "seconds")
            raise UserError(
                f"{path}: it was last changed in the future ({when}), by a clock that was wrong "
                "here or where it came from; Snakemake refuses what is made of it, so touch it."
            )


def now_by(clock: Path) -> float:
    """Return the time of the file system, whose clock may be another than ours: it is asked by
    touching the file `clock`."""
    clock.touch()
    return clock.stat().st_mtime
