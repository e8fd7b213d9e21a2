"""Checkpoints of the workloads esm2 and esmc, converted with their language-model head.

These are other files than theirs, in a folder of their own, so nothing changes for their runs.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from featuremill.workload import Checkpoint, Converted
from featuremill.workloads.esm2 import sources as of_esm2
from featuremill.workloads.esm2.sources import NUMBERS, SUGGESTED, looks_like_path, nearest
from featuremill.workloads.esmc import sources as of_esmc

__all__ = [
    "LAYOUT",
    "NUMBERS",
    "SUGGESTED",
    "convert",
    "is_esm_c",
    "is_path",
    "locate",
    "name_of",
    "refuse_missing",
]

LAYOUT = "esm2-lm_head-1"
"""Of both networks; it is called after the first."""


def is_esm_c(model: str) -> bool:
    """Tell whether `model` is an ESM C, by its name or its files; else it is taken for an ESM-2."""
    if of_esm2.is_path(model) and not looks_like_path(model):
        names = [*of_esmc.NAMES, *of_esm2.bundled_names(), *of_esm2.PUBLISHED]
        return nearest(model, names) in of_esmc.NAMES
    return of_esm2.is_path(model) and of_esmc.takes(model)


def _sources(model: str) -> ModuleType:
    return of_esmc if is_esm_c(model) else of_esm2


def is_path(model: str) -> bool:
    """Tell whether `model` is the path of a checkpoint and not the name of a known model."""
    found: bool = _sources(model).is_path(model)
    return found


def name_of(model: str) -> str:
    """Return the name under which `weights/<name>.json` stands for `model`: not that of esm2."""
    return f"{_sources(model).name_of(model)}-lm_head"


def refuse_missing(model: str) -> None:
    """Raise UserError where `model` is not here, or is a folder of another network."""
    if is_esm_c(model):
        of_esmc.refuse_missing(model, LAYOUT)
    else:
        of_esm2.refuse_missing(model)


def locate(model: str) -> Checkpoint:
    """Return where the checkpoint of `model` is or is to come from."""
    found: Checkpoint = _sources(model).locate(model)
    return found


def convert(source: Checkpoint, path: Path) -> Converted:
    """Write the weights of `source`, with the head, to `path`."""
    model = source.name if source.kind == "published" else str(source.path)
    found: Converted = _sources(model).convert(source, path, has_head=True)
    return found
