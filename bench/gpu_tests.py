"""The project's tests that need a GPU, as a step of a run; by itself it prints their files.

This module is also the plug-in that notes each test's end in a file: a run that is killed keeps
what it has seen. It imports only what pytest has imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parent.parent
FILE = "BENCH_TESTS_SEEN"
"""The variable that names the file."""
MARK = "@pytest.mark.gpu"
REHEARSED = (["tests/test_kernels.py"], "not gpu and not slow", "twins or rows")
"""Files, marks and names of the tests that a rehearsal runs instead."""
NOT_HERE = ("tests/test_llm_json.py", "tests/test_pac.py")
"""They need packages that are not brought; where there is a network, `make test-gpu` runs them."""
SAYS = 300


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how a test ended, or that it was skipped."""
    if report.when != "call" and report.outcome == "passed":
        return
    says = "" if report.passed else _last_line(report)
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        seen = {"test": report.nodeid, "outcome": report.outcome, "says": says}
        file.write(json.dumps(seen) + "\n")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file of tests that cannot be read."""
    if report.failed:
        with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
            seen = {"test": report.nodeid, "outcome": "failed", "says": _last_line(report)}
            file.write(json.dumps(seen) + "\n")


def _last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr).strip().rpartition("\n")[2]
    return " ".join(str(text).split())[:SAYS]


def files() -> list[str]:
    """Return the files with tests for a GPU that can be read here."""
    marked = (
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").glob("test_*.py")
        if f"\n{MARK}\n" in path.read_text("utf-8")
    )
    return sorted(file for file in marked if file not in NOT_HERE)


def run(place: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Return how many passed, and what failed or was skipped."""
    from bench import processes  # not for pytest

    names, marks, keyword = files(), "gpu", ""
    if place == "rehearsal":
        names, marks, keyword = REHEARSED
    seen, log = folder / "tests.jsonl", folder / "tests.log"
    for path in (seen, log):
        path.unlink(missing_ok=True)
    # Plug-ins that happen to be installed here know nothing of these tests; a warning of the torch
    # that is here is no reason to learn nothing from them.
    options = ("-q", "-m", marks, "-k", keyword, "-W", "default", "-o", "addopts=--strict-markers")
    plugins = ("-p", "pytest_timeout", "-p", "bench.gpu_tests", "-p", "no:cacheprovider")
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", FILE: str(seen), "PYTHONPATH": paths}
    words = [sys.executable, "-m", "pytest", "--rootdir", str(ROOT), *options, *plugins]
    status: int | None = None
    error = ""
    try:
        status = processes.run([*words, *(str(ROOT / n) for n in names)], seconds, log, environment)
    except processes.ChildError as late:
        error = str(late)
    found = _read(seen)
    counts = Counter(each["outcome"] for each in found)
    rows = [each for each in found if each["outcome"] != "passed"]
    if status not in (None, 0, 1) or not found:
        error = error or f"pytest ended with {status}{processes.last_words(log)}"
    elif counts["failed"]:
        error = error or f"{counts['failed']} of {counts.total()} failed"
    told = {"error": error} if error else {}
    return {**{kind: counts[kind] for kind in ("passed", "failed", "skipped")}, "rows": rows} | told


def _read(path: Path) -> list[dict[str, str]]:
    found = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):  # the last one, cut off
            found.append(json.loads(line))
    return found


if __name__ == "__main__":
    print(*files())
