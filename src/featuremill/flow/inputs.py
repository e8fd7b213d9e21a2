"""What the screen says of files that the config names and that are not there.

Snakemake knows which files no rule makes, also a rule of a workflow that imports this one; so it
decides, and only its words are replaced.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from snakemake.logging import logger

from featuremill.base.errors import UserError
from featuremill.config import Config
from featuremill.config.yaml_lines import Places
from featuremill.flow.module_import import is_imported
from featuremill.flow.screen import SCREEN, RefusedError
from featuremill.flow.support import checkpoint_files, sources
from featuremill.inputs import source
from featuremill.store.results import Results
from featuremill.workload.weights import refuse_missing

EXCEPTION = "MissingInputException"


def explain_missing(workflow: Any, config: Mapping[str, Any], run: Config) -> None:
    """Have Snakemake say where the config names a file that is missing, and nothing more."""
    if workflow.output_settings.verbose:
        return
    named, places = sources(config, workflow)  # now, while the workflow is at this config
    is_ours = not is_imported(workflow)
    configs = [Path(path) for path in workflow.configfiles] if is_ours else []
    if workflow.is_main_process and is_ours:
        _refuse_unplanned(run, named, places, configs)

    def matters(record: logging.LogRecord) -> bool:
        if getattr(record, "exception", None) != EXCEPTION:
            return True
        lines = {line.strip() for line in record.getMessage().splitlines()}
        said = list(_sentences(run, lines, named, places, configs))
        for sentence in said:
            print(sentence, file=sys.stderr)
        return not said

    for handler in logger.handlers:
        if handler.name == SCREEN:
            handler.addFilter(matters)


def _refuse_unplanned(run: Config, named: str, places: Places, configs: Sequence[Path]) -> None:
    """Refuse inputs that are not there and were never planned.

    Snakemake has nothing to do where a plan is there and its input is not. That is well for inputs
    that were put away after the run, and hides a wrong name.
    """
    plan = Results(Path("results") / run.run).find_plan()
    planned = {entry.path for entry in plan.inputs} if plan else set(run.inputs)
    for path in run.inputs:
        if path not in planned:
            try:
                source.check(Path(path))
            except UserError as error:
                place = places.get(("inputs",), named)
                hint = _elsewhere(Path(path), run, configs)
                raise RefusedError(f"{place}: inputs: {error}{hint}") from None


def _elsewhere(path: Path, run: Config, configs: Sequence[Path]) -> str:
    """Return the command that finds the inputs, where a config was named from another folder than
    its paths are seen from; empty where `path` is there, or they are not beside it either."""
    for config in configs:
        folder = Path(os.path.relpath(config.parent))
        is_elsewhere = folder != Path() and not path.exists()
        if is_elsewhere and all((folder / one).exists() for one in run.inputs):
            start = f"cd {shlex.quote(str(folder))} && featuremill run {shlex.quote(config.name)}"
            return f" It is there seen from {folder}; so type: {start}"
    return ""


def _sentences(
    run: Config, lines: set[str], named: str, places: Places, configs: Sequence[Path]
) -> Iterator[str]:
    labels = [run.labels.file] if run.labels.file else []
    asked_for = {
        ("inputs",): run.inputs,
        ("labels", "file"): labels,
        ("options", "model"): checkpoint_files(run),
    }
    for key, paths in asked_for.items():
        for path in paths:
            if path in lines:
                try:
                    refuse_missing(path) if key[-1] == "model" else source.check(Path(path))
                except UserError as error:
                    hint = _elsewhere(Path(path), run, configs)
                    yield f"{places.get(key, named)}: {'.'.join(key)}: {error}{hint}"
