"""What the verbs' own logs say of a plan or a report that failed."""

from __future__ import annotations

from pathlib import Path

from featuremill.log import last_error
from featuremill.status.problems import Mend, Problem


def check_log(root: Path, verb: str, is_in_the_way: bool = True) -> list[Problem]:
    """Return what `verb` ended with the last time, if that was an error.

    Nothing where it was not Snakemake's: logs are in logs/<run>/ beside results/<run>/ (`root`).
    """
    log = root.parent.parent / "logs" / root.name / f"{verb}.log"
    error = last_error(log) if root.parent.name == "results" else ""
    if not error:
        return []
    mend = Mend(by_hand=f"Mend that, and run the same command again. The log: {_shown(log)}")
    return [Problem(f"{verb}_failed", f"the last {verb} failed: {error}", mend, is_in_the_way)]


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
