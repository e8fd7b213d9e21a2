"""The products of a run (plan, results, report), the keys of the config that each depends on, and
their changes, which `status.outdated` compares; settings without effect, and refused names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from featuremill.base.errors import UserError
from featuremill.base.words import Change
from featuremill.config import GPUS_PER_JOB, KINDS, OLD_GPUS, Run
from featuremill.inputs import TableOptions
from featuremill.step import Product
from featuremill.store import formats, shared, state
from featuremill.store.files import digest_at
from featuremill.store.plan import Plan, Settings
from featuremill.store.results import Results
from featuremill.store.row_order import is_by_shard
from featuremill.store.state import State
from featuremill.workload import option_files
from featuremill.workload.option_files import execution_of

PATTERN = re.compile(r"\{\s*[.\w]+\s*(?:,(?:[^{}]++|\{\d+(?:,\d+)?\})*+)?\}")
"""A name in braces, perhaps with a constraint, which Snakemake reads as a wildcard."""
WITHOUT_EFFECT = {
    "plan": {"outputs", "order", "labels", "max_failed", "keep"},
    "deliver": {"labels", "max_failed", "keep"},
    "merge": {"labels", "keep"},
    "report": {"keep"},
}
"""Keys of a config that do not affect the outputs of a command, and trigger no rerun."""


def counted(config: Run, verb: str) -> dict[str, Any]:
    """Return the part of a config whose edit reruns a command. Snakemake records it as a parameter:
    a change of its form would rerun finished runs."""
    values = config.model_dump(mode="json", exclude={*WITHOUT_EFFECT[verb], "store"})
    if not values["samples"]:  # as in runs from before this key
        del values["samples"]
    if values.get("order") == "auto":
        del values["order"]
    if verb == "plan" and (stores := shared.layers(config.store)):
        values["store"] = list(map(str, stores))
    return values


def planned(config: Run, root: Path) -> Product:
    """Return the plan in the run's folder `root`, with the keys that determine shards and how they
    are computed. `changes_since` compares the keys that determine values."""
    kind = type(config.options)
    options = {*execution_of(kind)} - {*option_files.kinds_of(kind)}
    keys = {"shards", "device", "gpus"}
    stores = {"store": list(map(str, shared.layers(config.store)))}
    values = config.model_dump(mode="json", include=keys) | stores
    values |= config.options.model_dump(mode="json", include=options)
    return _product(root, "planned", "plan.json", values)


def merged(config: Run, root: Path) -> Product:
    """Return the results in the run's folder `root`, with the keys that merge depends on."""
    values = config.model_dump(mode="json", include={"outputs", "order", "max_failed"})
    card = partial(_listed_in_manifest, config, Results(root))
    return _product(root, "merged", "manifest.json", values)._replace(card=card)


def reported(config: Run, root: Path) -> Product:
    """Return the report in the run's folder `root`, with the labels of its map."""
    labels = config.labels
    values = {f"labels.{key}": value for key, value in labels}
    return _product(root, "reported", "report.html", values, [labels.file] * bool(labels.file))


def changes_of_report(config: Run, root: Path, folder: Path) -> Sequence[Change]:
    """Return how the labels of the `config`, whose paths are relative to `folder`, differ from
    those of the report in `root`: in a key, or in the content of their table."""
    changes, others = reported(config, root).differences(folder)
    return changes or [Change("labels.file", "a table", "another one")] * bool(others)


def _product(
    root: Path, name: str, file: str, values: Mapping[str, Any], inputs: Sequence[str] = ()
) -> Product:
    path = f"{root}/{file}"
    return Product(path, [path], inputs, [], [], config=values, state=state.path_of(root, name))


def _listed_in_manifest(config: Run, folder: Results) -> State:
    """Return the state in manifest.json: the keys of the config that it lists, and their values."""
    delivery, plan = folder.find_delivery(), folder.find_plan()
    if delivery is None or plan is None:
        return state.stated({})
    written = [*formats.outputs_of(delivery.outputs).values()]
    by_shard = is_by_shard(config.order, config.outputs, folder, plan)
    order = config.order if by_shard == (delivery.row_order == "shard") else delivery.row_order
    is_same = {*written} == {*config.outputs}
    return state.stated({"outputs": [*config.outputs] if is_same else written, "order": order})


def options_of_values(config: Run) -> dict[str, Any]:
    """Return the options that determine values or records, without paths; "auto" is kept."""
    left_out = {*execution_of(type(config.options)) - TableOptions.EXECUTION}
    options: dict[str, Any] = config.options.model_dump(mode="json", exclude=left_out)
    return options


def changes_since(plan: Plan, config: Run, folder: Path = Path()) -> list[Change]:
    """Return the keys that determine values and differ between the plan and the `config`, whose
    paths are relative to `folder`."""
    changes = []
    now = list(dict.fromkeys(config.named))
    planned = [entry.path for entry in plan.inputs][: 1 if config.samples else None]
    if list(map(Path, planned)) != list(map(Path, now)):
        changes.append(Change(config.key_of_named, planned, now))
    if plan.workload != config.workload:
        return [*changes, Change("workload", plan.workload, config.workload)]
    options = options_of_values(config)
    for key, before in plan.asked.items():
        if key in options and options[key] not in (before, plan.settings.options.get(key)):
            changes.append(Change(key, before, options[key]))
    return changes + _changed_files(plan, config, folder)


def _changed_files(plan: Plan, config: Run, folder: Path) -> list[Change]:
    """Return the options that name another file than in the plan, unless it is a copy."""
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
    """Return the settings that differ between two recipes."""
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


def unused_settings(run: Run) -> list[str]:
    """Return a sentence for each setting of `run` without effect."""
    sentences = [
        f"options: values {KINDS[kind]} are computed, but no output holds them."
        for kind in sorted(run.options.delivers())
        if not any(formats.format_of(output).kind in (None, kind) for output in run.outputs)
    ]
    if run.labels.file and not {"parquet", "parquet_dataset"} & set(run.outputs):
        sentences.append(
            "labels: they colour the report's map, which is drawn from parquet or parquet_dataset, "
            "and outputs names neither."
        )
    if run.device == "cpu" and run.gpus > 1:
        sentences.append(f"{GPUS_PER_JOB}: {run.gpus} changes nothing with device: cpu.")
    if (OLD_GPUS,) in run.origin.places:
        where = run.origin.at(OLD_GPUS)
        sentences.append(f"{where}: {OLD_GPUS}: this key is called {GPUS_PER_JOB} now; rename it.")
    return sentences


def refuse_patterns(run: Run) -> None:
    """Raise UserError for names that Snakemake would read as wildcards, as it has no escape."""
    names: dict[str, Iterable[Any]] = {
        run.key_of_named: run.files,
        "options": run.options_given.values(),
        "labels": [run.labels.file],
    }
    for key, values in names.items():
        for value in values:
            if isinstance(value, str) and PATTERN.search(value):
                raise UserError(
                    f"config: {key}: {value!r} has a name in braces, which Snakemake would "
                    "replace; rename the file, or name it through a link without braces."
                )
