"""The project's tests that need a GPU, as a step of a run; by itself it prints their files.

This module is also the plug-in that notes each test's beginning and end in a file: a run that is
killed keeps what it has seen. It imports only what pytest has imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import needs

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parent.parent
FILE = "BENCH_TESTS_SEEN"
"""The variable that names the file."""
MARK = re.compile(r"^\s*@?.*\bpytest\.mark\.gpu\b", re.MULTILINE)
REHEARSED = (["tests/test_kernels.py"], "not gpu and not slow", "twins or rows")
"""Files, marks and names of the tests that a rehearsal runs instead."""
HUNG = "forks_on_a_real_gpu"
"""Of the test that hung on an H200: it runs alone, so that it holds no other one up."""
ALONE = (["tests/test_troubleshooting.py"], "gpu", HUNG)
ALONE_REHEARSED = (["tests/test_troubleshooting.py"], "not gpu and not slow", "plug_in_that_forks")
MORE_NEEDS = {
    "tests/test_llm_json.py": ("hypothesis", "jinja2", "llguidance", "pandas", "snakemake"),
    "tests/test_on_a_gpu.py": ("anndata", "h5py", "llguidance", "pandas", "scipy", "snakemake"),
    "tests/test_spread.py": ("anndata", "h5py", "llguidance", "pandas", "scipy", "snakemake"),
    "tests/test_pac.py": ("mne", "pandas", "scipy", "snakemake"),
}
"""Modules that are not brought (bench/needs.py) and that a file of tests needs besides: where one
of them is not here, the file is left out."""
AT_ONCE = 16
"""Processes, at most: each has a context of its own on the GPU."""
EACH_SECONDS = 100
"""What a test may take: all are done in less, side by side on 16 cores."""
SAYS, TRACE = 300, 3_000
"""Letters of a test's end that are kept."""


def pytest_configure(config: pytest.Config) -> None:
    """Of processes side by side, the first one hears what the others do; only it writes."""
    if hasattr(config, "workerinput"):
        os.environ[FILE] = os.devnull


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note that a test begins, and when: who is killed tells what was not done."""
    began = round(time.monotonic() - STARTED, 1)
    _note({"test": nodeid, "outcome": BEGUN, "began_seconds": began})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how a test ended, or that it was skipped."""
    if report.when != "call" and report.outcome == "passed":
        return
    seen: dict[str, Any] = {"test": report.nodeid, "outcome": report.outcome}
    seen |= {"says": "" if report.passed else _last_line(report)}
    seen |= {"seconds": round(report.duration, 1), **dict(report.user_properties)}
    if report.failed:
        seen["trace"] = str(report.longrepr)[-TRACE:]
    _note(seen)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file of tests that cannot be read."""
    if report.failed:
        _note({"test": report.nodeid, "outcome": "failed", "says": _last_line(report)})


def _note(seen: dict[str, Any]) -> None:
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(seen, default=str) + "\n")


STARTED = time.monotonic()
BEGUN = "not ended"
"""The outcome of a test of which no end was seen."""


def _last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr).strip().rpartition("\n")[2]
    return " ".join(str(text).split())[:SAYS]


def files(is_here: bool | None = None) -> list[str]:
    """Return the files with tests for a GPU that can be read here; `is_here` says of all packages
    that are not brought whether they are here."""
    marked = (
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").glob("test_*.py")
        if MARK.search(path.read_text("utf-8")) and path.stem not in ABOUT_MARKS
    )
    return sorted(file for file in marked if _can_be_read(file, is_here))


def _can_be_read(file: str, is_here: bool | None) -> bool:
    modules = MORE_NEEDS.get(file, ())
    if is_here is None:
        return not needs.lacking(dict.fromkeys(modules, ""))
    return is_here or not modules


ABOUT_MARKS = ("test_house",)
"""Files that speak of the mark and have no such test."""


def run(
    place: str, folder: Path, seconds: float, is_alone: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield how many have passed so far, what failed or was skipped, and the seconds of each; last,
    of all. With `is_alone`, of the test that hung, with the stacks that its jobs left."""
    from bench import processes  # not for pytest

    names, marks, keyword = files(), "gpu", f"not {HUNG}"
    if is_alone:
        names, marks, keyword = ALONE_REHEARSED if place == "rehearsal" else ALONE
    elif place == "rehearsal":
        names, marks, keyword = REHEARSED
    seen, log, base = folder / "tests.jsonl", folder / "tests.log", folder / "tests"
    for path in (seen, log):
        path.unlink(missing_ok=True)
    # Plug-ins that happen to be installed here know nothing of these tests; a warning of the torch
    # that is here is no reason to learn nothing from them.
    words = [sys.executable, "-m", "pytest", "--rootdir", str(ROOT), "-q", "-W", "default"]
    words += ["-m", marks, "-k", keyword, "-o", "addopts=--strict-markers"]
    words += ["-o", f"timeout={EACH_SECONDS}", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    words += ["-p", "xdist.plugin", "-n", "logical", "--maxprocesses", str(AT_ONCE)]
    words += [
        "--basetemp",
        str(base),
        "--dist",
        "worksteal",
        "-p",
        "bench.gpu_tests",
        *(str(ROOT / name) for name in names),
    ]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", FILE: str(seen), "PYTHONPATH": paths}
    status: int | None = None
    error = ""
    try:
        for ended in processes.watched(words, seconds, log, environment):
            status = ended
            yield _summary(seen)
    except processes.ChildError as late:
        error = str(late)
    found = _summary(seen) | ({"stacks": ends_of_logs(base)} if is_alone else {})
    if status not in (None, 0, 1) or not (found["rows"] or found["passed"]):
        error = error or f"pytest ended with {status}{processes.last_words(log)}"
    elif found["failed"]:
        error = error or f"{found['failed']} of {sum(found[kind] for kind in ENDS)} failed"
    yield found | ({"error": error} if error else {})


def ends_of_logs(folder: Path) -> list[str]:
    """Return the ends of all logs of jobs: of one that hung, with the stack of its worker."""
    logs = (path.read_text("utf-8", "replace") for path in sorted(folder.rglob("*.log")))
    return [text[-TRACE:] for text in logs]


ENDS = ("passed", "failed", "skipped")


def _summary(seen: Path) -> dict[str, Any]:
    found = list({each["test"]: each for each in _read(seen)}.values())
    counts = Counter(each["outcome"] for each in found)
    slowest = sorted(found, key=lambda each: -each.get("seconds", 0))
    return {
        **{kind: counts[kind] for kind in ENDS},
        "rows": [each for each in found if each["outcome"] != "passed"],
        "costs": {each["test"]: each.get("seconds", 0) for each in slowest},
        "told": [each for each in found if each.keys() - KEYS],
    }


KEYS = {"test", "outcome", "began_seconds", "says", "seconds", "trace"}
"""What is noted of each test; other things a test tells itself (`record_property`)."""


def _read(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):  # the last one, cut off
            found.append(json.loads(line))
    return found


if __name__ == "__main__":
    print(*files())
