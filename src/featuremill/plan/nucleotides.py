"""Nucleotides where proteins are meant: what is said of them, and what to type instead."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from featuremill.base.environment import AS_PROTEINS
from featuremill.base.errors import UserError

FOLDER, PROTEINS = "translated", "proteins.faa.gz"


def refuse(paths: Sequence[str], log: logging.Logger) -> None:
    """Refuse inputs that look like nucleotides, or only warn where the user says what they are.

    Raises:
        UserError: unless the user set `FEATUREMILL_AS_PROTEINS=1`.
    """
    problem = "most of the records look like nucleotides, not proteins"
    if AS_PROTEINS.value():
        log.warning("%s; continuing, as %s=1 is set", problem, AS_PROTEINS)
        return
    words = shlex.join(["featuremill", "translate", *paths, "--by", "orfs", "--output", FOLDER])
    raise UserError(
        f"{', '.join(paths[:3])}: {problem}; translate them first: {words}, and then featuremill "
        f"init {Path(FOLDER, PROTEINS)}; {AS_PROTEINS}=1 takes them for proteins all the same."
    )
