"""run.log: one line for each finished shard, plan and merge, for people and grep. Each line is
appended in one write. No code reads the file, and failing to write it is no error."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from featuremill.base.text import one_line, plain
from featuremill.lease.gpu_name import device

NAME = "run.log"
MOST_LETTERS = 500
"""The length of an error in the log of runs, in characters, at most."""
STAGES = ("wait", "load", "prepare", "run", "write")
log = logging.getLogger("featuremill")


ENTRY = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  [a-z]+ ")
"""The beginning of a line."""


class Line:
    def __init__(self) -> None:
        self.outcome = "done"
        self.text = ""


@contextlib.contextmanager
def line(root: Path, verb: str, shard: str = "") -> Iterator[Line]:
    """Append a line to the log of the run in `root` when the block ends or fails."""
    begun, entry = time.monotonic(), Line()
    try:
        yield entry
    except Exception as error:
        entry.outcome = "failed"
        entry.text = "  ".join(filter(None, (entry.text, _cut(str(error) or type(error).__name__))))
        raise
    except BaseException:
        entry.outcome = "stopped"
        raise
    finally:
        _append(root, verb, shard, entry, time.monotonic() - begun)


def of_shard(facts: Mapping[str, Any], reasons: Mapping[str, int]) -> str:
    """Return the text of a shard's line. `facts` are entries of a receipt; `reasons` counts failed
    records by kind."""
    seconds = facts.get("seconds", {})
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(reasons.items()))
    warned = [f"warned: {_cut(text)}" for text in facts.get("warnings", ())]
    cells = [
        f"{_number(facts, 'ok')} ok",
        f"{_number(facts, 'failed', 5)} failed",
        f"{_number(facts, 'peak_memory_mb') if facts.get('peak_memory_mb') else '?':>7} MB",
        f"{_number(facts, 'batches', 5)} batches",
        f"{_number(facts, 'resumed_batches', 5)} resumed",
        f"{_number(facts, 'retries', 2)} crashes",
        f"{_number(facts, 'oom_splits', 3)} oom splits",
        " ".join(f"{stage} {seconds.get(stage, 0.0):.1f}" for stage in STAGES) + " s",
        f"{_devices(facts.get('devices', []))} on {facts.get('host', '?')}",
    ]
    return "  ".join([*cells, *([f"failed for: {kinds}"] if kinds else []), *warned])


def _devices(devices: list[dict[str, Any]]) -> str:
    named = [device(gpu["kind"], gpu["uuid"], gpu["name"], gpu.get("number")) for gpu in devices]
    return " + ".join(named) or "no device"


def _number(facts: Mapping[str, Any], key: str, width: int = 7) -> str:
    return f"{facts.get(key, 0):>{width},}"


def _append(root: Path, verb: str, shard: str, entry: Line, seconds: float) -> None:
    now = datetime.datetime.now(datetime.UTC)
    text = one_line(plain(entry.text))
    start = f"{now:%Y-%m-%dT%H:%M:%SZ}  {verb:7}  {shard[:8]:8}  {entry.outcome:7}"
    content = f"{start}  {seconds:>9,.1f} s  {text}".rstrip(" ").encode() + b"\n"
    try:
        file = os.open(root / NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, content)
        finally:
            os.close(file)
    except OSError as error:
        log.debug("%s: %s; a line is missing there", root / NAME, error.strerror)


def _cut(text: str) -> str:
    letters = " ".join(text.split())
    return letters if len(letters) <= MOST_LETTERS else f"{letters[:MOST_LETTERS]}…"
