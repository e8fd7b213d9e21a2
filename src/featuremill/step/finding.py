"""Which steps are installed; each is loaded when its key stands in a config."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import BaseModel, Field, create_model

from featuremill.base.errors import UserError
from featuremill.step import Command, Section, Step

GROUP = "featuremill.steps"
OURS = "featuremill.steps."
"""Beginning of the modules of those that come along."""
REQUIRED = [name for name in (*Step.__annotations__, *vars(Step)) if name[0] != "_"]


def _registered() -> dict[str, EntryPoint]:
    return _registered_in(tuple(sys.path))


@functools.cache
def _registered_in(path: tuple[str, ...]) -> dict[str, EntryPoint]:  # noqa: ARG001
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP))}


def known() -> list[str]:
    """Return the keys of the steps that are installed."""
    return list(_registered())


def built_in() -> list[str]:
    """Return the keys of those that come along."""
    return [key for key, entry in _registered().items() if entry.value.startswith(OURS)]


@functools.cache
def step_of(key: str) -> Step:
    """Return the step of a key that is installed.

    Raises:
        UserError: it cannot be loaded, or lacks something.
    """
    entry = _registered()[key]
    try:
        found = entry.load()
    except Exception as error:
        raise UserError(
            f"the step {key} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}; "
            "update or uninstall its package."
        ) from error
    lacks = [name for name in REQUIRED if not hasattr(found, name)]
    if lacks or key != found.KEY:
        problem = f"lacks {', '.join(lacks)}" if lacks else f"has the KEY {found.KEY!r}"
        raise UserError(f"the step {key} ({entry.value}) {problem}; update its package.")
    step: Step = found
    return step


def sections(of: list[str]) -> type[BaseModel]:
    """Return a model with the sections of these steps."""
    fields: Mapping[str, Any] = {
        key: (step_of(key).SECTION, Field(default=None, description=step_of(key).ABOUT))
        for key in of
    }
    return create_model("Steps", __base__=Section, **fields)


def commands() -> dict[str, Command]:
    """Return what the steps bring that is typed; a broken one brings nothing."""
    found: dict[str, Command] = {}
    for key in known():
        with contextlib.suppress(UserError):  # said to whoever asks for it
            found |= step_of(key).COMMANDS
    return found
