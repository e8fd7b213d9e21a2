"""The rules for the scores of contigs, and the preferred class."""

from __future__ import annotations

from collections.abc import Sequence

from featuremill.kit.errors import UserError
from featuremill.kit.text import listed

RULES = {
    "max": "the highest score of each class among its fragments",
    "mean": "the mean over its fragments of each class's score",
}
"""Descriptions of the rules that compute a contig's scores."""


def index_of_preferred(
    name: str | None, classes: Sequence[str], source: str, option: str = "--prefer"
) -> int:
    """Return the index of the class `name` in `classes`, or the last index if `name` is None.
    `source` and `option` are used in the message.

    Raises:
        UserError: there is no such class.
    """
    if name is None:
        return len(classes) - 1
    if name not in classes:
        raise UserError(f"{option} {name}: {source} has {listed(classes)}; name one.")
    return classes.index(name)
