"""Untrusted text (ids, paths, lines of files), made fit for screens, logs and tables."""

from __future__ import annotations

import re
import textwrap

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Line ends, tabs, escape sequences: what moves a cursor or begins a new row."""
MAX_NAME = 100
"""Letters of a name: file systems allow 255 bytes, and other names are made from it."""


def plain(text: str) -> str:
    """Return `text` with everything written out that would act on a terminal or a page.

    Ids, paths and files are untrusted: an escape sequence among them must not recolour a
    screen, hide a line of a log or turn the order of letters around. Line ends stay.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else _written_out(letter)
        for letter in text
    )


def _written_out(letter: str) -> str:
    number = ord(letter)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def one_line(text: str) -> str:
    """Return `text` with its control characters written out: it fits a cell of a table."""
    return CONTROL.sub(lambda found: _written_out(found.group()), text)


def clipped(text: str, most: int = 120) -> str:
    """Return an untrusted `text` (an id, a path) short enough for a table, and "…" where something
    was cut."""
    text = one_line(text[: 2 * most])
    return text if len(text) <= most else text[: most - 1] + "…"


def wrapped(text: str, first: str = "", rest: str = "", *, width: int) -> list[str]:
    """Return `text` as lines of `width` letters, opened by `first` and then by `rest`; commands and
    paths stay whole, to be copied."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )


def plain_name(name: str) -> str:
    """Refuse names that are none of a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError("use letters, digits, '.', '_' and '-' only, as it names a folder")
    if len(name) > MAX_NAME:
        raise ValueError(f"use at most {MAX_NAME} letters, as it names a folder")
    return name
