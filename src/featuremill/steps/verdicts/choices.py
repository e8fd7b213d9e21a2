"""How a contig's scores and class are chosen."""

from __future__ import annotations

from collections.abc import Sequence

from featuremill.kit.errors import UserError
from featuremill.kit.text import listed

RULES = {
    "max": "the highest score of each class among its fragments",
    "mean": "the mean over its fragments of each class's score",
}
"""How a contig's scores come about, in words."""


def place_of_preferred(
    name: str | None, classes: Sequence[str], source: str, option: str = "--prefer"
) -> int:
    """Return the place of the class `name` among those that `source` has; of the last without one.
    `option` is what the user calls it.

    Raises:
        UserError: when none has this name.
    """
    if name is None:
        return len(classes) - 1
    if name not in classes:
        raise UserError(f"{option} {name}: {source} has {listed(classes)}; name one.")
    return classes.index(name)
