"""Telemetry: the progress of a shard's job, about once a second, in a small file beside its part.

`results/<run>/store/parts/<recipe>/<shard>.telemetry.jsonl` holds one JSON object a line, each
appended in one write by the job's supervisor. Each attempt (a job that was killed, and those after
it) appends. `time` is in seconds since 1970; unknown values have no key. A key never changes its
meaning without a new `version`. (Early files have more keys: `rate`, `torch_peak_mb`, `sm_mhz`,
`memory_mhz`.)

start    `version` 1, `shard`, `recipe`, `host`, `pid`, `rows` and `cost` (of the shard, as in
         plan.json), `cost_unit`, `rows_done` (that the journal holds already), `attempt` (from 1,
         since the part was last finished)
device   `devices`: `kind` (cuda, cpu), `uuid`, `name`, `number` (of a GPU, as in nvidia-smi),
         `slot` (0of1; absent where the outside gave a device that others use too), `memory_mb`,
         `of_whole_gpu` (the keys whose values are the whole GPU's, where the job has a slice or a
         part of it); again after a device failed
sample   `stage` (wait, load, run, finish), `rows_done`, `rows_failed`, `cost_done`, `cost_left`
         (their sum is the shard's cost, with rows that an edit left unused), `batches`,
         `oom_splits`, `seconds` (of this worker: `load`, `prepare`, `run`, `write`),
         `peak_memory_mb` (as in the receipt), `devices` (GPUs: `uuid`, `utilisation`, `memory_mb`,
         `power_w`, `temperature_c`, `throttle`, `energy_j` in this attempt), `process` (the worker:
         `cpu_percent` of one core, `memory_mb`)
again    the last `start` and `devices`, every 16 KB, for readers of the end alone
end      `status` (ok, failed, stopped), `message`

A file whose last `start` has no `end` is of a job that is running (it holds the journal's lock: see
`featuremill.store.lock_holder`) or was killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

EVERY_SECONDS = 1.0
WAITING_SECONDS = 10.0
"""Time between samples while the job waits for a device."""
FULL_BYTES = 512 * 1024
"""Up to this size a sample is written about once a second."""
HALVING_BYTES = 48 * 1024
"""After each further so many bytes the time between samples doubles: 9 hours of one GPU take less
than 1 MB."""
MOST_BYTES = 2 * 1024 * 1024
"""A larger file gets no more lines, as of a job that restarts every second."""
AGAIN_BYTES = 16 * 1024
"""Bytes after which the attempt's facts are written again, as some readers read only the end."""
READ_BYTES = 4 * 1024 * 1024
"""The part of the file's end that is read; no job writes more."""
TAIL_BYTES = 4 * AGAIN_BYTES
MOST_MOMENTS = 600
"""Moments that `Rates` keeps: one for each batch, at most one a second."""
TEXTS = frozenset(("event", "shard", "recipe", "host", "cost_unit", "kind", "uuid", "name")).union(
    ("slot", "stage", "status", "message")
)
LISTS = frozenset(("throttle", "of_whole_gpu"))
"""Keys with lists of texts."""
OBJECTS = frozenset(("seconds", "process", "start"))
"""Keys with objects; `devices` has a list of objects."""
log = logging.getLogger("featuremill.extract")


def seconds_between(num_bytes: int) -> float:
    """Return the time between samples in a file of that size."""
    halvings = max(0, num_bytes - FULL_BYTES) // HALVING_BYTES
    return EVERY_SECONDS * float(2 ** min(halvings, 24))


class Writer:
    """Appends lines to the file at `path`; a failure is logged and is no error."""

    def __init__(self, path: Path) -> None:
        self.num_bytes = 0
        self._path = path
        self._file: int | None = None
        self._is_torn = False
        self._facts: dict[str, Any] = {}
        self._repeated_at = 0
        with self._giving_up():
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            self.num_bytes = os.fstat(self._file).st_size
            # A killed writer's last line may lack its end.
            last = os.pread(self._file, 1, max(0, self.num_bytes - 1))
            self._is_torn = last not in (b"", b"\n")

    @contextlib.contextmanager
    def _giving_up(self) -> Any:
        try:
            yield
        except OSError as error:
            log.debug("%s: %s; no telemetry from here on", self._path, error.strerror)
            self.close()

    def write(self, event: str, **facts: Any) -> None:
        """Append one event, in one write; keys without a value are left out."""
        if event == "start":
            self._facts = {"start": facts, "devices": []}
        elif event == "device":
            self._facts["devices"] = facts["devices"]
        elif self._facts and self.num_bytes - self._repeated_at >= AGAIN_BYTES:
            self._append("again", self._facts)
            self._repeated_at = self.num_bytes
        self._append(event, facts)
        if event in ("start", "device"):
            self._repeated_at = self.num_bytes

    def _append(self, event: str, facts: dict[str, Any]) -> None:
        known = {key: value for key, value in facts.items() if value is not None}
        line = {"event": event, "time": round(time.time(), 3), **known}
        content = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        content = b"\n" + content if self._is_torn else content
        if self._file is None or self.num_bytes + len(content) > MOST_BYTES:
            return
        with self._giving_up():
            written = os.write(self._file, content)
            self._is_torn = False
            self.num_bytes += written
            if written < len(content):
                raise OSError(None, "the disk is full")

    def close(self) -> None:
        """Close the file; nothing is written any more."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)


class Attempt(NamedTuple):
    """The events of one attempt at a shard."""

    start: dict[str, Any]
    devices: list[dict[str, Any]]
    """The `device` events; several if a device failed."""
    samples: list[dict[str, Any]]
    end: dict[str, Any] | None
    """None if it is running, or was killed."""

    @property
    def energy_j(self) -> float | None:
        """The energy of its GPUs in joules; None if unknown."""
        latest = {
            device["uuid"]: device["energy_j"]
            for sample in self.samples
            for device in sample.get("devices", ())
            if {"uuid", "energy_j"} <= set(device)
        }
        return math.fsum(latest.values()) if latest else None


class State(NamedTuple):
    """The state of the last attempt."""

    start: dict[str, Any]
    devices: list[dict[str, Any]]
    """Its devices, each with uuid, name and slot; empty while it waits for one."""
    sample: dict[str, Any] | None
    end: dict[str, Any] | None
    time: float
    """Of the last line, in seconds since 1970."""


class Rates:
    """The cost per second of a worker, from the times when its computed cost grew by a batch."""

    def __init__(self) -> None:
        self._grown: deque[tuple[float, float]] = deque(maxlen=MOST_MOMENTS)

    def take(self, moment: float, cost: float) -> bool:
        """Add the computed cost at a moment; return whether it has grown."""
        if self._grown and cost < self._grown[-1][1]:  # another worker
            self._grown.clear()
        has_grown = not self._grown or cost > self._grown[-1][1]
        if has_grown:
            self._grown.append((moment, cost))
        return has_grown

    def over(self, seconds: float, now: float, least: float = 0.0) -> float | None:
        """Return the cost per second over about the last `seconds`; None before the second batch,
        or over `least` seconds or less."""
        if len(self._grown) < 2:
            return None
        first = self._grown[0]
        for moment in islice(reversed(self._grown), 1, None):
            if moment[0] <= now - seconds:
                first = moment
                break
        passed, grown = now - first[0], self._grown[-1][1] - first[1]
        return grown / passed if passed > least else None


def read(path: str | Path) -> list[Attempt]:
    """Return the attempts in the file at `path`; none if it cannot be read."""
    attempts: list[Attempt] = []
    for event in events_of(Path(path), READ_BYTES)[0]:
        kind = event.pop("event")
        if kind == "start":
            attempts.append(Attempt(event, [], [], None))
        elif not attempts:
            continue
        elif kind == "device":
            attempts[-1].devices.append(event)
        elif kind == "sample":
            attempts[-1].samples.append(event)
        elif kind == "end":
            attempts[-1] = attempts[-1]._replace(end=event)
    return attempts


def followed(state: State | None, event: dict[str, Any]) -> State | None:
    """Return the state of the last attempt after one more event; None before its first one."""
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


def events_of(path: Path, most_bytes: int, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Return the events in the file's last bytes, and the offset at which its last complete line
    ends. With that `offset`, return the events behind it; a shorter file is read from its start.

    Lines that are no events are left out.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            offset = offset if offset <= size else 0
            start = max(offset, size - most_bytes)
            file.seek(start)
            content = file.read(size - start)
    except OSError:
        return [], offset
    num_whole = content.rfind(b"\n") + 1  # the text behind the last newline is being written
    lines = content[:num_whole].split(b"\n")[1 if start > offset else 0 :]
    events = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError, OverflowError):
            event = _known(json.loads(line))
            events += [event] if {"event", "time"} <= set(event) else []
    return events, start + num_whole


def _known(value: Any) -> dict[str, Any]:
    """Return the entries of an object whose values have the type of their key."""
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
