"""Checkpoints of the workload esm2, converted with their language-model head.

These are other files than esm2's, in a folder of their own, so nothing changes for its runs.
"""

from __future__ import annotations

from pathlib import Path

from featuremill.workload import Checkpoint, Converted
from featuremill.workloads.esm2 import sources
from featuremill.workloads.esm2.sources import NUMBERS, SUGGESTED, is_path, locate, refuse_missing

__all__ = [
    "LAYOUT",
    "NUMBERS",
    "SUGGESTED",
    "convert",
    "is_path",
    "locate",
    "name_of",
    "refuse_missing",
]

LAYOUT = "esm2-lm_head-1"


def name_of(model: str) -> str:
    """Return the name under which `weights/<name>.json` stands for `model`: not that of esm2."""
    return f"{sources.name_of(model)}-lm_head"


def convert(source: Checkpoint, path: Path) -> Converted:
    """Write the weights of `source`, with the head, to `path`."""
    return sources.convert(source, path, has_head=True)
