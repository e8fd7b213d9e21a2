"""The page of a step, and its figures. Each name is loaded when it is used: altair is heavy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from featuremill.report.page import write_of
    from featuremill.workload.figures import Figure, categories, drawn, values

__all__ = ["Figure", "categories", "drawn", "values", "write_of"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "report.page" if name == "write_of" else "workload.figures"
    return getattr(import_module(f"featuremill.{home}"), name)
