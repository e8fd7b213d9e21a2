"""What the verbs' own logs say of weights, a plan or a report that failed."""

from __future__ import annotations

from pathlib import Path

from featuremill.base.log import last_error
from featuremill.status.problems import Mend, Problem

WHAT = {"weights": "making the weights"}
"""What failed, where the verb alone does not say it."""


def check_log(
    root: Path, verb: str, is_in_the_way: bool = True, log: Path | None = None
) -> list[Problem]:
    """Return what `verb` ended with the last time, if that was an error.

    Nothing where it was not Snakemake's: logs are in logs/<run>/ beside results/<run>/ (`root`),
    if `log` is not given.
    """
    log = log or root.parent.parent / "logs" / root.name / f"{verb}.log"
    error = last_error(log) if root.parent.name == "results" else ""
    if not error:
        return []
    mend = Mend(by_hand=f"Mend that, and run the same command again. The log: {_shown(log)}")
    what = WHAT.get(verb, f"the last {verb}")
    return [Problem(f"{verb}_failed", f"{what} failed: {error}", mend, is_in_the_way)]


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
