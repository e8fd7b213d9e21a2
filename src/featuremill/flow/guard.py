"""Snakemake removes a job's declared outputs before it and after it failed: not those of a person.

Receipts and logs are named by featuremill alone, and go as ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from featuremill.flow import internals
from featuremill.store import ours

_rules: set[Path] = set()
"""The files whose rules are guarded, when there are any."""
_before: dict[Path, dict[str, Any] | None] = {}
"""What the records listed last of an output before its job."""


def guard(
    workflow: Any, rules: Iterable[Path], outputs: Iterable[Path], of_steps: Iterable[Path]
) -> None:
    """Guard the outputs of rules in these files.

    Where this Snakemake has no place for that, what of the `outputs` of runs is a person's is moved
    aside before the run begins, and what of those `of_steps` was changed: another package's are in
    no record then. A start cannot do more: what a person saves during a job is in Snakemake's
    hands.
    """
    _rules.update(path.resolve() for path in rules)
    is_guarding = internals.guard_outputs(workflow, _is_guarded, _vacate, _touching)
    if not is_guarding and internals.is_main(workflow) and internals.executes(workflow):
        for path in outputs:
            ours.give_way(path, internals.log.warning)
        for path in of_steps:
            if not path.is_dir():
                ours.give_way(path, internals.log.warning, is_named=True)


def _is_guarded(rules: str, output: str) -> bool:
    is_named_by_us = output.endswith(".log") or "/receipts/" in output
    return not is_named_by_us and Path(rules).resolve() in _rules


def _vacate(path: Path) -> None:
    ours.vacate(path, internals.log.warning)
    _before[path] = ours.latest(path)


def _touching(path: Path) -> AbstractContextManager[None]:
    return ours.touching(path, _before.get(path, ours.latest(path)))
