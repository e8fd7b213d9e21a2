"""Keep a user's files that have the names of declared outputs, which Snakemake deletes before a job
and after a failed one. Receipts and logs are not guarded: only featuremill uses their names."""

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
"""The record of each output (`ours.latest`) when Snakemake removed it, before its job."""


def guard(
    workflow: Any, rules: Iterable[Path], outputs: Iterable[Path], of_steps: Iterable[Path]
) -> None:
    """Guard the outputs of the rules in the files `rules`.

    If Snakemake has other internals, files are moved aside before the run starts: `outputs` of runs
    that featuremill did not write, and outputs `of_steps` that were changed after they were
    recorded. Unrecorded outputs of steps stay, because other packages keep no records. A file that
    a user saves during a job is then not protected.
    """
    _rules.update(path.resolve() for path in rules)
    is_guarding = internals.guard_outputs(workflow, _is_guarded, _vacate, _touching)
    if not is_guarding and internals.executes(workflow):
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
