"""What a run is going to have, before any job computes it: its vectors and its recipe.

What it will deliver is known from its config and the model's metadata, before there are weights.
"""

from __future__ import annotations

from featuremill.base.errors import UserError
from featuremill.config import Config
from featuremill.plan.command import planning_device
from featuremill.step import Ahead
from featuremill.workload import TellsMemory, find_workload
from featuremill.workload.option_files import execution_of


def ahead_of(config: Config) -> Ahead | None:
    """Return what the run of `config` is going to have; None where that is not known yet."""
    workload = find_workload(config.workload)
    options = workload.Options.model_validate(config.options)
    try:
        device = planning_device(config.device)
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
        "workload": config.workload,
        "version": workload.VERSION,
        "options": resolved.model_dump(mode="json", exclude=execution_of(type(resolved))),
    }
    return Ahead(schema, settings)
