"""What CI may leave out: where the variable CI is set, a test fails that is skipped for a reason
which is not listed here. Everywhere a line says how many were skipped for what.

A tool that is not installed skips all that needs it, and a run in which a hundred tests were
skipped is as green as one in which they passed.
"""

import os
from collections import Counter
from fnmatch import fnmatch

import pytest

MAY_BE_LACKING = {
    "set FEATUREMILL_ESM2_8M": "Meta's checkpoint is a download that no other test needs",
    "chromium is not on PATH": "a browser is large, and the slow tests' alone",
    "only root can be two users": "CI may run as an ordinary user",
    "needs two users": "CI may run as an ordinary user",
    "this is no git checkout": "the code may come as an archive",
    "other users cannot read this checkout": "CI may have it below the folder of a user",
    "a Slurm cluster of one's own needs root": "CI may run as an ordinary user",
    "a cluster needs namespaces": "a container may forbid them",
    "this CPU has no": "each set of instructions is tested where it is, and no CPU has all",
    "no control groups of version 1": "newer kernels have version 2 alone",
    "neither unshare": "a container may forbid to mount a small file system",
    "this torch is a build for CUDA": "which pip takes unless told otherwise",
    "needs 40 GB of a GPU's memory": "most GPUs have less",
    "needs two GPUs": "most machines have fewer",
    "this interpreter cannot count loops": "Triton 3.6 with NumPy 2.4, which conda may have",
    "could not import 'pip'": "uv makes environments without it",
    "sae-lens cannot be had here": "its environment is a download that no other test needs",
    "could not import 'gguf'": "one slow test alone needs it, for a model of 90 MB",
    "could not import 'accelerate'": "the same",
    "could not import 'openvino'": "a peer of 180 MB, which `make bench` installs",
    "torch * comes only for CUDA here": "with gigabytes of other packages",
    "pip could not": "no index may be within reach",
}
"""Beginnings of reasons to skip a test, and why each may be so in CI."""


def may_skip(reason):
    is_listed = any(fnmatch(reason, f"{beginning}*") for beginning in MAY_BE_LACKING)
    return is_listed or not os.environ.get("CI")


def _judged(report):
    """Make a failure of a report that says `skipped` where that may not be."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = reason_of(report)
        if not may_skip(reason):
            report.outcome = "failed"
            report.longrepr = (
                f"in CI this may not be skipped: {reason}. Install what is missing (`make test` "
                "does so for Python packages), or list the reason in tests/skips.py."
            )
    return report


def reason_of(report):
    _, _, reason = report.longrepr
    return reason.removeprefix("Skipped: ")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport():
    return _judged((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report():
    return _judged((yield))


def pytest_terminal_summary(terminalreporter):
    """Say what was not tested, and why."""
    reasons = Counter(reason_of(report) for report in terminalreporter.getreports("skipped"))
    if reasons:
        told = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"not tested here: {told}")
