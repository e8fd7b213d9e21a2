"""What is different where another workflow imports this one with `module:`.

There the screen, the default target and the handlers are the other workflow's, files may stand
below a prefix, and several runs may lie side by side. Snakemake reads the rules anew for every
`use rule`, so whatever is done while they are read may happen more than once.
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


def refuse_sheet(workflow: Any, samples: str) -> None:
    """Refuse a sheet of samples in a module with a prefix: the sheet's paths have no prefix."""
    if samples and internals.below_prefix(workflow, "a") != "a":
        raise RefusedError("samples: a module with a prefix takes `inputs` only; leave one out.")


def below_prefix(workflow: Any, run: Run) -> Run:
    """Return the run with its files, and its folder, named as they are found from here."""

    def moved(path: str) -> str:
        return internals.below_prefix(workflow, path) if path else ""

    names = {*option_files.kinds_of(type(run.options))}
    model = run.model
    is_there = model and place_of(model) != Path(model).expanduser()  # in a cache, by its name
    if model and is_path(model, run.workload) and not is_there:
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
    """Let runs stand side by side in one workflow: the rule of the first makes the weights that
    several of them need.

    Raises:
        RefusedError: when two modules compute the same run, or different models of the same name.
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
