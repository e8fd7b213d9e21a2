"""The contract of a workload.

A workload is a module (or any object) with the attributes of `Workload`. Its package registers it
as an entry point in the group `featuremill.workloads`. The core does planning, devices, batches,
the journal, retries, merging, accounting and the report. A workload defines its records and
computes their values. Optional attributes are in `featuremill.workload.contract`, readers of common
files in `featuremill.inputs`, and errors, texts and reasons in `featuremill.kit` (docs/kit.md).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, cast

from featuremill.base import entry_points, reasons
from featuremill.base.devices import BF16_CAPABILITY as BF16_CAPABILITY
from featuremill.base.devices import Device as Device
from featuremill.base.errors import UserError, WorkloadError
from featuremill.store.formats import Kind as Kind
from featuremill.workload import plugin_errors
from featuremill.workload.contract import Checkpoint as Checkpoint
from featuremill.workload.contract import Checkpoints as Checkpoints
from featuremill.workload.contract import Converted as Converted
from featuremill.workload.contract import EstimatesMemory as EstimatesMemory
from featuremill.workload.contract import Record as Record
from featuremill.workload.contract import RecordFailed as RecordFailed
from featuremill.workload.contract import UnitWork as UnitWork
from featuremill.workload.contract import Weights as Weights
from featuremill.workload.contract import Workload as Workload
from featuremill.workload.contract import WorkloadOptions as WorkloadOptions
from featuremill.workload.contract import optional as optional
from featuremill.workload.option_files import OptionFile as OptionFile
from featuremill.workload.option_files import OptionFolder as OptionFolder
from featuremill.workload.option_files import OptionWeights as OptionWeights

DEFAULT = "esm2"
"""The workload of a config without `workload`, and of `featuremill weights`."""


def refuse_without_packages(options: type[WorkloadOptions]) -> None:
    """Raise UserError if one of the options' PACKAGES is not installed; imports none of them."""
    refuse_lacking(options.PACKAGES)


def refuse_lacking(packages: Mapping[str, str]) -> None:
    """Raise UserError for the first module that is not installed, with its pip requirement."""
    for module, requirement in packages.items():
        if find_spec(module) is None:
            raise UserError(
                f"{module} is not installed in this Python ({sys.executable}), and nothing can be "
                f"computed without it; pip install '{requirement}'"
            )


REQUIRED = [name for name in (*Workload.__annotations__, *vars(Workload)) if name[0] != "_"]


def optional_of(name: str, attribute: str) -> Any:
    """Return the optional attribute of a workload, or the default if it is not installed."""
    try:
        return optional(find_workload(name), attribute)
    except (UserError, WorkloadError):
        return optional(None, attribute)


def know_reasons(name: str) -> None:
    """Register the reasons of the workload called `name`, if it is installed."""
    with contextlib.suppress(UserError, WorkloadError):
        find_workload(name)


def workloads() -> list[str]:
    """Return the names of all installed workloads; those of other packages come last."""
    return [*entry_points.own(plugin_errors.GROUP), *entry_points.others(plugin_errors.GROUP)]


def find_workload(name: str) -> Workload:
    """Return the workload that is registered as `name`."""
    point = entry_points.find(plugin_errors.GROUP, name)
    if point is None:
        known = ", ".join(workloads())
        raise UserError(f"workload: there is no workload {name!r}; known ones are {known}.")
    workload = plugin_errors.loaded(point, REQUIRED)
    with plugin_errors.attributed_to(name, "REASONS"):
        reasons.learn(optional(workload, "REASONS"))
    return cast(Workload, workload)
