"""What is different where another workflow imports this one with `module:`.

There the screen, the default target and the handlers are the other workflow's, files may stand
below a prefix, and several runs may lie side by side. Snakemake reads the rules anew for every
`use rule`, so whatever is done while they are read may happen more than once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from featuremill.base.errors import UserError
from featuremill.config import Config, load, model_key, model_of
from featuremill.config.yaml_lines import Places
from featuremill.flow import reach
from featuremill.flow.screen import RefusedError
from featuremill.workload import find_workload, option_files
from featuremill.workload.weights import is_path


def run_below_prefix(workflow: Any, run: Config) -> Config:
    """Return the run with its files named as they are found from here."""

    def moved(path: str) -> str:
        return reach.below_prefix(workflow, path)

    paths = {*option_files.kinds_of(find_workload(run.workload).Options)}
    model = model_of(run)
    if model and is_path(model, run.workload):
        paths |= set(model_key(run)[1:])
    options = {
        key: moved(value) if value and key in paths else value for key, value in run.options.items()
    }
    file = run.labels.file and moved(run.labels.file)
    return run.model_copy(
        update={
            "inputs": tuple(map(moved, run.inputs)),
            "options": options,
            "labels": run.labels.model_copy(update={"file": file}),
        }
    )


def config_sources(config: Mapping[str, Any], workflow: Any) -> tuple[str, Places]:
    """Return what to call the `config` of a module, and where its keys stand: in that section of
    the importing workflow's config files which says the same, if one does."""
    source = f"config of module {reach.workflow_module(workflow)}"
    for path in reach.config_files(workflow):
        try:
            raw, places = load(Path(os.path.relpath(path)))
        except UserError:  # not ours, so it may be what it likes
            continue
        for section in _sections_like(config, raw, ()):
            size = len(section)
            inside = {key[size:]: p for key, p in places.items() if key[:size] == section}
            return source, {key: place for key, place in inside.items() if key}
    return source, {}


def _sections_like(
    config: Mapping[str, Any], raw: Any, path: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    if raw == config:
        yield path
    elif isinstance(raw, dict):
        for key, value in raw.items():
            yield from _sections_like(config, value, (*path, str(key)))


def share(workflow: Any, run: Config, results: str, weights_files: list[str]) -> None:
    """Let runs stand side by side in one workflow: the rule of the first makes the weights that
    several of them need.

    Raises:
        RefusedError: when two modules compute the same run, or different models of the same name.
    """
    shared = reach.shared(workflow)
    module = reach.workflow_module(workflow)
    if (other := shared.setdefault("runs", {}).setdefault(results, module)) != module:
        raise RefusedError(
            f"modules {other} and {module} both compute {results}; give each config a `run` of "
            "its own."
        )
    rule = reach.taken_rule(workflow, "weights")
    model = model_of(run)
    for path in weights_files if rule else ():
        makers = shared.setdefault("weights", {})
        first, first_model = makers.setdefault(path, (rule, model))
        if first_model != model:
            raise RefusedError(
                f"options: {model_key(run)[-1]}: {first_model} and {model} would both become "
                f"{path}; rename one."
            )
        if rule and first != rule:
            reach.prefer_rule(workflow, first, rule)
