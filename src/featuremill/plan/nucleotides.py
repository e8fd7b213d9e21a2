"""Nucleotides where proteins are meant: what is said of them, and what to type instead."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from featuremill.base.environment import AS_PROTEINS
from featuremill.base.errors import UserError
from featuremill.config.project import proteins_of


def refuse(paths: Sequence[str], log: logging.Logger) -> None:
    """Refuse inputs that look like nucleotides, or only warn where the user says what they are.

    Raises:
        UserError: unless the user set `FEATUREMILL_AS_PROTEINS=1`.
    """
    problem = "most of the records look like nucleotides, not proteins"
    if AS_PROTEINS.value():
        log.warning("%s; continuing, as %s=1 is set", problem, AS_PROTEINS)
        return
    instead = ""
    if commands := proteins_of(paths):
        instead = f"translate them first: {commands[0]}, and then featuremill init {commands[1]}; "
    raise UserError(
        f"{', '.join(paths[:3])}: {problem}; {instead}{AS_PROTEINS}=1 takes them for proteins all "
        "the same."
    )
