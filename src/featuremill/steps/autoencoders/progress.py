"""Show the progress of a training from training.jsonl."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from featuremill.kit.errors import UserError
from featuremill.kit.locks import try_lock
from featuremill.kit.text import clock

TRAINING, CARD, LOCK = "training.jsonl", "sae.json", ".lock"
"""Files of a training: the log, the card that is written last, and the lock."""
NOT_DONE = 1
"""The exit status before the training is done."""


def watch(folder: Path, is_once: bool, is_json: bool, every: float) -> int:
    """Print each new line until the training is done, or one line; return 0 if done, else 1."""
    if not ((folder / TRAINING).is_file() or (folder / CARD).is_file()):
        raise UserError(f"{folder}: there is no training here; name an autoencoder's folder.")
    last = None
    while True:
        is_done = (folder / CARD).exists()
        row = _last(folder / TRAINING)
        if row != last or is_once or is_done:
            last = row
            text = json.dumps(row) if is_json else line_of(row, is_done)
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
        if is_done or is_once:
            return 0 if is_done else NOT_DONE
        with (folder / LOCK).open("a") as file:
            is_at_work = try_lock(file, folder / LOCK) is False
        if not is_at_work:
            sys.stdout.write("no process trains there now; the same command continues\n")
            return NOT_DONE
        time.sleep(every)


def latest(folder: Path) -> str:
    """Return the progress of a training; "" before its first steps."""
    row = _last(folder / TRAINING)
    return line_of(row) if row else ""


def line_of(row: dict[str, Any] | None, is_done: bool = False) -> str:
    """Format a line of training.jsonl."""
    if row is None:
        return "no step yet"
    parts = [
        f"step {row['step']:,} of {row['steps']:,}",
        f"loss {row['loss']:.4g}",
        f"FVU {row['fvu']:.4f}",
        f"{row['dead']:.1%} dead".replace("%", " %"),
        "done" if is_done else f"{clock(row['seconds_left'])} left",
    ]
    return " · ".join(parts)


def _last(path: Path) -> dict[str, Any] | None:
    """Return the last complete line, or None."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
        return dict(json.loads(lines[-1])) if lines else None
    except FileNotFoundError:
        return None
    except ValueError:
        raise UserError(f"{path}: its last line is not what a training wrote; delete it.") from None
