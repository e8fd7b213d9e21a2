"""Reading samples: of a file that is being written, was cut, or holds rubbish."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.telemetry.writer import AGAIN_BYTES

MOST_BYTES = 4 * 1024 * 1024
"""Of a larger file, which no job writes, only the end is read."""
TAIL_BYTES = 4 * AGAIN_BYTES
TEXTS = frozenset(("event", "shard", "recipe", "host", "cost_unit", "kind", "uuid", "name")).union(
    ("slot", "stage", "status", "message")
)
LISTS = frozenset(("throttle", "of_whole_gpu"))
"""Of texts."""
OBJECTS = frozenset(("seconds", "process", "start"))
"""`devices` is a list of such."""


class Attempt(NamedTuple):
    """One job's try at a shard."""

    start: dict[str, Any]
    devices: list[dict[str, Any]]
    """Events: the devices it got, and when; several where one failed."""
    samples: list[dict[str, Any]]
    end: dict[str, Any] | None
    """None: it is at it, or was killed."""

    @property
    def energy_j(self) -> float | None:
        """What its GPUs took while it had them; None where nothing tells."""
        latest = {
            device["uuid"]: device["energy_j"]
            for sample in self.samples
            for device in sample.get("devices", ())
            if {"uuid", "energy_j"} <= set(device)
        }
        return math.fsum(latest.values()) if latest else None


class State(NamedTuple):
    """How the last attempt stands."""

    start: dict[str, Any]
    devices: list[dict[str, Any]]
    """Those that it has, each with uuid, name and slot; empty while it waits for one."""
    sample: dict[str, Any] | None
    end: dict[str, Any] | None
    time: float
    """Of the last line, in seconds since 1970."""


def read(path: str | Path) -> list[Attempt]:
    """Return the attempts in the file at `path`; none where it cannot be read."""
    found: list[Attempt] = []
    for event in _events(Path(path), MOST_BYTES):
        kind = event.pop("event")
        if kind == "start":
            found.append(Attempt(event, [], [], None))
        elif not found:
            continue
        elif kind == "device":
            found[-1].devices.append(event)
        elif kind == "sample":
            found[-1].samples.append(event)
        elif kind == "end":
            found[-1] = found[-1]._replace(end=event)
    return found


def tail(path: Path) -> State | None:
    """Return how the last attempt stands, out of the file's end; None where nothing says it."""
    state: State | None = None
    for event in _events(path, TAIL_BYTES):
        state = followed(state, event)
    return state


def followed(state: State | None, event: dict[str, Any]) -> State | None:
    """Return how the last attempt stands after one more event; None before anything says it."""
    kind, now = event["event"], event["time"]
    event = {key: value for key, value in event.items() if key != "event"}
    if kind == "start":
        return State(event, [], None, None, now)
    if kind == "again":
        sample = state.sample if state else None
        return State(event.get("start", {}), event.get("devices", []), sample, None, now)
    if state is None:
        return None
    if kind == "device":
        return state._replace(devices=event.get("devices", []), time=now)
    if kind == "sample":
        return state._replace(sample=event, time=now)
    return state._replace(end=event, time=now) if kind == "end" else state


def _events(path: Path, most_bytes: int) -> Iterator[dict[str, Any]]:
    """Yield the file's last events; what is no whole line of an event is passed over."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most_bytes))
            content = file.read(most_bytes)
    except OSError:
        return
    lines = content.split(b"\n")[:-1]  # what follows the last newline is being written
    for line in lines[1:] if size > most_bytes else lines:
        if event := event_of(line):
            yield event


def event_of(line: bytes) -> dict[str, Any] | None:
    """Return the event in a whole line, its values of the types that the keys tell; None where that
    is none."""
    try:
        event = _known(json.loads(line))
    except (ValueError, RecursionError, OverflowError):
        return None
    return event if {"event", "time"} <= set(event) else None


def _known(value: Any) -> dict[str, Any]:
    """Return the entries of an object whose values are of the type that the key tells."""
    if not isinstance(value, dict):
        return {}
    return {key: item for key, held in value.items() if (item := _checked(key, held)) is not None}


def _checked(key: str, value: Any) -> Any:
    if key in TEXTS:
        return value if isinstance(value, str) else None
    if key in LISTS:
        return (
            [text for text in value if isinstance(text, str)] if isinstance(value, list) else None
        )
    if key == "devices":
        return [_known(item) for item in value] if isinstance(value, list) else None
    if key in OBJECTS:
        return _known(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None
