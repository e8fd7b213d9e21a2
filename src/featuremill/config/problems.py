"""Validate a section of a config; describe its errors, with the position of each key."""

from __future__ import annotations

import difflib
import itertools
import re
import reprlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from featuremill.base.errors import UserError
from featuremill.base.text import one_line, plain

MAX_PROBLEMS = 20
"""Largest number of wrong keys in a message."""
_brief = reprlib.Repr()
"""`repr` of limited size: aliases can expand a value beyond any memory."""
_brief.maxlevel = 3
_brief.maxdict = _brief.maxlist = _brief.maxtuple = _brief.maxset = 20
_brief.maxstring = _brief.maxother = 80

Schema = dict[str, Any]
Places = Mapping[tuple[str, ...], str]
"""The file and line of each key in YAML, by the path of the key."""
Model = TypeVar("Model", bound=BaseModel)
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, and surrogates, which UTF-8 cannot encode."""

KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "null": "empty",
    "object": "a mapping of names to values",
    "path": "the path of a file or folder",
    "file-path": "the path of a file",
    "directory-path": "the path of a folder",
}


@dataclass(frozen=True)
class Origin:
    """The positions of a config's keys, for messages; comparisons of configs ignore it."""

    source: str = field(default="config", compare=False)
    """The name of the config in messages."""
    places: Places = field(default_factory=dict, compare=False)

    def at(self, *key: str) -> str:
        """Return the position of `key`, or of its nearest parent with a known position."""
        around = (key[:length] for length in range(len(key), 0, -1))
        return next((self.places[outer] for outer in around if outer in self.places), self.source)


def refuse_impossible(raw: Mapping[str, Any], origin: Origin) -> None:
    """Raise UserError for values that paths, JSON or a shell cannot represent."""
    for path in ((), ("options",), ("shards",), ("labels",)):
        section = raw.get(path[0]) if path else raw
        for key, value in section.items() if isinstance(section, Mapping) else ():
            for single in value if isinstance(value, list | tuple) else [value]:
                if isinstance(single, int) and single.bit_length() > 63:
                    problem = "this number is larger than anything it could mean"
                elif isinstance(single, str) and CONTROL.search(single):
                    problem = f"{single[:60]!r} holds a line break or another control character"
                else:
                    continue
                where = (*path, str(key))
                raise UserError(
                    f"{origin.at(*where)}: {name_of(where)}: {problem}; give another one."
                )


def checked(
    model: type[Model],
    raw: Mapping[str, Any],
    path: tuple[str, ...],
    elsewhere: Callable[[], Mapping[str, str]],
    origin: Origin,
    besides: Collection[str] = (),
) -> Model:
    """Return the section at `path` of a config as a validated `model`.

    Raises:
        UserError: a sentence for each wrong key; `elsewhere` has advice for misplaced keys, and
            `besides` are keys of the first level that other models have.
    """
    try:
        return model.model_validate(dict(raw))
    except ValidationError as error:
        problems = explain(model, error, path, elsewhere(), besides)
        sentences = [f"{origin.at(*key)}: {text}" for key, text in problems.items()]
        raise UserError("\n".join(sentences)) from None


def kind_of(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    """Describe the values that `schema` allows, such as "a whole number of at least 1"."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return "one of " + ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(kind_of(part, definitions) for part in schema["anyOf"])
    if "properties" in schema:
        return "a section with " + ", ".join(f"`{name}`" for name in schema["properties"])
    if schema.get("type") == "array":
        return f"a list (each entry {kind_of(schema.get('items', {}), definitions)})"
    kind = KINDS.get(schema.get("format", "")) or KINDS.get(schema.get("type", ""), "any value")
    bounds = {
        "minimum": "at least",
        "exclusiveMinimum": "more than",
        "maximum": "at most",
        "exclusiveMaximum": "less than",
    }
    limits = [f"{words} {schema[bound]}" for bound, words in bounds.items() if bound in schema]
    return f"{kind} of {' and '.join(limits)}" if limits else kind


def explain(
    model: type[BaseModel],
    error: ValidationError,
    path: tuple[str, ...],
    elsewhere: Mapping[str, str],
    besides: Collection[str] = (),
) -> dict[tuple[str, ...], str]:
    """Return a sentence for each wrong key of a `model` at `path` in the config.

    `elsewhere` is advice for keys that belong to another section; `besides` are keys of another
    model that are valid on the first level.
    """
    schema = model.model_json_schema()
    sentences: dict[tuple[str, ...], str] = {}
    for problem in error.errors():
        kind, value = problem["type"], problem["input"]
        if kind == "too_short" and value:
            continue  # pydantic counts only the valid entries; the wrong ones are named already
        key, part = _locate(schema, problem["loc"], takes_former=kind != "extra_forbidden")
        values = kind_of(part, schema.get("$defs", {}))
        if kind in ("extra_forbidden", "invalid_key"):
            names = [*part["properties"], *(besides if len(key) == 1 else ())]
            hint = _hint(key[-1], names, elsewhere)
            text = f"there is no such key here; {hint}"
        elif kind == "missing":
            text = f"this is missing; give {values}. {description_of(part)}"
        elif kind == "value_error":
            text = problem["msg"].removeprefix("Value error, ") + "."
        elif value is None or kind == "too_short":
            is_option = value is None and "options" in (*path, *key)
            about = f" {description_of(part)}" if is_option else ""
            text = f"this is empty; give {values}.{about}"
        else:
            quotes = "; put it in quotes" if values == KINDS["string"] else ""
            text = f"give {values}, not {_shown(value)}{quotes}."
        sentences.setdefault((*path, *key), f"{name_of((*path, *key))}: {text.rstrip()}")
    return dict(itertools.islice(sentences.items(), MAX_PROBLEMS))


FORMER = "former"
"""The key in the schema for the former name of a config key, which is still accepted."""


def name_of(key: tuple[str, ...]) -> str:
    """Return the name of a key in messages; YAML allows any text as key."""
    name = one_line(plain(".".join(key)))
    return name if len(name) <= 80 else f"{name[:77]}..."


def description_of(schema: Schema) -> str:
    return " ".join(schema.get("description", "").split())


def _locate(
    schema: Schema, loc: tuple[int | str, ...], *, takes_former: bool
) -> tuple[tuple[str, ...], Schema]:
    """Return the key at pydantic's location `loc` and its schema, or that of its parent if the key
    is unknown or a former name that is not accepted.

    Locations contain the branches of unions, which are not keys.
    """
    key: list[str] = []
    part = schema
    for step in loc:
        if "$ref" in part:
            part = schema["$defs"][part["$ref"].rpartition("/")[2]]
        if isinstance(step, int) and part.get("type") == "array":
            part = part.get("items", {})
            key.append(f"entry {step + 1}")
        elif isinstance(inside := part.get("additionalProperties"), dict):
            key.append(str(step))
            part = inside
        elif step == "[key]":  # it is the name itself that is wrong
            break
        elif "properties" in part:
            key.append(str(step))
            known = part["properties"]
            formers = {each.get(FORMER): each for each in known.values()} if takes_former else {}
            if step not in known and step not in formers:
                break
            part = known.get(step) or formers[step]
        else:
            break
    return tuple(key), part


def _hint(name: str, names: Collection[str], elsewhere: Mapping[str, str]) -> str:
    if name in elsewhere:
        return f"{elsewhere[name]}."
    if near := difflib.get_close_matches(name.lower().replace("-", "_"), names, n=1):
        return f"did you mean {near[0]!r}?"
    return f"valid keys are {', '.join(names)}." if names else "it has no options."


def _shown(value: Any) -> str:
    match value:
        case (alone,):  # as it was typed, without the brackets that a key for several values gets
            return _shown(alone)
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of that size"
    text = str(value) if isinstance(value, date) else _brief.repr(value)
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?([eE]\+?\d+)?", value):
        number = float(value)
        if number < 2**53:
            return f"the text {text} (as a number, write {int(number)})"
    return text if len(text) <= 60 else f"{text[:57]}..."
