"""packaging/release.py, in a clone: what it refuses, and that two builds have the same bytes."""

import hashlib
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no git checkout")
DATE = "2026-12-31"


class Clone:
    """A clone of the checkout, in which files are changed and committed."""

    def __init__(self, folder):
        self.folder = folder
        self.git("clone", "-q", "--shared", str(ROOT), str(folder), where=folder.parent)

    def git(self, *words, where=None):
        who = ("-c", "user.name=test", "-c", "user.email=test")
        subprocess.run(["git", *who, *words], cwd=where or self.folder, check=True)

    def change(self, name, before, after):
        path = self.folder / name
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after, 1))
        self.git("commit", "-qam", name)

    def release(self, version, status=1):
        command = [sys.executable, "packaging/release.py", version, "--wheels-only"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        return done.stderr if status else done.stdout


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path / "clone")


def dated(clone):
    """Give a clone the dates of a release; return its version."""
    text = (clone.folder / "CHANGELOG.md").read_text()
    heading = next(line for line in text.splitlines() if line.startswith("## "))
    version = heading.split()[1]
    clone.change("CHANGELOG.md", heading, f"## {version} - {DATE}")
    return version


def test_what_names_another_version_or_date_is_refused(clone):
    version = dated(clone)
    assert "pyproject.toml has version" in clone.release("99.0.0")
    assert "CITATION.cff: date-released is" in clone.release(version)
    (clone.folder / "README.md").write_text("changed")
    assert "the checkout has changes; commit them first" in clone.release(version)


def test_a_release_has_a_date(clone):
    version = dated(clone)
    clone.change("CHANGELOG.md", f" - {DATE}", " - unreleased")
    assert f"give version {version} a heading such as" in clone.release(version)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_builds_have_the_same_bytes_and_their_digests_are_listed(clone):
    version = dated(clone)
    for name in ("CITATION.cff", "ro-crate-metadata.json"):
        line = next(
            line
            for line in (clone.folder / name).read_text().splitlines()
            if "date-released" in line or "datePublished" in line
        )
        clone.change(name, line, line.replace("2026-11-28", DATE))
    assert "built twice" in clone.release(version, status=0)
    dist = clone.folder / "dist"
    sums = dict(line.split("  ")[::-1] for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert len(sums) == 4 and all(
        hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest
        for name, digest in sums.items()
    )
