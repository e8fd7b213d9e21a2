"""What a set of features is going to have, before any job computes it: its vectors and its recipe.

What it will deliver is known from its options and the model's metadata, before there are weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from featuremill.base.errors import UserError
from featuremill.lease.devices import planning_device
from featuremill.workload import TellsMemory, find_workload
from featuremill.workload.option_files import execution_of

if TYPE_CHECKING:
    import pyarrow as pa


def ahead_of(
    name: str, given: Mapping[str, Any], device_choice: str
) -> tuple[pa.Schema, dict[str, Any]] | None:
    """Return what features by the workload `name` with the options `given` are going to have: the
    schema of their results, and their recipe's settings; None where that is not known yet."""
    workload = find_workload(name)
    options = workload.Options.model_validate(given)
    try:
        device = planning_device(device_choice)
        weights = None
        if workload.weights(options):
            if not isinstance(workload, TellsMemory):
                return None
            weights = workload.weights_ahead(options)
        resolved = workload.resolve(options, device, weights)
        schema = workload.schema(resolved, weights)
    except UserError:  # which the jobs say in their turn
        return None
    settings = {
        "workload": name,
        "version": workload.VERSION,
        "options": resolved.model_dump(mode="json", exclude=execution_of(type(resolved))),
    }
    return schema, settings
