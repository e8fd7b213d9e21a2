"""Read a JSON schema, validate replies against it, and map its properties to Arrow columns.

Reasons name a part of the schema, and never contain the content of a reply.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from featuremill.kit.errors import UserError
from featuremill.kit.text import clipped, one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from jsonschema.protocols import Validator

INT64 = range(-(2**63), 2**63)
GRAMMAR = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
"""JSON in one line, as json.dumps writes it, so that a model cannot spend its tokens on white
space."""
MOST_EXACT = 2**53
"""Floats, which llguidance uses for bounds, have all whole numbers up to this one."""
BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
SCHEMAS_BY_NAME = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
"""Keywords whose values are schemas by user-chosen names."""
NOTES = {"discriminator", "example"}
"""Keywords of OpenAPI, whose values are data as well."""
WITHOUT_SCHEMAS = {"const", "enum", "default", "examples", "required", "dependentRequired", *NOTES}
"""Keywords whose values are data."""
KEYWORDS = (
    BOUNDS
    | SCHEMAS_BY_NAME
    | WITHOUT_SCHEMAS
    | {
        *("$anchor", "$comment", "$dynamicAnchor", "$dynamicRef", "$id", "$ref", "$schema"),
        *("$vocabulary", "additionalProperties", "allOf", "anyOf", "contains", "contentEncoding"),
        *("contentMediaType", "contentSchema", "dependencies", "deprecated", "description", "else"),
        *("format", "if", "items", "additionalItems", "maxContains", "maxItems", "maxLength"),
        *("maxProperties", "minContains", "minItems", "minLength", "minProperties", "not", "oneOf"),
        *("pattern", "prefixItems", "propertyNames", "readOnly", "then", "title", "type"),
        *("unevaluatedItems", "unevaluatedProperties", "uniqueItems", "writeOnly"),
    }
)
"""Keywords of draft 2020-12, and those of earlier drafts that are still used. Others are allowed as
notes, unless they are nearly spelled like one of these."""
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
MOST_STEPS = 32
"""The largest number of references to follow to a property's type."""


class NotValid(Exception):  # noqa: N818  (a result of a reply, not an error)
    """A reply is invalid; the message is the reason."""


def read(path: str) -> dict[str, Any]:
    """Return the schema in the file `path`.

    Raises:
        UserError: there is no schema of an object in it, or it refers to other files.
    """
    try:
        schema = json.loads(Path(path).read_text("utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(
            f"options.json_schema: {path}:{error.lineno}: this is no JSON ({error.msg}); fix it."
        ) from None
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"options.json_schema: {path}: it cannot be read ({error}); check the file."
        ) from None
    for wrapper in ("json_schema", "schema"):  # as OpenAI's API takes it
        if isinstance(schema, dict) and "properties" not in schema:
            schema = schema.get(wrapper, schema)
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not properties or schema.get("type") != "object":
        raise UserError(
            f'options.json_schema: {path}: its top level has to be {{"type": "object", '
            '"properties": {…}}; put what is there into a property.'
        )
    if schema.get("nullable"):
        raise UserError(
            f"options.json_schema: {path}: nullable: true at its top level allows a reply without "
            "any property; leave it out there."
        )
    schema = _normalised(schema, str(schema.get("$id", "")), path)
    for keyword, value in _keywords(schema):
        if keyword == "$ref" and not str(value).startswith("#"):
            raise UserError(
                f"options.json_schema: {path}: it refers to {clipped(str(value))!r}, and nothing "
                "is fetched; put that into the file, under $defs."
            )
        _refuse_keyword(path, keyword, value)
    return dict(schema)


def _normalised(part: Any, own: str, path: str) -> Any:
    """Return a part of a schema in which references to the schema's `own` $id are local, and
    OpenAPI's `nullable: true` is a union with null."""
    if isinstance(part, list):
        return [_normalised(each, own, path) for each in part]
    if not isinstance(part, dict):
        return part
    copied: dict[str, Any] = {}
    for keyword, value in part.items():
        if keyword in SCHEMAS_BY_NAME and isinstance(value, dict):
            copied[keyword] = {name: _normalised(each, own, path) for name, each in value.items()}
        else:
            is_data = keyword in WITHOUT_SCHEMAS
            copied[keyword] = value if is_data else _normalised(value, own, path)
    document, _, fragment = str(copied.get("$ref", "")).partition("#")
    if own and document == own.rstrip("#"):
        copied["$ref"] = f"#{fragment}"
    nullable = copied.pop("nullable", False)
    if not isinstance(nullable, bool):
        raise UserError(
            f"options.json_schema: {path}: nullable: {clipped(json.dumps(nullable))} is neither "
            "true nor false; write one of them, without quotes."
        )
    return {"anyOf": [copied, {"type": "null"}]} if nullable else copied


def _keywords(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield each keyword of a schema and of the schemas in it, with its value."""
    if isinstance(schema, list):
        for part in schema:
            yield from _keywords(part)
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        yield keyword, value
        if keyword in SCHEMAS_BY_NAME and isinstance(value, dict):
            for part in value.values():
                yield from _keywords(part)
        elif keyword not in WITHOUT_SCHEMAS:
            yield from _keywords(value)


def _refuse_keyword(path: str, keyword: str, value: Any) -> None:
    """Raise UserError for a keyword that has no effect, or another one than it seems to have."""
    where = f"options.json_schema: {path}:"
    if keyword == "x-guidance":
        raise UserError(
            f"{where} x-guidance would change how JSON is written; leave it out of the schema."
        )
    near = difflib.get_close_matches(keyword, KEYWORDS, 1, 0.8)
    if near and keyword not in KEYWORDS:
        raise UserError(
            f"{where} {clipped(keyword)!r} is no keyword of JSON Schema and would have no effect; "
            f"did you mean {near[0]!r}?"
        )
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if keyword in BOUNDS and is_number and abs(value) > MOST_EXACT:
        raise UserError(
            f"{where} {keyword}: {value} is beyond 2^53, up to which a model is held to bounds; "
            "give a smaller bound, or leave it out."
        )


def grammar(schema: Mapping[str, Any]) -> str:
    from llguidance import LLMatcher

    # As text, since llguidance cannot convert numbers beyond 64 bits itself.
    return str(LLMatcher.grammar_from_json_schema(json.dumps(schema), GRAMMAR))


def refuse_wrong(schema: Mapping[str, Any], path: str) -> None:
    """Raise UserError for a schema, read from `path`, that is invalid or that llguidance cannot
    enforce. This needs jsonschema and llguidance; if they are missing here, jobs check it in their
    own environment."""
    if find_spec("jsonschema"):
        from jsonschema import FormatChecker, SchemaError

        _refuse_wrong_patterns(schema, path)
        try:
            # `_refuse_wrong_patterns` has checked the patterns, which are not Python's.
            _validator_class(schema).check_schema(schema, FormatChecker(()))
        except SchemaError as error:
            pointer = "/".join(map(str, error.absolute_path)) or "the top level"
            raise UserError(
                f"options.json_schema: {path}: this is no JSON schema, at {pointer}: "
                f"{clipped(one_line(error.message), 200)}; fix it."
            ) from None
    if find_spec("llguidance"):
        from llguidance import LLMatcher

        is_wrong, warnings = LLMatcher.validate_grammar_with_warnings(grammar(schema))
        if is_wrong:
            detail = clipped(" ".join(" ".join(warnings).split()), 200)
            raise UserError(
                f"options.json_schema: {path}: llguidance cannot hold a model to it ({detail}); "
                "leave that out of the schema, and test it afterwards."
            )


def _refuse_wrong_patterns(schema: Mapping[str, Any], path: str) -> None:
    for keyword, value in _keywords(schema):
        compiled = _compiled if keyword == "pattern" else re.compile
        named = list(value) if keyword == "patternProperties" and isinstance(value, dict) else []
        for pattern in [value] if keyword == "pattern" and isinstance(value, str) else named:
            try:
                compiled(pattern)
            except Exception as error:
                raise UserError(
                    f"options.json_schema: {path}: {keyword}: {clipped(pattern)!r} is no regular "
                    f"expression that is checked here ({one_line(str(error))[:100]}); write it "
                    "otherwise."
                ) from None


def _compiled(pattern: str) -> Any:
    """Return a pattern as in ECMA 262, with Unicode properties such as \\p{L}."""
    import regex

    return regex.compile(pattern)


def _pattern(_: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not _compiled(pattern).search(instance):
        yield ValidationError("it does not match")


def _multiple_of(_: Any, step: float, instance: Any, schema: Any) -> Iterator[Any]:
    """Compare decimal numbers as written: as floats, 0.3 is no multiple of 0.1."""
    from jsonschema import ValidationError

    is_number = isinstance(instance, int | float) and not isinstance(instance, bool)
    if is_number and (Fraction(repr(instance)) / Fraction(repr(step))).denominator != 1:
        yield ValidationError("it is no multiple")


def _validator_class(schema: Mapping[str, Any]) -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend, validator_for

    known = validator_for(schema, default=Draft202012Validator)
    return extend(known, {"pattern": _pattern, "multipleOf": _multiple_of})


def types_of(schema: Mapping[str, Any]) -> dict[str, pa.DataType | None]:
    """Return the Arrow types of the top level's properties by name, in the schema's order; None for
    a property without a single type, whose values are written as JSON."""
    return {name: _type(part, schema) for name, part in schema["properties"].items()}


def _arrow_value(value: Any, type: pa.DataType | None) -> Any:
    """Return the Arrow value of a valid value.

    Raises:
        NotValid: 64 bits cannot hold a number.
    """
    import pyarrow as pa

    if value is None:
        return None
    if type is None:
        return json.dumps(value, ensure_ascii=False)
    if pa.types.is_list(type):
        return [_arrow_value(item, type.value_type) for item in value]
    if pa.types.is_int64(type):
        value = int(value)  # in JSON Schema, 2.0 is an integer
        if value not in INT64:
            raise NotValid("an integer of more than 64 bits")
    elif pa.types.is_float64(type):
        value = float(value)
    return value


def _type(part: Any, schema: Mapping[str, Any]) -> pa.DataType | None:
    """Return the Arrow type of a part of the schema; None if it allows several."""
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
    types = part.get("type")
    if types is None:
        values = part["enum"] if "enum" in part else [part.get("const", {})]
        types = {TYPES.get(type(value), "object") for value in values}
    named = [name for name in ([types] if isinstance(types, str) else types) if name != "null"]
    if named == ["array"]:
        inner = _type(part.get("items"), schema)
        return pa.list_(inner) if inner in scalars.values() else None
    return scalars.get(named[0]) if len(named) == 1 else None


def _followed(part: Any, schema: Mapping[str, Any]) -> Any:
    """Return the target of a part's reference, and for a union with null the other part; None if
    there is no such part."""
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
            others = [choice for choice in choices or [] if choice != {"type": "null"}]
            if len(others) != 1:
                return None
            (part,) = others
        else:
            return part
    return None


class Reader(NamedTuple):
    validator: Validator
    types: dict[str, pa.DataType | None]
    """The types of the properties, as `types_of` returns them."""

    def fields(self, text: str) -> dict[str, Any]:
        """Return the properties of a reply, None for missing ones.

        Raises:
            NotValid: it is invalid by a part of the schema, which the message names.
        """
        try:
            content = json.loads(text, parse_float=_finite, parse_constant=_refuse)
            json.dumps(content, ensure_ascii=False).encode()
        except RecursionError:
            raise NotValid("nested too deeply") from None
        except UnicodeEncodeError:
            raise NotValid("half of a surrogate pair") from None
        except ValueError:
            raise NotValid("no JSON") from None
        for error in self.validator.iter_errors(content):
            raise NotValid(f"by the schema's {'/'.join(map(str, error.absolute_schema_path))}")
        return {name: _arrow_value(content.get(name), type) for name, type in self.types.items()}


def reader(schema: Mapping[str, Any]) -> Reader:
    return Reader(_validator_class(schema)(schema), types_of(schema))


def _refuse(name: str) -> None:
    raise ValueError(name)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise NotValid("a number of more than 64 bits")
    return number
