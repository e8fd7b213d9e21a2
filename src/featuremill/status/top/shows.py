"""The ways to show a run: a screen, lines, JSON, or nothing but what went wrong."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.live import Live

from featuremill.base.text import plain
from featuremill.status.top import lines
from featuremill.status.top.picture import picture
from featuremill.status.top.scene import Scene

SCREEN_SECONDS, LINE_SECONDS = 1.0, 10.0


@contextlib.contextmanager
def show_for(arguments: argparse.Namespace) -> Iterator[Screen | Lines | Json]:
    """Yield the show that the arguments ask for, here."""
    every: float | None = arguments.every
    if arguments.json:
        yield Json(every or LINE_SECONDS, arguments.once)
    elif arguments.quiet:
        yield Lines(every or LINE_SECONDS, is_quiet=True)
    elif sys.stdout.isatty() and not arguments.once:
        with Screen(every or SCREEN_SECONDS) as screen:
            yield screen
    else:
        yield Lines(every or LINE_SECONDS)


class Screen:
    """The whole terminal, given back as it was, with how it ended below."""

    def __init__(self, every_seconds: float) -> None:
        self.every_seconds = every_seconds
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._last: Scene | None = None

    def __enter__(self) -> Screen:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)
        if self._last:  # interrupted, or failed
            self._console.print(lines.totals_line(self._last), markup=False)

    def look(self, scene: Scene) -> None:
        """Draw the screen anew."""
        self._last = scene
        self._live.update(picture(scene, self._console.width, is_live=True), refresh=True)

    def end(self, scene: Scene) -> None:
        """Leave the last picture behind."""
        self._last = None
        self._live.stop()
        self._console.print(picture(scene, self._console.width))


class Lines:
    """Dated lines, and at the end the whole picture."""

    def __init__(self, every_seconds: float, is_quiet: bool = False) -> None:
        self.every_seconds = every_seconds
        self._is_quiet = is_quiet
        self._said: set[str] = set()

    def look(self, scene: Scene) -> None:
        """Write how far the run is, and what failed since the last line."""
        if scene.trouble:
            self._write(scene, plain(scene.trouble))
        elif not self._is_quiet:
            self._write(scene, lines.totals_line(scene))
        for line in lines.troubles(scene):
            if line not in self._said:
                self._said.add(line)
                self._write(scene, line)

    def end(self, scene: Scene) -> None:
        """Write the picture; when nobody wants to hear of what is well, only the failures."""
        if not self._is_quiet:
            self._draw(scene)
            return
        self.look(scene)

    def _draw(self, scene: Scene) -> None:
        console = Console(highlight=False)
        shown = picture(scene, console.width)
        if console.is_terminal:
            console.print(shown)
            return
        with console.capture() as captured:
            console.print(shown)
        for line in captured.get().splitlines():  # tables fill their width with blanks
            sys.stdout.write(f"{line.rstrip()}\n")

    def _write(self, scene: Scene, line: str) -> None:
        sys.stdout.write(f"{time.strftime('%H:%M:%S', time.localtime(scene.time))}  {line}\n")
        sys.stdout.flush()


class Json:
    """One object a look, each on a line; for one look only, over many lines."""

    def __init__(self, every_seconds: float, is_one: bool) -> None:
        self.every_seconds = every_seconds
        self._indent = 2 if is_one else None

    def look(self, scene: Scene) -> None:
        """Write the object."""
        text = json.dumps(scene.as_json(), indent=self._indent, ensure_ascii=False)
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    end = look
