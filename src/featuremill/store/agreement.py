"""Whether manifest.parquet is that of plan.json, and whether parts tell which records failed."""

from __future__ import annotations

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
