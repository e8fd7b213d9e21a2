"""What became of contigs and fragments, in numbers."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple


class Counts(NamedTuple):
    """All contigs that were read, and their fragments."""

    contigs: int
    fragments: int
    failed: int
    """Fragments that have no prediction."""
    verdicts: Counter[str]
    """Contigs by class."""
    without: Counter[str]
    """Contigs that have no verdict, by status."""
