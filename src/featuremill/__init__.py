"""featuremill: records in, model features out, on every GPU you have.

featuremill.load("results/demo")           a run's results as a pandas DataFrame
featuremill.load_matrix("results/demo")    the same as (ids, NumPy matrix), memory-mapped
featuremill.embed(sequences, model=…)      features of sequences at hand, with the same engine
featuremill.search(run, queries, k=10)     the nearest records of a run, as a DataFrame
featuremill.SNAKEFILE                      the workflow's path, for `module: snakefile:`
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from featuremill.api import embed
    from featuremill.results import load, load_matrix
    from featuremill.search import search

__version__ = "0.1.0"
__all__ = ["SNAKEFILE", "embed", "load", "load_matrix", "search"]

_HERE = Path(__file__).parent
_WHERE = {"embed": "api", "load": "results", "load_matrix": "results", "search": "search"}

SNAKEFILE = str(
    _HERE / "smk" / "Snakefile" if (_HERE / "smk").is_dir() else _HERE.parents[1] / "Snakefile"
)
"""The workflow: in the wheel beside this file, in a checkout at its root."""


def __getattr__(name: str) -> Any:
    """Import what is asked for only now, so that `import featuremill` costs nothing."""
    if name not in _WHERE:
        raise AttributeError(f"module 'featuremill' has no attribute {name!r}")
    return getattr(import_module(f"featuremill.{_WHERE[name]}"), name)
