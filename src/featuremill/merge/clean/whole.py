"""Whether a run's results are whole: only then may what they were made of go."""

from __future__ import annotations

from typing import Any

from featuremill.base.errors import UserError
from featuremill.merge.outputs import bytes_of, digest_of_result
from featuremill.store import command_line
from featuremill.store.agreement import are_results_of
from featuremill.store.files import read_json, read_sealed
from featuremill.store.results import Results


def check_whole(folder: Results) -> None:
    """Refuse results that are not finished, not those of the plan, or not what merge wrote.

    Raises:
        UserError: says which file, and what to do.
    """
    problem = _problem(folder)
    if problem:
        raise UserError(
            f"{problem}, so what they are made of has to stay; let the run come to its end first "
            f"({command_line.again(folder.root)}), or give --keep nothing to start over."
        )


def _problem(folder: Results) -> str:
    plan, path = read_sealed(folder.plan) or {}, folder.root / "manifest.json"
    manifest = read_json(path)
    if manifest is None:
        return f"{path}: there are no finished results"
    if not _belong(folder, plan, manifest):
        return f"{path}: these results are not those of {folder.plan.name}"
    for name, told in manifest["outputs"].items():
        file = folder.root / name
        if not file.exists():
            return f"{file}: this result is gone"
        if bytes_of(file) != told["bytes"] or digest_of_result(file) != told["sha256"]:
            return f"{file}: this is not the file that merge wrote"
    return ""


def _belong(folder: Results, plan: dict[str, Any], manifest: dict[str, Any]) -> bool:
    """Tell whether the results are those of the plan and of the parts whose receipts are here."""
    if not are_results_of(plan, manifest):
        return False
    parts = manifest["parts"].items()
    receipts = ((folder.receipt(plan["recipe"], shard), part) for shard, part in parts)
    return all(
        (read_sealed(path) or {}).get("part") == part for path, part in receipts if path.exists()
    )
