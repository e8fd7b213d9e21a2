"""The recipe: the digest of everything that determines a run's values, including versions.

A plan has the settings of its recipe. A job needs the same versions as the plan, because it
continues journals: a part computed by two versions would be recorded as that of the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from featuremill.base.devices import Device, planning_device
from featuremill.base.errors import UserError
from featuremill.store.files import digest_of
from featuremill.store.plan import Settings
from featuremill.store.results import Results
from featuremill.workload import (
    EstimatesMemory,
    Weights,
    Workload,
    WorkloadOptions,
    find_workload,
    option_files,
    optional,
    plugin_errors,
)
from featuremill.workload.option_files import execution_of

if TYPE_CHECKING:
    import pyarrow as pa

ENGINE_VERSION = 1
"""Raise it whenever the core (reading, batching, parts) gives other values for the same input and
options. Each workload has a VERSION of its own."""


def settings_of(
    name: str, workload: Workload, options: Any, device: Device, weights: Weights | None
) -> Settings:
    """Return the settings of the recipe, as `settled` does."""
    return settled(name, workload, options, device, weights)[1]


def settled(
    name: str, workload: Workload, options: Any, device: Device, weights: Weights | None
) -> tuple[Any, Settings]:
    """Return the options with every "auto" resolved, and the settings of the recipe: everything
    that determines the values.

    Raises:
        UserError: if `device` does not support the options.
    """
    resolved = plugin_errors.resolved(name, workload, options, device, weights)
    settings = settings_of_resolved(name, workload, resolved, weights)
    unresolved = {key: getattr(options, key) for key in execution_of(type(options))}
    return resolved.model_copy(update=unresolved), settings


def settings_of_resolved(
    name: str, workload: Workload, resolved: Any, weights: Weights | None
) -> Settings:
    """Return the settings of the recipe for `resolved` options."""
    settings = Settings(
        workload=name,
        version=workload.VERSION,
        options=resolved.model_dump(mode="json", exclude=execution_of(type(resolved))),
        weights_sha256=weights.sha256 if weights else None,
    )
    if files := option_files.digests(resolved):
        settings = settings.model_copy(update={"files": files})
    # Recipes of engine version 1 do not contain it, so their parts stay valid.
    if ENGINE_VERSION == 1:
        return settings
    return settings.model_copy(update={"engine": ENGINE_VERSION})


def ahead_of(
    name: str, options: WorkloadOptions | Mapping[str, Any], device_choice: str
) -> tuple[pa.Schema, dict[str, Any]] | None:
    """Return the schema of the results and the settings of the recipe for the workload `name` with
    these `options`; None if they cannot be derived before the weights are downloaded."""
    workload = find_workload(name)
    if isinstance(options, Mapping):
        options = workload.Options.model_validate(options)
    try:
        device = planning_device(device_choice)
        weights = None
        if workload.weights(options):
            if not isinstance(workload, EstimatesMemory):
                return None
            weights = workload.weights_ahead(options)
        resolved = workload.resolve(options, device, weights)
        schema = workload.schema(resolved, weights)
    except UserError:  # the jobs report it
        return None
    settings = {
        "workload": name,
        "version": workload.VERSION,
        "options": resolved.model_dump(mode="json", exclude=execution_of(type(resolved))),
    }
    return schema, settings


def recipe_of(settings: Settings) -> str:
    """Return the recipe: the digest of its settings."""
    content = settings.as_json()
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return digest_of([canonical.encode()])


def precision_name_of(settings: Settings) -> str:
    """Return the dtype in the settings of a recipe; "" if there is none."""
    try:
        workload = find_workload(settings.workload)
    except UserError:
        return ""
    return str(settings.options.get(optional(workload, "PRECISION"), ""))


def versions(workload: Workload) -> dict[str, Any]:
    """Return the versions that a receipt of this installation has."""
    return {"workload_version": workload.VERSION, "engine_version": ENGINE_VERSION}


def other_versions_here(settings: Settings) -> str:
    """Describe how the installed versions differ from those in a plan's `settings`; "" if they do
    not, or if the workload is not installed, which is reported elsewhere."""
    try:
        workload = find_workload(settings.workload)
    except UserError:
        return ""
    return settings.other_versions(workload.VERSION, ENGINE_VERSION)


def refuse_other_versions(folder: Results, settings: Settings, workload: Workload) -> None:
    """Raise UserError if the installed versions differ from those in a plan's `settings`."""
    if others := settings.other_versions(workload.VERSION, ENGINE_VERSION):
        raise UserError(
            f"{folder.plan}: here is {others}, which it was made for; run the same command again: "
            "it plans anew."
        )
