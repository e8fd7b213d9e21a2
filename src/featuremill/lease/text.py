"""Untrusted text (ids, paths, commands), made fit for a screen or a log."""

from __future__ import annotations

import re

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Line ends, tabs, escape sequences: what moves a cursor or begins a new row."""


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
    return CONTROL.sub(lambda match: _written_out(match.group()), text)
