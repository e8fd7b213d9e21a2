"""The installed steps; each is loaded when a config has its key."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, create_model

from featuremill.base import entry_points
from featuremill.base.errors import UserError
from featuremill.step import Command, Section, Step

GROUP = "featuremill.steps"
COMMANDS = "featuremill.commands"
"""Entry points of commands of no step: modules with a `COMMAND`."""
REQUIRED = [name for name in (*Step.__annotations__, *vars(Step)) if name[0] != "_"]


def known() -> list[str]:
    """Return the keys of the installed steps."""
    return [*built_in(), *entry_points.others(GROUP)]


def built_in() -> list[str]:
    return [*entry_points.own(GROUP)]


@functools.cache
def step_of(key: str) -> Step:
    """Return the step with the key `key`.

    Raises:
        UserError: it cannot be loaded, or lacks an attribute.
    """
    entry = entry_points.find(GROUP, key)
    assert entry, key
    try:
        module = entry.load()
    except Exception as error:
        raise UserError(
            f"the step {key} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}; "
            "update or uninstall its package."
        ) from error
    lacks = [name for name in REQUIRED if not hasattr(module, name)]
    if lacks or key != module.KEY:
        problem = f"lacks {', '.join(lacks)}" if lacks else f"has the KEY {module.KEY!r}"
        raise UserError(f"the step {key} ({entry.value}) {problem}; update its package.")
    step: Step = module
    return step


def sections(keys: list[str]) -> type[BaseModel]:
    fields: Mapping[str, Any] = {
        key: (step_of(key).SECTION, Field(default=None, description=step_of(key).ABOUT))
        for key in keys
    }
    return create_model("Steps", __base__=Section, **fields)


def commands() -> dict[str, Command]:
    """Return the commands that are installed, and those of all steps; of two with one name the
    first one. What cannot be loaded has none."""
    every: dict[str, Command] = {}
    for name, entry in {**entry_points.own(COMMANDS), **entry_points.others(COMMANDS)}.items():
        with contextlib.suppress(Exception):  # of another package; ours are tested
            every[name] = entry.load().COMMAND
    for key in known():
        with contextlib.suppress(UserError):  # reported where the step is used
            every = {**step_of(key).COMMANDS, **every}
    return every
