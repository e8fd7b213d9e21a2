"""In CI a skip is a failure, unless its reason is listed: real runs of pytest over a small file."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
    import pytest

    @pytest.fixture
    def compiler():
        pytest.skip("needs a C compiler")

    def test_that_passes(): pass
    def test_that_calls(): pytest.skip("nobody lists this")
    def test_of_a_fixture(compiler): pass
    @pytest.mark.skipif(True, reason="a mark of ours")
    def test_that_is_marked(): pass
    def test_that_imports(): pytest.importorskip("nonesuch")
    @pytest.mark.skipif(True, reason="chromium is not on PATH")
    def test_in_a_browser(): pass
    def test_as_two_users(): pytest.skip("only root can be two users")
    @pytest.mark.xfail(reason="known")
    def test_that_is_known_to_fail(): assert False
"""
UNLISTED = {
    "test_that_calls": "nobody lists this",
    "test_of_a_fixture": "needs a C compiler",
    "test_that_is_marked": "a mark of ours",
    "test_that_imports": "could not import 'nonesuch': No module named 'nonesuch'",
}
MODULE = "import pytest\npytest.importorskip('nonesuch')\ndef test_it(): pass\n"


@pytest.fixture
def run(tmp_path, environment):
    """Return a function: let pytest run over these lines; return its status and what it said."""

    def run(lines, *options, **variables):
        dedented = re.sub(r"^    ", "", lines, flags=re.MULTILINE)
        (tmp_path / "test_small.py").write_text(dedented)
        path = f"{environment['PYTHONPATH']}:{Path(__file__).parent}"
        clean = {k: v for k, v in environment.items() if not k.startswith(("CI", "PYTEST_"))}
        command = [sys.executable, "-m", "pytest", "-p", "skips", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "-o", "addopts=", "--rootdir", tmp_path, *options, tmp_path],
            env={**clean, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert "INTERNALERROR" not in done.stdout + done.stderr
        return done.returncode, done.stdout

    return run


def test_elsewhere_a_skip_is_a_line(run):
    status, said = run(TESTS)
    assert status == 0 and "1 passed, 6 skipped, 1 xfailed" in said
    (line,) = re.findall("^not tested here: (.*)$", said, re.MULTILINE)
    listed = ["chromium is not on PATH", "only root can be two users"]
    assert sorted(line.split("; ")) == sorted(f"1: {why}" for why in [*UNLISTED.values(), *listed])
    status, said = run(MODULE)
    assert status == 5 and "not tested here: 1: could not import 'nonesuch'" in said


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "1")], ids=["alone", "workers"])
def test_in_ci_only_what_is_listed_is_skipped(run, workers):
    status, said = run(TESTS, *workers, "-rfEs", CI="true")
    assert status == 1
    assert "2 failed, 1 passed, 2 skipped, 1 xfailed, 2 errors" in said, "errors: before the test"
    for test, reason in UNLISTED.items():
        assert re.search(rf"^(FAILED|ERROR) test_small\.py::{test}\b", said, re.MULTILINE), said
        assert f"in CI this may not be skipped: {reason}. Install what is missing" in said
    assert "not tested here: 1: chromium is not on PATH; 1: only root can be two users" in said


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "1")], ids=["alone", "workers"])
def test_in_ci_a_module_that_skips_itself_fails(run, workers):
    status, said = run(MODULE, *workers, CI="true")
    assert status not in (0, 5), said
    assert "in CI this may not be skipped: could not import 'nonesuch'" in said
