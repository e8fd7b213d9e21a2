"""featuremill: records in, model features out, on every GPU you have.

featuremill.run("my.yaml")                 what the command does, with progress in a notebook
featuremill.load("results/demo")           a run's results as a pandas DataFrame
featuremill.load_matrix("results/demo")    the same as (ids, NumPy matrix), memory-mapped
featuremill.compute(inputs, workload)      features of records in memory or files, without a run
featuremill.embed(sequences, model=…)      ESM-2's of sequences, as NumPy arrays
featuremill.forget_model()                 gives back the memory of the model that these keep
featuremill.engine(workload, options)      what such calls compute by, for packages that bring some
featuremill.search(run, queries, k=10)     the nearest records of a run, as a DataFrame
from featuremill import features           a run's vectors in blocks, by row or by id
featuremill.UserError                      what these raise: a ValueError with one sentence
featuremill.SNAKEFILE                      the workflow's path, for `module: snakefile:`
"""

from __future__ import annotations

# What this imports, every verb does before it answers Ctrl-C: so neither typing nor pathlib.
# The types are in __init__.pyi.
from featuremill.base import __version__ as __version__

__all__ = [
    "SNAKEFILE",
    "UserError",
    "compute",
    "embed",
    "engine",
    "forget_model",
    "load",
    "load_matrix",
    "run",
    "search",
]

_WHERE = {
    "SNAKEFILE": "base.this_process",
    "UserError": "base.errors",
    "compute": "api",
    "engine": "api",
    "forget_model": "api",
    "load": "features.loading",
    "load_matrix": "features.loading",
    "run": "flow.python",
}


def __dir__() -> list[str]:
    """Return all names, also those of `__getattr__`, for completion by Tab."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Import a name on its first use, so that `import featuremill` costs nothing."""
    from importlib import import_module

    if name == "embed":  # the default workload brings it
        from featuremill.workload import DEFAULT, find_workload

        return getattr(find_workload(DEFAULT), name)
    if name == "search":  # a step brings it, with the command of this name
        from featuremill.step.finding import step_of

        return getattr(import_module(step_of("transfer").COMMANDS[name].module), name)
    if name not in _WHERE:
        raise AttributeError(f"module 'featuremill' has no attribute {name!r}")
    return getattr(import_module(f"featuremill.{_WHERE[name]}"), name)
