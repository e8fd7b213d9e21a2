"""The page of `top --html`: a curve for each device, written again while the runs continue."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from featuremill.base.errors import UserError
from featuremill.base.text import one_line, plain
from featuremill.status.jobs import DeviceNow, devices_of
from featuremill.status.project import ProjectState
from featuremill.status.screen import label
from featuremill.status.view import totals_lines
from featuremill.store.files import Identity, identity_of, replacing
from featuremill.store.results import Results
from featuremill.store.telemetry import READ_BYTES, State, events_of, followed

EVERY_SECONDS = 5.0
"""Seconds between two versions of the page."""
MOST_POINTS = 500
"""Largest number of points of a curve; beyond it, each point covers twice the time."""
MOST_FILES = 400
"""Telemetry files read for one version, the newest first: a long run has thousands."""
TEMPLATE = Path(__file__).with_name("curves.html")
MARK = "<!-- featuremill top -->"
DATA = '<script type="application/json" id="data">{}</script>'
Key = tuple[str, str]
"""The name of a host and the UUID of a device."""


class Stretch(NamedTuple):
    """The measurements of one device in a stretch of time; None is unknown."""

    use: float | None
    memory_mb: float | None
    celsius: float | None
    samples: int = 1


class Page:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._curves = Curves()
        self._written: Identity = None
        """The identity of the file as this process wrote it."""
        self._due = 0.0
        self._refuse_others()

    def show(self, now: ProjectState, is_last: bool = False) -> None:
        """Write the page again, if it is due.

        Raises:
            UserError: if the file is not a page of top, or was changed meanwhile.
        """
        if not is_last and time.monotonic() < self._due:
            return
        self._due = time.monotonic() + EVERY_SECONDS
        for run in now.states.values():
            if run.plan:
                folder = Results(run.folder).telemetry(run.plan.recipe, "").parent
                self._curves.read(folder.glob("*.telemetry.jsonl"))
        self._refuse_others()
        with replacing(self._path, is_synced=False) as temporary:
            temporary.write_text(self._page(now, is_last), "utf-8")
        self._written = identity_of(self._path)

    def _page(self, now: ProjectState, is_last: bool) -> str:
        shown = {
            "title": one_line(plain(str(now.runs.path))),
            "lead": "; ".join(totals_lines(now)),
            "at": now.time,
            "refresh": None if is_last else EVERY_SECONDS,
            **self._curves.as_json(),
        }
        text = json.dumps(shown, ensure_ascii=False).replace("<", "\\u003c")
        return TEMPLATE.read_text("utf-8").replace(DATA, DATA.replace("{}", text))

    def _refuse_others(self) -> None:
        if not self._path.exists():
            return
        is_ours = self._path.is_file()
        if is_ours:
            with self._path.open(encoding="latin-1") as file:
                is_ours = MARK in file.read(200)
        if not is_ours or self._written not in (None, identity_of(self._path)):
            how = "it was changed meanwhile" if is_ours else "this is not a page of featuremill top"
            raise UserError(f"{self._path}: {how}; name another file after --html.")


class Curves:
    """The telemetry of each device, averaged over stretches of time of equal length."""

    def __init__(self) -> None:
        self._every = 1.0
        self._stretches: dict[Key, dict[int, Stretch]] = {}
        self._devices: dict[Key, DeviceNow] = {}
        self._read: dict[Path, tuple[int, State | None]] = {}

    def read(self, paths: Iterable[Path]) -> None:
        """Read what was appended to these telemetry files."""
        marks = {path: path.stat() for path in paths if path.exists()}
        grown = [path for path in marks if self._read.get(path, (-1,))[0] != marks[path].st_size]
        newest = sorted(grown, key=lambda path: marks[path].st_mtime)[-MOST_FILES:]
        for path in newest:
            before, state = self._read.get(path, (0, None))
            events, offset = events_of(path, READ_BYTES, before)
            for event in events:
                state = followed(state, event)
                if state and state.sample and event["event"] == "sample":
                    self._take(state, state.sample)
            self._read[path] = offset, state
        while any(len(curve) > MOST_POINTS for curve in self._stretches.values()):
            self._every *= 2
            for key, curve in self._stretches.items():
                self._stretches[key] = {}
                for at, stretch in curve.items():
                    self._add(key, at // 2, stretch)

    def _take(self, state: State, sample: dict[str, Any]) -> None:
        process = sample.get("process", {})
        for device in devices_of(state.devices, sample) if sample.get("stage") != "wait" else ():
            stretch = Stretch(device.utilisation, device.memory_mb, device.temperature_c)
            if device.kind == "cpu":
                stretch = Stretch(process.get("cpu_percent"), process.get("memory_mb"), None)
            key = str(state.start.get("host", "")), device.uuid
            self._devices[key] = replace(device, slot="")
            self._add(key, int(sample["time"] // self._every), stretch)

    def _add(self, key: Key, at: int, stretch: Stretch) -> None:
        curve = self._stretches.setdefault(key, {})
        both = [curve[at], stretch] if at in curve else [stretch]
        weighted = [(each.use, each.samples) for each in both if each.use is not None]
        number = sum(samples for _, samples in weighted)
        curve[at] = Stretch(
            sum(use * samples for use, samples in weighted) / number if number else None,
            _most(each.memory_mb for each in both),
            _most(each.celsius for each in both),
            max(number, 1),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the curve of each device, and before them that of all, if there are several."""
        hosts = {host for host, _ in self._devices}
        order = sorted(self._devices, key=lambda key: (key[0], self._devices[key].number or 0, key))
        shown = []
        for key in order:
            device = self._devices[key]
            name = label(device) + (f" on {one_line(plain(key[0]))}" if len(hosts) > 1 else "")
            curve = sorted(self._stretches[key].items())
            points = ([at * self._every, *stretch[:3]] for at, stretch in curve)
            shown.append(_shown(" ".join(key), name, points, device.total_mb))
        if len(shown) > 1:
            total_mb = [device.total_mb or 0.0 for device in self._devices.values()]
            name = f"all {len(shown)}: mean utilisation, memory of all, highest temperature"
            shown.insert(0, _shown("all", name, self._points_of_all(), sum(total_mb)))
        moments = [at for curve in self._stretches.values() for at in curve]
        span = {"begin": min(moments, default=0), "end": max(moments, default=0)}
        times = {name: at * self._every for name, at in span.items()}
        return {**times, "every": self._every, "devices": shown}

    def _points_of_all(self) -> Iterator[list[float | None]]:
        """Yield time, utilisation, memory and temperature of all devices together."""
        for at in sorted({at for curve in self._stretches.values() for at in curve}):
            every = [curve[at] for curve in self._stretches.values() if at in curve]
            uses = [each.use for each in every if each.use is not None]
            memory_mb = [each.memory_mb for each in every if each.memory_mb is not None]
            use = sum(uses) / len(uses) if uses else None
            whole_mb = sum(memory_mb) if memory_mb else None
            yield [at * self._every, use, whole_mb, _most(each.celsius for each in every)]


def _shown(
    key: str, name: str, points: Iterable[list[float | None]], total_mb: float | None
) -> dict[str, Any]:
    """Return a curve as the JSON of the page, with memory in GB."""
    shown = []
    for at, use, memory_mb, celsius in points:
        values = (use, memory_mb if memory_mb is None else memory_mb / 1024, celsius)
        shown.append([at, *(value if value is None else round(value, 1) for value in values)])
    most = [100, round(total_mb / 1024, 1) if total_mb else None, None]
    return {"key": key, "name": name, "most": most, "points": shown}


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
