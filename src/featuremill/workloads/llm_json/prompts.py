"""Fill prompts: a Jinja template with the columns of a row, in a sandbox without files and random
numbers.

Messages contain the class of an error, never the content of a row, which may be private.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from featuremill.kit.errors import UserError
from featuremill.kit.text import one_line

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.nodes import Node
    from jinja2.nodes import Template as Tree

ROW = "row"
"""The variable with all columns, also those whose names are no variables."""
RANDOM = ("random", "lipsum")
OBJECT = re.compile(r" at 0x[0-9a-f]+(>|&gt;)", re.IGNORECASE)
"""The end of the text of a Python object such as a method: its address, which differs between
processes."""


class Prompt(NamedTuple):
    """A parsed template."""

    path: str
    template: Template
    variables: frozenset[str]
    """The columns that the template uses as variables."""
    columns: Sequence[str]
    """All columns that the template uses, as variables or from `row`, sorted."""

    def fill(self, row: Mapping[str, Any]) -> str:
        """Return the prompt of a row.

        Raises:
            UserError: the prompt would contain a Python object instead of a text.
            Exception: of any class, if the template raises it.
        """
        text = self.template.render({**{name: row[name] for name in self.variables}, ROW: row})
        if OBJECT.search(text) and not any(OBJECT.search(str(value)) for value in row.values()):
            raise UserError(
                f"options.prompt: {self.path}: an object of Python would stand in the prompt where "
                "a text should; write () after the name of a method, and | list or | join after a "
                "filter that gives several values."
            )
        return text


def read(path: str) -> Prompt:
    """Return the template in the file `path`.

    Raises:
        UserError: it cannot be read, is no template, or uses no column.
    """
    from jinja2 import StrictUndefined, TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    jinja = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
    for name in RANDOM:
        jinja.filters.pop(name, None)
        jinja.globals.pop(name, None)
    names_none = jinja.overlay()
    names_none.globals = {}  # so that Jinja counts its functions among a template's variables
    try:
        text = Path(path).read_text("utf-8")
        tree, template = names_none.parse(text), jinja.from_string(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"options.prompt: {path}: it cannot be read ({error}); check the file."
        ) from None
    except TemplateSyntaxError as error:
        problem = one_line(error.message or "").rstrip(".")
        raise UserError(
            f"options.prompt: {path}:{error.lineno}: {problem}; fix the template there."
        ) from None
    variables = _variables(tree, set(jinja.globals), path)
    columns = sorted({*(variables - {ROW}), *_of_row(tree, variables, path)})
    if not columns:
        raise UserError(
            f"options.prompt: {path}: this template names no column, so all rows would have the "
            "same prompt; write {{ a column }} where its value is to stand."
        )
    return Prompt(path, template, variables - {ROW}, columns)


def _variables(tree: Tree, functions: set[str], path: str) -> frozenset[str]:
    """Return the variables of a template. The name of one of Jinja's `functions` is a column,
    unless it is called."""
    from jinja2 import meta, nodes

    def is_name(node: Node, name: str) -> bool:
        return isinstance(node, nodes.Name) and node.name == name and node.ctx == "load"

    if any(True for _ in meta.find_referenced_templates(tree)):
        raise UserError(
            f"options.prompt: {path}: it includes another file, and only this one is read; put "
            "that one's text into it."
        )
    names = meta.find_undeclared_variables(tree)
    # `self.body()` calls a block of the template; Jinja does not list `self` as undeclared.
    called = {id(call.node) for call in tree.find_all(nodes.Call)}
    called |= {
        id(block.node) for block in tree.find_all(nodes.Getattr) if is_name(block.node, "self")
    }
    for name in (functions & names) | {"self"}:
        uses = {id(each) in called for each in tree.find_all(nodes.Name) if is_name(each, name)}
        if uses == {True}:
            names.discard(name)
        elif True in uses or (uses and name not in names):
            raise UserError(
                f"options.prompt: {path}: {name} is also a name of Jinja's own; write "
                f'{{{{ row["{name}"] }}}} for the column of that name.'
            )
    return frozenset(names)


def _of_row(tree: Tree, variables: frozenset[str], path: str) -> list[str]:
    from jinja2 import nodes

    if ROW not in variables:
        return []
    uses = [name for name in tree.find_all(nodes.Name) if name.name == ROW]
    names = [
        use.arg.value
        for use in tree.find_all(nodes.Getitem)
        if use.node in uses and isinstance(use.arg, nodes.Const)
    ]
    if len(names) < len(uses) or not all(isinstance(name, str) for name in names):
        raise UserError(
            f'options.prompt: {path}: {ROW} stands in it as more than {ROW}["a column"], so that '
            "its columns are unknown before it is filled; name each."
        )
    return names
