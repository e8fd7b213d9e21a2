"""Escape control characters in untrusted text (ids, paths, commands) for screens and logs."""

from __future__ import annotations

import re

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Line ends, tabs and escape characters."""


def plain(text: str) -> str:
    """Return `text` with escaped control characters, except line ends.

    Ids, paths and files are untrusted: an escape sequence in them must not colour a screen, hide a
    line of a log or reverse the order of letters.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else _escaped(letter) for letter in text
    )


def _escaped(letter: str) -> str:
    number = ord(letter)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def one_line(text: str) -> str:
    """Return `text` with escaped control characters, including line ends, for a cell of a table."""
    return CONTROL.sub(lambda match: _escaped(match.group()), text)
