"""Snakemake removes a job's declared outputs before it and after it failed: not those of a person.

Receipts and logs are named by featuremill alone, and go as ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from featuremill.flow import internals
from featuremill.store import ours

_rules: set[Path] = set()
"""The files whose rules are guarded, when there are any."""


def guard(workflow: Any, rules: Iterable[Path]) -> None:
    """Guard the outputs of rules in these files."""
    is_first = not _rules
    _rules.update(path.resolve() for path in rules)
    if is_first:  # Snakemake may read the workflow several times, as a module
        internals.guard_outputs(workflow, _is_guarded, _vacate, ours.touching)


def _is_guarded(rules: str, output: str) -> bool:
    is_named_by_us = output.endswith(".log") or "/receipts/" in output
    return not is_named_by_us and Path(rules).resolve() in _rules


def _vacate(path: Path) -> None:
    ours.vacate(path, internals.log.warning)
