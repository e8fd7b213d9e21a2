"""verdict: say of each contig what it is, by the scores of its fragments.

Reads the folder of `featuremill translate` and the predictions of `featuremill head predict`, and
joins them by the fragments' ids; writes a table with a row for each contig that was read, and a
page.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from featuremill.kit.errors import UserError
from featuremill.kit.text import listed

RULES = {
    "max": "the highest score of each class among its fragments",
    "mean": "the mean over its fragments of each class's score",
}
"""How a contig's scores come about, in words."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `featuremill verdict`."""
    add = parser.add_argument
    add("translated", type=Path, metavar="FOLDER", help="what featuremill translate wrote")
    add(
        "predictions",
        type=Path,
        metavar="PREDICTIONS",
        help="what featuremill head predict wrote, .tsv or .parquet",
    )
    add(
        "--output",
        type=Path,
        required=True,
        metavar="FILE.tsv",
        help="the verdicts; FILE.html beside them draws them",
    )
    add(
        "--by",
        choices=RULES,
        default="max",
        help="what of its fragments' scores is a contig's: the highest of each class (default), or "
        "the mean",
    )
    add(
        "--prefer",
        metavar="CLASS",
        help="the class that a contig is of where two score the same (default: the last one)",
    )
    add(
        "--head",
        type=Path,
        metavar="HEAD",
        help="the head that predicted, so that the page shows how good it is",
    )
    add(
        "--runs",
        nargs="+",
        type=Path,
        default=[],
        metavar="results/RUN",
        help="the runs that the predictions are of, so that the page shows them, too",
    )


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


def run(arguments: argparse.Namespace) -> None:
    """Carry out `featuremill verdict`."""
    from featuremill.steps.verdicts.write import write

    given = arguments
    write(
        given.translated,
        given.predictions,
        given.output,
        given.by,
        given.prefer,
        given.runs,
        given.head,
    )
