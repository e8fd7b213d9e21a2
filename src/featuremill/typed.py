"""What was typed to start this Snakemake, for those who tell people to type it again."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

VARIABLE = "FEATUREMILL_TYPED"
"""Written by `featuremill run` before it becomes Snakemake: the process, and what was typed."""


def remember(words: Sequence[str]) -> None:
    """Have the Snakemake that this process becomes know that it was started by `words`."""
    os.environ[VARIABLE] = f"{os.getpid()} {shlex.join(words)}"


def command() -> str:
    """Return what was typed; a Snakemake that a job of that one starts was started otherwise."""
    process, _, words = os.environ.get(VARIABLE, "").partition(" ")
    return words if process == str(os.getpid()) else shlex.join(["snakemake", *sys.argv[1:]])
