"""File times that lie in the future: Snakemake refuses an output that is older than its input.

They come from a clock that was wrong, here or where a file was copied from. The run's own files are
brought back to the present; the user's are named (`inputs.source.refuse_future`).
"""

from __future__ import annotations

import os
from pathlib import Path

from featuremill.inputs.source import now_by

OURS = ("plan.json", "manifest.parquet", "receipts/*/*.json", "*")
"""The run's declared files, those that others are made of first."""


def bring_back(run_folder: Path, clock: Path) -> None:
    """Give the run's own files of the future the present as their time.

    `clock` is a file that is touched to ask the file system, whose clock may be another than ours.
    """
    now = now_by(clock)
    ours = [path for pattern in OURS for path in sorted(run_folder.glob(pattern))]
    late = dict.fromkeys(path for path in ours if path.is_file() and path.stat().st_mtime > now)
    for path in late:
        os.utime(path)
