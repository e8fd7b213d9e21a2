"""What made a run's vectors: its network, by name, and the places in it that its columns are.

A workload may have `hooks(options, weights)`, which returns what TransformerLens calls the states
in each column, or None for a network that is none of language; and
`spans(payload, options, weights)`, which returns the bytes of a payload that each vector stands
for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.kit.errors import IntegrityError, UserError
from featuremill.kit.files import sha256_of
from featuremill.kit.runs import Results
from featuremill.kit.workloads import Weights, find_workload, read_weights

IN_CACHE = re.compile(r"models--(?P<owner>.+?)--(?P<name>[^/]+)/snapshots/")
"""The folder of a model in the cache of Hugging Face."""
SMALL_FILES = (".json", ".txt", ".model")
"""Of a model's folder: what says how texts are cut, and how many layers there are."""


class Origin(NamedTuple):
    """Of the vectors of a run."""

    model: str = ""
    """The network's name; "" where it is none of language, or is not known."""
    hooks: Mapping[str, str] = {}
    """The place in the network that a column is, by column."""


class Made(NamedTuple):
    """What a run was computed with."""

    workload: Any
    options: Any
    model: str
    weights: Weights | None
    """None where these are no longer here, or are others."""


def made(root: Path) -> Made | None:
    """Return what the run in `root` was computed with; None if its workload is not here."""
    results = Results(root)
    plan = results.read_plan()
    try:
        workload = find_workload(plan.settings.workload)
        model: type[Any] = workload.Options
        options = model.model_construct(**{**plan.execution, **plan.settings.options})
        name = workload.weights(options) or ""
    except (UserError, AttributeError):  # of another version, which lacks an option
        return None
    found = None
    if plan.weights:
        path = results.placed(plan.weights)
        try:
            found = read_weights(path, plan.settings.workload)
            is_same = found.sha256 == plan.settings.weights_sha256 and _is_unchanged(path)
        except (UserError, IntegrityError, OSError):
            is_same = False
        found = found if is_same else None
    return Made(workload, options, name, found)


def _is_unchanged(path: Path) -> bool:
    """Return whether the small files of the weights that the JSON at `path` names are as then."""
    told = json.loads(path.read_text("utf-8"))
    return all(
        sha256_of(Path(told["path"]) / file["path"]) == file["sha256"]
        for file in told.get("files", ())
        if file["path"].endswith(SMALL_FILES)
    )


def of(root: Path) -> Origin:
    """Return the origin of the vectors of the run in `root`, as far as it is known."""
    found = made(root)
    if found is None or found.weights is None or not hasattr(found.workload, "hooks"):
        return Origin()
    hooks = found.workload.hooks(found.options, found.weights)
    return Origin() if hooks is None else Origin(name_of(found.model), hooks)


def name_of(model: str) -> str:
    """Return the name of a model as others write it: that on Hugging Face, or of its folder."""
    if found := IN_CACHE.search(model):
        return f"{found['owner']}/{found['name']}"
    path = Path(model).expanduser()
    return path.resolve().name if path.is_absolute() or path.exists() else model
