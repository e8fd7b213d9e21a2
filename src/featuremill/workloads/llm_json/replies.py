"""A JSON schema, what a reply has to be against it, and the Arrow columns of its properties.

Reasons name places of the schema, and never what a reply holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from featuremill.base.errors import UserError
from featuremill.base.text import clipped, one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from jsonschema.protocols import Validator

INT64 = range(-(2**63), 2**63)
GRAMMAR = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
"""JSON on one line, as json.dumps writes it: a model cannot spend its tokens on blanks."""
MOST_STEPS = 32
"""References that are followed to a property's type."""


class NotValid(Exception):  # noqa: N818  (it is what there is to say of a reply)
    """Why a reply is refused."""


def read(path: str) -> dict[str, Any]:
    """Return the schema in the file `path`.

    Raises:
        UserError: there is none, it is no object's, or it refers to other files.
    """
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(
            f"options.json_schema: {path}:{error.lineno}: this is no JSON ({error.msg}); mend it."
        ) from None
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"options.json_schema: {path}: it cannot be read ({error}).") from None
    properties = found.get("properties") if isinstance(found, dict) else None
    if not isinstance(properties, dict) or not properties or found.get("type") != "object":
        raise UserError(
            f'options.json_schema: {path}: its top level has to be {{"type": "object", '
            '"properties": {…}}; put what is there into a property.'
        )
    for reference in _references(found):
        if not reference.startswith("#"):
            raise UserError(
                f"options.json_schema: {path}: it refers to {clipped(reference)!r}, and nothing is "
                "fetched; put that into the file, under $defs."
            )
    return dict(found)


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from _references(part)


def grammar(schema: Mapping[str, Any]) -> str:
    """Return what llguidance makes of the schema."""
    from llguidance import LLMatcher

    # As text: of numbers beyond 64 bits its own conversion makes nothing.
    return str(LLMatcher.grammar_from_json_schema(json.dumps(schema), GRAMMAR))


def refuse_wrong(schema: Mapping[str, Any], path: str) -> None:
    """Refuse a schema, read from `path`, that is none, or that llguidance cannot hold a model to;
    a Python without these packages refuses nothing, as the jobs' own environment will.

    Raises:
        UserError: names the place.
    """
    if find_spec("jsonschema"):
        from jsonschema import SchemaError

        try:
            _validator_class(schema).check_schema(schema)
        except SchemaError as error:
            place = "/".join(map(str, error.absolute_path)) or "the top level"
            raise UserError(
                f"options.json_schema: {path}: this is no JSON schema, at {place}: "
                f"{clipped(one_line(error.message), 200)}; mend it."
            ) from None
    if find_spec("llguidance"):
        from llguidance import LLMatcher

        is_wrong, told = LLMatcher.validate_grammar_with_warnings(grammar(schema))
        if is_wrong:
            said = clipped(" ".join(" ".join(told).split()), 200)
            raise UserError(
                f"options.json_schema: {path}: llguidance cannot hold a model to it ({said}); "
                "leave that out of the schema, and test it afterwards."
            )


def _validator_class(schema: Mapping[str, Any]) -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    return validator_for(schema, default=Draft202012Validator)


class Property(NamedTuple):
    """A property of the schema's top level, as a column has it."""

    type: pa.DataType
    is_json: bool
    """Whether it is written as JSON, for want of one type."""

    def value(self, found: Any) -> Any:
        """Return what Arrow holds of a valid value.

        Raises:
            NotValid: a number that 64 bits cannot hold.
        """
        if found is None:
            return None
        return json.dumps(found, ensure_ascii=False) if self.is_json else _plain(found, self.type)


def _plain(found: Any, type: pa.DataType) -> Any:
    import pyarrow as pa

    if found is None:
        return None
    if pa.types.is_list(type):
        return [_plain(one, type.value_type) for one in found]
    if pa.types.is_int64(type):
        found = int(found)  # JSON Schema has 2.0 for an integer
        if found not in INT64:
            raise NotValid("an integer of more than 64 bits")
    elif pa.types.is_float64(type):
        found = float(found)
    return found


def properties(schema: Mapping[str, Any]) -> dict[str, Property]:
    """Return the top level's properties by name, in the schema's order."""
    import pyarrow as pa

    found = {}
    for name, part in schema["properties"].items():
        type = _type(part, schema)
        found[name] = Property(pa.string() if type is None else type, type is None)
    return found


def _type(part: Any, schema: Mapping[str, Any]) -> pa.DataType | None:
    """Return the Arrow type that a part of the schema means; None where it means several."""
    import pyarrow as pa

    scalars = {
        "string": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "boolean": pa.bool_(),
    }
    part = _followed(part, schema)
    if not isinstance(part, dict):
        return None
    given = part.get("type")
    if given is None:
        given = _types_of(part["enum"] if "enum" in part else [part.get("const", {})])
    named = [name for name in ([given] if isinstance(given, str) else given) if name != "null"]
    if named == ["array"]:
        inner = _type(part.get("items"), schema)
        return pa.list_(inner) if inner in scalars.values() else None
    return scalars.get(named[0]) if len(named) == 1 else None


def _types_of(values: list[Any]) -> list[str]:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    return sorted({names.get(type(value), "object") for value in values})


def _followed(part: Any, schema: Mapping[str, Any]) -> Any:
    """Return what a part refers to, and of what may be missing (anyOf with null) the rest."""
    for _ in range(MOST_STEPS):
        if not isinstance(part, dict):
            return None
        if isinstance(reference := part.get("$ref"), str):
            part = schema
            for name in reference.removeprefix("#").split("/")[1:]:
                name = name.replace("~1", "/").replace("~0", "~")
                part = part.get(name) if isinstance(part, dict) else None
        elif any(isinstance(part.get(key), list) for key in ("anyOf", "oneOf")):
            choices = part.get("anyOf") or part.get("oneOf")
            rest = [one for one in choices or [] if one != {"type": "null"}]
            if len(rest) != 1:
                return None
            (part,) = rest
        else:
            return part
    return None


class Reader(NamedTuple):
    """Judges replies."""

    validator: Validator
    properties: dict[str, Property]

    def fields(self, text: str) -> dict[str, Any]:
        """Return the properties of a reply, None for one that it does not have.

        Raises:
            NotValid: it is not valid, and where in the schema that is said.
        """
        try:
            found = json.loads(text, parse_constant=_refuse)
            json.dumps(found, ensure_ascii=False).encode()
        except RecursionError:
            raise NotValid("nested too deeply") from None
        except UnicodeEncodeError:
            raise NotValid("half of a surrogate pair") from None
        except ValueError:
            raise NotValid("no JSON") from None
        if not all(map(math.isfinite, _floats(found))):
            raise NotValid("a number of more than 64 bits")
        for error in self.validator.iter_errors(found):
            raise NotValid(f"by the schema's {'/'.join(map(str, error.absolute_schema_path))}")
        return {name: one.value(found.get(name)) for name, one in self.properties.items()}


def reader(schema: Mapping[str, Any]) -> Reader:
    """Return what judges replies by the schema."""
    return Reader(_validator_class(schema)(schema), properties(schema))


def _refuse(name: str) -> None:
    raise ValueError(name)


def _floats(found: Any) -> Iterator[float]:
    if isinstance(found, float):
        yield found
    elif isinstance(found, dict | list):
        for one in found.values() if isinstance(found, dict) else found:
            yield from _floats(one)
