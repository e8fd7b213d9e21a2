"""A prompt: a Jinja template over a row's columns, in a sandbox without files or random numbers.

Messages contain the class of an error, never the content of a row, which may be private.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from featuremill.base.errors import UserError
from featuremill.base.text import one_line

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.nodes import Template as Tree

ROW = "row"
"""The variable with all columns, for names that are no variables."""
BY_CHANCE = ("random", "lipsum")
"""Functions of Jinja that give another prompt each time."""


class Prompt(NamedTuple):
    """A parsed template."""

    template: Template
    columns: Sequence[str]
    """The columns in the template, sorted."""

    def of(self, row: Mapping[str, Any]) -> str:
        """Return the prompt of a row.

        Raises:
            Exception: of any class, if the template cannot be filled in.
        """
        return self.template.render({**row, ROW: row})


def read(path: str) -> Prompt:
    """Return the template in the file `path`.

    Raises:
        UserError: there is none, or it cannot be the prompt of a row.
    """
    from jinja2 import StrictUndefined, TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    jinja = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
    for name in BY_CHANCE:
        jinja.filters.pop(name, None)
        jinja.globals.pop(name, None)
    try:
        text = Path(path).read_text("utf-8")
        tree, template = jinja.parse(text), jinja.from_string(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"options.prompt: {path}: it cannot be read ({error}); check the file."
        ) from None
    except TemplateSyntaxError as error:
        problem = one_line(error.message or "").rstrip(".")
        raise UserError(
            f"options.prompt: {path}:{error.lineno}: {problem}; fix the template there."
        ) from None
    columns = _columns(tree, set(jinja.globals), path)
    if not columns:
        raise UserError(
            f"options.prompt: {path}: this template names no column, so all rows would have the "
            "same prompt; write {{ a column }} where its value is to stand."
        )
    return Prompt(template, columns)


def _columns(tree: Tree, known: set[str], path: str) -> list[str]:
    from jinja2 import meta, nodes

    if any(True for _ in meta.find_referenced_templates(tree)):
        raise UserError(
            f"options.prompt: {path}: it includes another file, and only this one is read; put "
            "that one's text into it."
        )
    names = meta.find_undeclared_variables(tree) - known
    if ROW not in names:
        return sorted(names)
    uses = [name for name in tree.find_all(nodes.Name) if name.name == ROW]
    places = [
        place.arg.value
        for place in tree.find_all(nodes.Getitem)
        if place.node in uses and isinstance(place.arg, nodes.Const)
    ]
    if len(places) < len(uses) or not all(isinstance(name, str) for name in places):
        raise UserError(
            f'options.prompt: {path}: {ROW} stands in it as more than {ROW}["a column"], so that '
            "its columns are unknown before it is filled; name each."
        )
    return sorted({*names, *places} - {ROW})
