"""What is different where another workflow imports this one with `module:`.

There the screen, the default target and the handlers are the other workflow's, files may stand
below a prefix, and several runs may lie side by side. Snakemake reads the rules anew for every
`use rule`, so whatever is done while they are read may happen more than once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from featuremill.config import Config, model_key, model_of
from featuremill.flow import internals
from featuremill.flow.screen import RefusedError
from featuremill.workload import find_workload, option_files
from featuremill.workload.hugging_face import place_of
from featuremill.workload.weights import is_path

_runs: dict[str, str | None] = {}
"""The module that computes each results/<run>."""
_makers: dict[str, tuple[str, str]] = {}
"""The rule that makes each weights/<name>.json, and of which model."""


def refuse_sheet(workflow: Any, samples: str) -> None:
    """Refuse a sheet of samples below a prefix: it names files as they are without."""
    if samples and internals.below_prefix(workflow, "a") != "a":
        raise RefusedError("samples: a module with a prefix takes `inputs` only; leave one out.")


def config_below_prefix(workflow: Any, config: Config) -> Config:
    """Return the config with its files named as they are found from here."""

    def moved(path: str) -> str:
        return internals.below_prefix(workflow, path)

    paths = {*option_files.kinds_of(find_workload(config.workload).Options)}
    model = model_of(config)
    is_there = model and place_of(model) != Path(model).expanduser()  # in a cache, by its name
    if model and is_path(model, config.workload) and not is_there:
        paths |= set(model_key(config)[1:])
    options = {
        key: moved(value) if value and key in paths and value[0] != "~" else value
        for key, value in config.options.items()
    }
    file = config.labels.file and moved(config.labels.file)
    return config.model_copy(
        update={
            "inputs": tuple(map(moved, config.inputs)),
            "options": options,
            "labels": config.labels.model_copy(update={"file": file}),
        }
    )


def share(workflow: Any, config: Config, results: str, weights_files: list[str]) -> None:
    """Let runs stand side by side in one workflow: the rule of the first makes the weights that
    several of them need.

    Raises:
        RefusedError: when two modules compute the same run, or different models of the same name.
    """
    module = internals.workflow_module(workflow)
    if (other := _runs.setdefault(results, module)) != module:
        raise RefusedError(
            f"modules {other} and {module} both compute {results}; give each config a `run` of "
            "its own."
        )
    rule = internals.taken_rule(workflow, "weights")
    model = model_of(config) or ""
    if rule is None:
        return
    for path in weights_files:
        first, first_model = _makers.setdefault(path, (rule, model))
        if place_of(first_model) != place_of(model):
            raise RefusedError(
                f"options: {model_key(config)[-1]}: {first_model} and {model} would both become "
                f"{path}; rename one."
            )
        if first != rule:
            internals.prefer_rule(workflow, first, rule)
