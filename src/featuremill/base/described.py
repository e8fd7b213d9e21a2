"""Models whose fields are described by the docstrings below them."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import AliasChoices, BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic.fields import FieldInfo


def key_of(name: str, field: FieldInfo) -> str:
    """Return the key in a file whose value the field `name` has."""
    alias = field.validation_alias
    first = alias.choices[0] if isinstance(alias, AliasChoices) else alias
    return first if isinstance(first, str) else name


class Described(BaseModel):
    """Base of models for configs: unknown keys are refused, values are frozen.

    Pydantic's `use_attribute_docstrings` searches all imported modules for the source of each class
    when the class is made. Here the source is read only when descriptions are needed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse `yes`, `on` and `true` for numbers: Pydantic would read them as 1."""
        if any(isinstance(each, bool) for each in _values_in(value)):
            types = [*_types_in(cls.model_fields[str(info.field_name)].annotation)]
            is_number = any(kind in types for kind in (int, float))
            if is_number and not any(kind in types for kind in (bool, Any)):
                raise AssertionError("a switch is no number")
        return value

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """Return the description of each field: the docstring below it, or that of its `Field`."""
        docs: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            docs |= _docstrings(base) if issubclass(base, Described) else {}
        fields = cls.model_fields.items()
        return {
            name: text for name, field in fields if (text := field.description or docs.get(name))
        }

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> dict[str, Any]:
        schema: dict[str, Any] = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in cls.descriptions().items():
            key = key_of(name, cls.model_fields[name])
            properties[key if key in properties else name].setdefault("description", text)
        return schema


def _values_in(value: Any) -> Iterator[Any]:
    """Yield a value, or the values in lists and mappings."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _values_in(inner)
    else:
        yield value


def _types_in(annotation: Any) -> Iterator[Any]:
    """Yield an annotation and the types in it."""
    yield annotation
    for inner in get_args(annotation):
        yield from _types_in(inner)


@functools.cache
def _docstrings(model: type) -> dict[str, str]:
    """Return the docstrings of the class's own fields; {} without its source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    except (OSError, TypeError, SyntaxError):
        return {}
    docstrings = {}
    for field, text in itertools.pairwise(getattr(tree.body[0], "body", [])):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(docstring))
            ):
                docstrings[name] = inspect.cleandoc(docstring)
    return docstrings
