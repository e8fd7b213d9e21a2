"""The vectors and the recipe of a set of features, before any job computes it.

They follow from the options and the model's metadata, also before the weights are on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from featuremill.base.devices import planning_device
from featuremill.base.errors import UserError
from featuremill.workload import EstimatesMemory, WorkloadOptions, find_workload
from featuremill.workload.option_files import execution_of

if TYPE_CHECKING:
    import pyarrow as pa


def ahead_of(
    name: str, given: WorkloadOptions | Mapping[str, Any], device_choice: str
) -> tuple[pa.Schema, dict[str, Any]] | None:
    """Return the schema of the results and the settings of the recipe, for features by the workload
    `name` with the options `given`; None where they cannot be derived yet."""
    workload = find_workload(name)
    options = workload.Options.model_validate(given) if isinstance(given, Mapping) else given
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
