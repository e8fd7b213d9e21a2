"""What a config asks for, against what was planned: the one answer to whether a plan, and so its
results, are what the config says now.

Only what decides values counts: inputs, workload, options, files that options name. Whether a file
is still what was read is another question, which `status.sources` answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from featuremill.base.change import Change
from featuremill.base.file_times import came_at
from featuremill.config import Run
from featuremill.inputs import TableOptions
from featuremill.store.drawn import labels_of
from featuremill.store.files import digest_at, sha256_of
from featuremill.store.plan import Plan, Settings
from featuremill.workload.option_files import execution_of


def options_asked(config: Run) -> dict[str, Any]:
    """Return the options that decide the values or the records, as the config has them: with "auto"
    where it says so, and without paths."""
    left_out = {*execution_of(type(config.options)) - TableOptions.EXECUTION}
    options: dict[str, Any] = config.options.model_dump(mode="json", exclude=left_out)
    return options


def changes_since(plan: Plan, config: Run, folder: Path = Path()) -> list[Change]:
    """Return what `config` asks for otherwise than what was planned. Its paths are seen from
    `folder`."""
    changes = []
    now = list(dict.fromkeys(config.named))
    planned = [entry.path for entry in plan.inputs][: 1 if config.samples else None]
    if list(map(Path, planned)) != list(map(Path, now)):
        changes.append(Change(config.key_of_named, planned, now))
    if plan.workload != config.workload:
        return [*changes, Change("workload", plan.workload, config.workload)]
    changes += _changed_options(plan, options_asked(config))
    return changes + _changed_files(plan, config, folder)


def changes_of_labels(report: Path, config: Run, folder: Path = Path()) -> list[Change]:
    """Return what colours the map otherwise than in the page `report`, as far as that says it."""
    drawn, labels = labels_of(report), config.labels
    if drawn is None:
        return []
    now = {"file": labels.file, "column": labels.column}
    changes = [
        Change(f"labels.{key}", drawn.get(key), value)
        for key, value in now.items()
        if drawn.get(key) != value
    ]
    if not changes and has_other_labels(report, config, folder):
        return [Change("labels.file", "a table", "another one")]
    return changes


def has_other_labels(report: Path, config: Run, folder: Path = Path()) -> bool:
    """Return whether another table is now where that was which colours the map of `report`."""
    drawn, table = labels_of(report), folder / config.labels.file
    if not (drawn and table.is_file() and drawn.get("file") == config.labels.file):
        return False
    return came_at(table) > report.stat().st_mtime and sha256_of(table) != drawn.get("sha256")


def changes_since_start(plan: Plan, options: Mapping[str, Any]) -> list[Change]:
    """Return what the start of a run that `asked` for this, as `run_lock.Owner` has it, wanted
    otherwise than what was planned, without its paths."""
    workload = options.get("workload", plan.workload)
    if workload != plan.workload:
        return [Change("workload", plan.workload, workload)]
    return _changed_options(plan, options)


def _changed_options(plan: Plan, options: Mapping[str, Any]) -> list[Change]:
    return [
        Change(key, before, options[key])
        for key, before in plan.asked.items()
        if key in options and options[key] not in (before, plan.settings.options.get(key))
    ]


def _changed_files(plan: Plan, config: Run, folder: Path) -> list[Change]:
    """Return the options that name another file than the planned one, which is no copy of it."""
    now = config.paths_of_options
    changes = []
    for name in dict.fromkeys([*plan.settings.files, *now]):
        planned, sha256 = plan.execution.get(name), plan.settings.files.get(name)
        path = now.get(name)
        if path != planned and not (
            path and sha256 and (folder / path).exists() and digest_at(folder / path) == sha256
        ):
            changes.append(Change(name, planned, path))
    return changes


def changes_of_settings(planned: Settings, now: Settings) -> list[Change]:
    """Return what of a recipe differs from another one's."""
    if planned.workload != now.workload:
        return [Change("workload", planned.workload, now.workload)]
    changes = [
        Change(key, planned.options.get(key), value)
        for key, value in now.options.items()
        if planned.options.get(key) != value
    ]
    changes += [
        Change(name, "a file", "another one")
        for name in dict.fromkeys([*planned.files, *now.files])
        if planned.files.get(name) != now.files.get(name)
    ]
    if planned.weights_sha256 != now.weights_sha256 and not changes:
        changes.append(Change("weights", "a file", "another one"))
    versions = (planned.version, planned.engine), (now.version, now.engine)
    if versions[0] != versions[1]:
        changes.append(Change("version", planned.version, now.version))
    return changes
