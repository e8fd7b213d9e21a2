"""The recipe: the digest of everything that determines a run's values, versions included.

A plan holds the settings that its recipe is the digest of. Who computes by it has to be of the
versions that it was made for: a shard's journal goes on where it was, so a part that two versions
share would pass for one of the first.
"""

from __future__ import annotations

import json
from typing import Any

from featuremill.base.errors import UserError
from featuremill.lease.devices import Device
from featuremill.store.files import digest_of
from featuremill.store.plan import Settings
from featuremill.store.results import Results
from featuremill.workload import (
    HasPrecisions,
    Weights,
    Workload,
    find_workload,
    option_files,
    plugin_errors,
)
from featuremill.workload.option_files import execution_of

ENGINE_VERSION = 1
"""Bump it whenever the core (how records are read and batched, how rows become parts) gives other
values for the same input and options. A workload has a VERSION of its own."""


def settings_of(
    name: str, workload: Workload, options: Any, device: Device, weights: Weights | None
) -> Settings:
    """Return everything that determines the values; its digest is the recipe.

    Raises:
        UserError: for options that cannot be met on `device`.
    """
    resolved = plugin_errors.resolved(name, workload, options, device, weights)
    settings = Settings(
        workload=name,
        version=workload.VERSION,
        options=resolved.model_dump(mode="json", exclude=execution_of(type(resolved))),
        weights_sha256=weights.sha256 if weights else None,
    )
    if files := option_files.digests(resolved):
        settings = settings.model_copy(update={"files": files})
    # The first engine's recipes do not name it, and what was computed by them stays good.
    if ENGINE_VERSION == 1:
        return settings
    return settings.model_copy(update={"engine": ENGINE_VERSION})


def recipe_of(settings: Settings) -> str:
    """Return the digest of everything that determines the values."""
    told = settings.as_json()
    canonical = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return digest_of([canonical.encode()])


def precision_told(settings: Settings) -> str:
    """Return the number type that a recipe tells of; "" where it tells of none."""
    try:
        workload = find_workload(settings.workload)
    except UserError:
        return ""
    if not isinstance(workload, HasPrecisions):
        return ""
    return str(settings.options.get(workload.PRECISION, ""))


def versions(workload: Workload) -> dict[str, Any]:
    """Return the versions that values computed here have, as a receipt tells them."""
    return {"workload_version": workload.VERSION, "engine_version": ENGINE_VERSION}


def other_versions_here(settings: Settings) -> str:
    """Return how the versions that are installed differ from those of a plan's `settings`, in
    words; nothing where they agree, or where its workload is not installed, which others say."""
    try:
        workload = find_workload(settings.workload)
    except UserError:
        return ""
    return settings.other_versions(workload.VERSION, ENGINE_VERSION)


def refuse_other_versions(folder: Results, settings: Settings, workload: Workload) -> None:
    """Refuse to compute what a plan with these `settings` asks for by other versions than its own.

    Raises:
        UserError: where they differ.
    """
    if others := settings.other_versions(workload.VERSION, ENGINE_VERSION):
        raise UserError(
            f"{folder.plan}: here is {others}, which it was made for; run the same command again: "
            "it plans anew."
        )
