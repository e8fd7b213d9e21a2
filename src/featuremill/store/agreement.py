"""Whether plan.json, manifest.parquet and the results in manifest.json belong together."""

from __future__ import annotations

from typing import Any

from featuremill.base.errors import IntegrityError, UserError
from featuremill.store import command_line
from featuremill.store.files import RunFolder, read_json, read_plan, sha256_of

SAME = ("run", "recipe", "inputs", "lengths")
"""What manifest.json repeats of plan.json and that tells results apart; a recipe stands for its
settings."""


def read_plan_of_manifest(folder: RunFolder) -> dict[str, Any]:
    """Return what the plan of `folder` says, once manifest.parquet is seen to be its own.

    Raises:
        UserError: when there is no plan.
        IntegrityError: when it is not what was written, or manifest.parquet is not its own.
    """
    plan = read_plan(folder)
    if not folder.manifest.is_file():
        problem = f"it is gone; delete {folder.plan.name}"
    elif sha256_of(folder.manifest) != plan["manifest_sha256"]:
        problem = f"it does not belong to {folder.plan.name}; delete both"
    else:
        return plan
    raise IntegrityError(
        f"{folder.manifest}: {problem} and run it again ({command_line.again(folder.root)})."
    )


def are_results_of(
    plan: dict[str, Any], manifest: dict[str, Any], is_partial: bool = False
) -> bool:
    """Tell whether the results that manifest.json tells of are those of `plan`; `is_partial` ones,
    of manifest.partial.json, are of some of its parts."""
    # Results of an earlier version do not say which manifest.parquet they were made of.
    made_of = manifest.get("manifest_sha256", plan.get("manifest_sha256"))
    parts, shards = set(manifest.get("parts", {})), {s["shard"] for s in plan.get("shards", [])}
    return (
        made_of == plan.get("manifest_sha256")
        and manifest.get("plan") == plan.get("counts")
        and (parts <= shards if is_partial else parts == shards)
        and all(manifest.get(key) == plan.get(key) for key in SAME)
    )


def refuse_what_was_cleaned(folder: RunFolder) -> None:
    """Refuse to look for failed records among parts that `clean` removed.

    Raises:
        UserError: when the results tell of failed records, and no part is left.
    """
    manifest = read_json(folder.root / "manifest.json") or {}
    num_failed = manifest.get("counts", {}).get("failed", 0)
    if num_failed and not any((folder.store / "parts").rglob("*.arrows")):
        raise UserError(
            f"{folder.root}: the parts that tell which records failed were removed; "
            f"{folder.root / 'failed.fa'} holds all {num_failed:,}: give it to a run of its own."
        )
