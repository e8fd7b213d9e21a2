"""The labels that colour the map of a report, as its page lists them."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

from featuremill.store.files import sha256_of

MARK = re.compile(r'<meta name="featuremill-labels" content="([^"]*)">')
MOST_READ = 4_096
"""Bytes of a page in which it stands."""


def mark_of(file: Path | None, column: str) -> str:
    """Return the content of the mark in a page that is coloured by a `column`, of this table or, if
    there is none, of the sheet of samples."""
    told = {"file": str(file or ""), "column": column}
    is_there = file is not None and file.is_file()
    return json.dumps(told | ({"sha256": sha256_of(file)} if file and is_there else {}))


def labels_of(report: Path) -> dict[str, str] | None:
    """Return what a page is coloured by: `file` and its `sha256`, and `column`. None where there is
    no page, or an early one that does not list it."""
    try:
        with report.open("rb") as page:
            found = MARK.search(page.read(MOST_READ).decode("utf-8", "replace"))
        told = json.loads(html.unescape(found[1])) if found else None
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None
