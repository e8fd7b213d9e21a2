"""Whether manifest.parquet is that of plan.json, and whether parts tell which records failed."""

from __future__ import annotations

from typing import Any

from featuremill.base.errors import IntegrityError, UserError
from featuremill.store import command_line
from featuremill.store.files import sha256_of
from featuremill.store.plan import Plan
from featuremill.store.results import Results


def read_plan_of_manifest(folder: Results) -> Plan:
    """Return what the plan of `folder` says, once manifest.parquet is seen to be its own.

    Raises:
        UserError: when there is no plan.
        IntegrityError: when it is not what was written, or manifest.parquet is not its own.
    """
    plan = folder.read_plan()
    if not folder.manifest.is_file():
        problem = f"it is gone; delete {folder.plan.name}"
    elif sha256_of(folder.manifest) != plan.manifest_sha256:
        problem = f"it does not belong to {folder.plan.name}; delete both"
    else:
        return plan
    raise IntegrityError(
        f"{folder.manifest}: {problem} and run it again ({command_line.again(folder.root)})."
    )


def refuse_what_was_cleaned(folder: Results) -> None:
    """Refuse to look for failed records among parts that `clean` removed.

    Raises:
        UserError: when the results tell of failed records, and no part is left.
    """
    delivery = folder.find_delivery()
    num_failed = delivery.counts.failed if delivery else 0
    if num_failed and not any((folder.store / "parts").rglob("*.arrows")):
        raise UserError(
            f"{folder.root}: the parts that tell which records failed were removed; "
            f"{folder.root / 'failed.fa'} holds all {num_failed:,}: give it to a run of its own."
        )


def are_results_of(plan: Any, manifest: Any, is_partial: bool = False) -> bool:
    """Tell whether the results that manifest.json tells of are those of `plan`."""
    plan = plan.as_json() if isinstance(plan, Plan) else plan
    made_of = manifest.get("manifest_sha256", plan.get("manifest_sha256"))
    parts, shards = set(manifest.get("parts", {})), {s["shard"] for s in plan.get("shards", [])}
    return bool(
        made_of == plan.get("manifest_sha256")
        and manifest.get("plan") == plan.get("counts")
        and (parts <= shards if is_partial else parts == shards)
        and all(
            manifest.get(key) == plan.get(key) for key in ("run", "recipe", "inputs", "lengths")
        )
    )
