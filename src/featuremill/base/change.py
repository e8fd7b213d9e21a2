"""What is asked for otherwise than before, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MOST_TOLD, MOST_VALUES = 4, 5
"""Changes that a sentence names, and values of a list."""


class Change(NamedTuple):
    """A key with another value than before."""

    key: str
    before: Any
    now: Any


def in_words(changes: Sequence[Change]) -> str:
    """Return the changes as text, such as "layers: 6 → 3; pool: mean → max"."""
    shown = [f"{key}: {_value(before)} → {_value(now)}" for key, before, now in changes[:MOST_TOLD]]
    more = [f"{len(changes) - MOST_TOLD:,} more"] if len(changes) > MOST_TOLD else []
    return "; ".join([*shown, *more])


def _value(value: Any) -> str:
    if value in (None, "", [], ()):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_value(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        shown = [_value(item) for item in value[:MOST_VALUES]]
        return ", ".join([*shown, *["…"] * (len(value) > MOST_VALUES)])
    return str(value)
