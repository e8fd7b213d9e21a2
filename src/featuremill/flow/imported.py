"""Runs in another workflow that imports this one with `module:`.

The screen, the default target and the handlers are the other workflow's. Paths may have a prefix,
and several modules may have runs. Snakemake reads the rules again for every `use rule`, so whatever
is done while they are read may be done more than once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from featuremill.config import Run
from featuremill.flow import internals
from featuremill.flow.screen import RefusedError
from featuremill.workload import option_files
from featuremill.workload.hugging_face import place_of
from featuremill.workload.weights import is_path

_runs: dict[str, str | None] = {}
"""The module that computes each results/<run>."""
_makers: dict[str, tuple[str, str]] = {}
"""The rule that makes each weights/<name>.json, and of which model."""


def below_prefix(workflow: Any, run: Run) -> Run:
    """Return the run with the prefix of the module, if any, in its paths."""

    def moved(path: str) -> str:
        return internals.below_prefix(workflow, path) if path else ""

    names = {*option_files.kinds_of(type(run.options))}
    model = run.model
    is_in_cache = model and place_of(model) != Path(model).expanduser()  # by its name
    if model and is_path(model, run.workload) and not is_in_cache:
        names |= set(run.model_key[1:])
    paths = {key: value for key, value in run.options_given.items() if key in names and value}
    options = {key: moved(value) for key, value in paths.items() if value[0] != "~"}
    return run.model_copy(
        update={
            "inputs": tuple(map(moved, run.inputs)),
            "results": moved(run.results),
            "options": run.options.model_copy(update=options),
            "labels": run.labels.model_copy(update={"file": moved(run.labels.file)}),
            "folder": moved(run.folder),
            "weights_json": moved(run.weights_json),
        }
    )


def share(workflow: Any, run: Run) -> None:
    """Let the rule of the first of several modules make the weights that all of them need.

    Raises:
        RefusedError: two modules compute the same run, or different models have the same name.
    """
    module = internals.workflow_module(workflow)
    if (other := _runs.setdefault(run.folder, module)) != module:
        raise RefusedError(
            f"modules {other} and {module} both compute {run.folder}; give each config a `run` of "
            "its own."
        )
    rule = internals.taken_rule(workflow, "weights")
    if rule is None or not run.model:
        return
    first, first_model = _makers.setdefault(run.weights_json, (rule, run.model))
    if place_of(first_model) != place_of(run.model):
        raise RefusedError(
            f"options: {run.model_key[-1]}: {first_model} and {run.model} would both become "
            f"{run.weights_json}; rename one."
        )
    if first != rule:
        internals.prefer_rule(workflow, first, rule)
