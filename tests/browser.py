"""A headless Chromium, asked over its debugging pipe what it drew, said and requested."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

VIEWS = {"desktop": (1100, False), "phone": (390, False), "dark": (1100, True)}
"""Widths in pixels, and whether the reader's screen is dark."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --disable-dev-shm-usage "
    "--remote-debugging-pipe"
)
PATIENCE_SECONDS = 90
FOLDS = "document.querySelectorAll('details:has([data-chart])')"


class Tab:
    """One page: what it logged, what it asked of any network, and its state."""

    def __init__(self, say, hear):
        self.console = []
        """Warnings, errors and whatever else the page said."""
        self.requests = []
        """Everything that was fetched, but for the page itself and what stands inside it."""
        self._say, self._hear = say, hear
        self._session = {}
        self._unread = b""
        self._number = 0
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": session["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        offline = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.ask("Network.emulateNetworkConditions", offline=True, **offline)

    def ask(self, method, **parameters):
        """Return the browser's answer to a command of its DevTools protocol."""
        self._number += 1
        question = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._say, json.dumps(question).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (message := self._next(deadline)).get("id") != self._number:
            self._note(message)
        assert "error" not in message, message
        return message["result"]

    def _next(self, deadline):
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._hear], [], [], deadline - time.monotonic())
            assert ready, "the browser does not answer"
            read = os.read(self._hear, 2**20)
            assert read, "the browser is gone"
            self._unread += read
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)

    def _note(self, message):
        found = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                url = found["request"]["url"]
                if not url.startswith(("file:", "data:", "blob:", "about:")):
                    self.requests.append(url)
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded":
                self.console.append(json.dumps(found))

    def value(self, expression):
        """Return what the JavaScript `expression` (or its promise) comes to."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.ask("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression):
        """Return what `expression` comes to as soon as that counts as true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (value := self.value(expression)):
            assert time.monotonic() < deadline, expression
            time.sleep(0.05)
        return value

    def open(self, path, width=1200, height=900, dark=False, scale=1):
        """Open the file `path` in a window of `width` pixels, as a phone below 500; `scale` is how
        many pixels of the screen one of them takes."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 500}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=path.as_uri())
        self.wait(f"document.readyState === 'complete' && location.href === {path.as_uri()!r}")

    def open_drawn(self, path, **window):
        """Open a page of ours; return the number of its charts once all, and a map, are drawn."""
        self.open(path, **window)
        self.wait("!document.querySelector('[data-map]:not([data-drawn])')")
        if not (num_charts := self.value("document.querySelectorAll('[data-chart]').length")):
            return 0
        self.wait("document.documentElement.dataset.drawn")
        self.value(f"{FOLDS}.forEach(fold => {{ fold.open = true; }})")  # those draw when opened
        self.wait(f"Number(document.documentElement.dataset.drawn) === {num_charts}")
        return int(num_charts)

    def screenshot(self, path):
        """Write the whole page as a PNG file."""
        picture = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def screenshot_of(self, box):
        """Return a part of the page (x, y, width, height) as a PNG file."""
        clip = {**box, "scale": 1}
        picture = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(picture["data"])


@contextlib.contextmanager
def browser(profile):
    """Yield a tab of a Chromium of its own that keeps its files in `profile`."""
    assert CHROMIUM
    hears, says = os.pipe(), os.pipe()
    # Chromium takes the descriptors 3 and 4; copied high first, neither overwrites the other.
    theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (says[0], hears[1])]
    script = f'exec 3<&{theirs[0]} 4>&{theirs[1]}; exec "$@"'
    command = [CHROMIUM, *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"]
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    words = ["bash", "-c", script, "bash", *command]
    process = subprocess.Popen(words, pass_fds=theirs, start_new_session=True, **quiet)
    for end in (*theirs, says[0], hears[1]):
        os.close(end)
    try:
        yield Tab(says[1], hears[0])
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(says[1])
        os.close(hears[0])


if __name__ == "__main__":
    page, folder = (Path(argument).resolve() for argument in sys.argv[1:])
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as tab:
        for name, (width, is_dark) in VIEWS.items():
            tab.open_drawn(page, width=width, dark=is_dark)
            tab.screenshot(folder / f"{page.stem}-{name}.png")
