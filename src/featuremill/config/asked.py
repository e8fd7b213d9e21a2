"""What a config asks for, against what was planned: the one answer to whether a plan, and so its
results, are what the config says now.

Whether a file is still what was read is another question, which `status.sources` answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from featuremill.base.change import Change
from featuremill.base.file_times import came_at
from featuremill.config import Run
from featuremill.inputs import TableOptions
from featuremill.store import formats, shared, state
from featuremill.store.drawn import labels_of
from featuremill.store.files import digest_at, sha256_of
from featuremill.store.plan import Plan, Settings
from featuremill.store.results import Results
from featuremill.store.row_order import is_by_shard
from featuremill.store.state import Seen, State
from featuremill.workload import option_files
from featuremill.workload.option_files import execution_of

WITHOUT_EFFECT = {
    "plan": {"outputs", "order", "labels", "max_failed", "keep"},
    "deliver": {"labels", "max_failed", "keep"},
    "merge": {"labels", "keep"},
    "report": {"keep"},
}
"""Keys of a config that do not affect what a command writes: other values don't run it again."""
FILES = {"plan": "plan.json", "merge": "manifest.json"}
"""The file that a command writes last."""
PRODUCTS = {"plan": "planned", "merge": "merged"}
"""What a command makes: a folder with a file plan.json is a run's."""
OWN = {
    "plan": ("shards", "device", "gpus", "store"),
    "merge": ("outputs", "order", "max_failed"),
}
"""Keys by which only this command's files, and what is made of them, differ. For plan, what decides
the values is in plan.json."""
UNNAMED = {"order": "auto", "store": []}
"""Values of keys that `counted` leaves out."""


def counted(config: Run, verb: str) -> dict[str, Any]:
    """Return what of a config, when it changes, runs a command again."""
    counts = config.model_dump(mode="json", exclude={*WITHOUT_EFFECT[verb], "store"})
    if not counts["samples"]:  # configs without are as they were before there was the key
        del counts["samples"]
    if counts.get("order") == "auto":
        del counts["order"]
    if verb == "plan" and (stores := shared.layers(config.store)):
        counts["store"] = list(map(str, stores))
    return counts


def note(folder: Results, verb: str, config: Run) -> None:
    """Write down what a command was asked for, which has written its files just now."""
    place, file = folder.root / state.FOLDER, FILES[verb]
    place.mkdir(exist_ok=True)
    made = {file: Seen.at(folder.root / file, place)}
    State(asked=counted(config, verb), files=made).write(place / f"{PRODUCTS[verb]}.json")


def changes_for(verb: str, folder: Results, config: Run) -> list[Change]:
    """Return what `config` asks of plan or of merge otherwise than what its files were made by, but
    for what `changes_since` compares."""
    place, file = folder.root / state.FOLDER, FILES[verb]
    path = place / f"{PRODUCTS[verb]}.json"
    found = State.find(path) if path.is_file() and (folder.root / file).exists() else None
    if found is None or not found.files[file].is_at(folder.root / file, place):
        return _changes_since_merge(folder, config) if verb == "merge" else []
    now, before = counted(config, verb), found.asked
    changes = [
        Change(key, before.get(key, UNNAMED.get(key)), now.get(key, UNNAMED.get(key)))
        for key in OWN[verb]
    ]
    if verb == "plan":
        kind = type(config.options)
        options = {*execution_of(kind)} - {*option_files.kinds_of(kind)}
        known = before.get("options", {})
        changes += [
            Change(key, known[key], now["options"][key])
            for key in sorted(options & known.keys() & now["options"].keys())
        ]
    return [change for change in changes if change.before != change.now]


def _changes_since_merge(folder: Results, config: Run) -> list[Change]:
    """Return the same of results whose merge wrote nothing down, by manifest.json."""
    delivery, plan = folder.find_delivery(), folder.find_plan()
    if delivery is None or plan is None:
        return []
    written = [*formats.outputs_of(delivery.outputs).values()]
    by_shard = is_by_shard(config.order, config.outputs, folder, plan)
    changes = [Change("outputs", written, list(config.outputs))] * ({*written} != {*config.outputs})
    if by_shard != (delivery.row_order == "shard"):
        changes.append(Change("order", delivery.row_order, config.order))
    return changes


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
