"""Find the network that computed a run's vectors, and the hook point of each column.

A workload may have `hooks(options, weights)`, which returns TransformerLens' names of the hook
points of columns, or None for networks other than language models; and
`spans(payload, options, weights)`, which returns the bytes of a payload for each vector.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.kit.errors import IntegrityError, UserError
from featuremill.kit.files import sha256_of
from featuremill.kit.runs import Results
from featuremill.kit.workloads import Weights, find_workload, read_weights

IN_CACHE = re.compile(r"models--(?P<owner>.+?)--(?P<name>[^/]+)/snapshots/")
"""The folder of a model in the cache of Hugging Face."""
SMALL_FILES = (".json", ".txt", ".model")
"""Suffixes of a model's config and vocabulary files."""


class Origin(NamedTuple):
    """The network of a run's vectors."""

    model: str = ""
    """The network's name; "" if it is unknown or not a language model."""
    hooks: Mapping[str, str] = {}


class Computed(NamedTuple):
    """The workload, the options and the weights of a run."""

    workload: Any
    options: Any
    model: str
    weights: Weights | None
    """The weights; None if they are missing or were changed."""


def computed(root: Path) -> Computed | None:
    """Return the workload, options and weights of a run; None if the workload is not installed."""
    results = Results(root)
    plan = results.read_plan()
    try:
        workload = find_workload(plan.settings.workload)
        model: type[Any] = workload.Options
        options = model.model_construct(**{**plan.execution, **plan.settings.options})
        name = workload.weights(options) or ""
    except (UserError, AttributeError):  # another version lacks an option
        return None
    weights = None
    if plan.weights:
        path = results.placed(plan.weights)
        with suppress(UserError, IntegrityError, OSError):
            there = read_weights(path, plan.settings.workload)
            if there.sha256 == plan.settings.weights_sha256 and _is_unchanged(path):
                weights = there
    return Computed(workload, options, name, weights)


def _is_unchanged(path: Path) -> bool:
    """Return whether the small files of the weights have the digests in the JSON at `path`."""
    content = json.loads(path.read_text("utf-8"))
    return all(
        sha256_of(Path(content["path"]) / file["path"]) == file["sha256"]
        for file in content.get("files", ())
        if file["path"].endswith(SMALL_FILES)
    )


def find(root: Path) -> Origin:
    """Return the origin of the vectors of the run in `root`; fields are empty if unknown."""
    run = computed(root)
    if run is None or run.weights is None or not hasattr(run.workload, "hooks"):
        return Origin()
    hooks = run.workload.hooks(run.options, run.weights)
    return Origin() if hooks is None else Origin(name_of(run.model), hooks)


def name_of(model: str) -> str:
    """Return the name of a model on Hugging Face, or the name of its folder."""
    if match := IN_CACHE.search(model):
        return f"{match['owner']}/{match['name']}"
    path = Path(model).expanduser()
    return path.resolve().name if path.is_absolute() or path.exists() else model
