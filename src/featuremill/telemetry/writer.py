"""The file of samples: appended line by line, thinned as it grows, left at the first trouble."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

EVERY_SECONDS = 1.0
WAITING_SECONDS = 10.0
"""Between samples that say no more than that the job waits for a device."""
FULL_BYTES = 512 * 1024
"""Up to this size a sample is written about once a second."""
HALVING_BYTES = 48 * 1024
"""Every so many bytes beyond, half as often: 9 hours of one GPU make a file of less than 1 MB."""
MOST_BYTES = 2 * 1024 * 1024
"""Nothing more is written then; a job that starts anew every second would get there."""
AGAIN_BYTES = 16 * 1024
"""After so many bytes the attempt's facts stand there once more, for who reads only the end."""
log = logging.getLogger("featuremill.extract")


def seconds_between(num_bytes: int) -> float:
    """Return how far samples stand apart in a file of that size."""
    halvings = max(0, num_bytes - FULL_BYTES) // HALVING_BYTES
    return EVERY_SECONDS * float(2 ** min(halvings, 24))


class Writer:
    """Appends lines to the file at `path`. No work ends because that does not succeed."""

    def __init__(self, path: Path) -> None:
        self.num_bytes = 0
        self._path = path
        self._file: int | None = None
        self._is_torn = False
        self._facts: dict[str, Any] = {}
        self._told_at = 0
        with self._giving_up():
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            self.num_bytes = os.fstat(self._file).st_size
            # A killed writer's last line may lack its end.
            self._is_torn = (
                self.num_bytes > 0 and os.pread(self._file, 1, self.num_bytes - 1) != b"\n"
            )

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
        else:
            self._say_again()
            self._append(event, facts)
            return
        self._append(event, facts)
        self._told_at = self.num_bytes

    def _say_again(self) -> None:
        if self._facts and self.num_bytes - self._told_at >= AGAIN_BYTES:
            self._append("again", self._facts)
            self._told_at = self.num_bytes

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
