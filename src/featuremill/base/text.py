"""Untrusted text (ids, paths, lines of files), made fit for screens, logs and tables."""

from __future__ import annotations

import re
import textwrap

from featuremill.lease.text import CONTROL as CONTROL
from featuremill.lease.text import one_line as one_line
from featuremill.lease.text import plain as plain

MAX_NAME = 100
"""Letters of a name: file systems allow 255 bytes, and other names are made from it."""


def clipped(text: str, most: int = 120) -> str:
    """Return an untrusted text (an id, a path), clipped with "…" to the width of a table."""
    text = one_line(text[: 2 * most])
    return text if len(text) <= most else text[: most - 1] + "…"


def wrapped(text: str, first: str = "", rest: str = "", *, width: int) -> list[str]:
    """Return `text` wrapped to `width` behind `first` and `rest`; commands and paths stay whole."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )


def plain_name(name: str) -> str:
    """Return `name`; raise ValueError if it may not be the name of a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError("use letters, digits, '.', '_' and '-' only, as it names a folder")
    if len(name) > MAX_NAME:
        raise ValueError(f"use at most {MAX_NAME} letters, as it names a folder")
    return name
