"""Read the YAML of a config file, with the line of each key."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from featuremill.base.errors import UserError
from featuremill.config import problems
from featuremill.config.problems import Places
from featuremill.inputs import evident_format
from featuremill.store import run_lock

MAX_VALUES = 10_000
"""Largest number of values that aliases may add; real configs have none."""


def read(path: Path) -> tuple[dict[str, Any], Places]:
    """Return the content of the YAML file `path`, not validated, and the position of each key. For
    a run's folder, read the config of its last start."""
    if path.is_dir():
        path = run_lock.config_of(path)
    try:
        if kind := evident_format(path):
            raise UserError(
                f"{path}: this is no config but {kind}; featuremill init {shlex.quote(str(path))} "
                "writes one."
            )
        text = path.read_text("utf-8")
    except OSError as error:
        raise UserError(
            f"{path}: this config cannot be read ({error.strerror}); "
            "featuremill init YOUR.fasta writes one."
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: this is no UTF-8 text at byte {error.start}; save it as UTF-8."
        ) from None
    return load(str(path), text)


def load(source: str, text: str) -> tuple[dict[str, Any], Places]:
    """Return the mapping in the YAML `text`, and the position of each key."""
    try:
        document = yaml.compose(text, yaml.SafeLoader)
        written: dict[int, float] = {}
        if document is not None and _size(document, written) - len(written) > MAX_VALUES:
            raise UserError(
                f"{source}: its aliases (*) unfold into more than {MAX_VALUES:,} values, or into "
                "themselves; write out what they stand for."
            )
        raw = yaml.safe_load(text)
    except RecursionError:
        raise UserError(
            f"{source}: its brackets or indents are nested too deeply; a config needs three levels."
        ) from None
    except UserError:
        raise
    except Exception as error:  # a value after a tag such as !!bool may raise any exception
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f":{mark.line + 1}" if mark else ""
        what = problem or " ".join(str(error).split())
        if not isinstance(error, yaml.YAMLError | ValueError):
            what = "a tag, such as !!int, stands before a value that does not fit it"
        advice = "look there, and one line above, at colons, quotes and indentation"
        if "constructor for the tag" in what:
            advice = "leave the tag out, as only plain values are read"
        if "\\t" in what:
            advice = "indent with spaces, not tabs"
        raise UserError(f"{source}{line}: this is not valid YAML ({what}); {advice}.") from None
    if document is None or not isinstance(raw, dict):
        raise UserError(
            f"{source}:1: a config is a YAML mapping; begin with a line such as 'inputs: my.fa'."
        )
    lines = _lines(source, document)
    return raw, {key: f"{source}:{line}" for key, line in lines.items()}


def _size(node: yaml.Node, known: dict[int, float]) -> float:
    """Return the number of values in `node` with its aliases expanded."""
    if id(node) not in known:
        known[id(node)] = math.inf  # for an alias that contains itself
        inside: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            inside = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            inside = node.value
        known[id(node)] = 1 + sum(_size(part, known) for part in inside)
    return known[id(node)]


def _lines(source: str, document: yaml.Node) -> dict[tuple[str, ...], int]:
    """Return the line of each key in the YAML `document`; raise UserError for a repeated key."""
    lines: dict[tuple[str, ...], int] = {}
    for key, line in _keys(document, ()):
        if key in lines:
            raise UserError(
                f"{source}:{line}: {problems.name_of(key)} is set here and in line "
                f"{lines[key]}; keep one."
            )
        lines[key] = line
    return lines


def _keys(node: yaml.Node, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield each key of the YAML mapping `node`, including nested keys, with its line."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*path, str(key.value)), key.start_mark.line + 1
            yield from _keys(value, (*path, key.value))
