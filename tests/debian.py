"""Debian packages that a slow test needs, as a machine of its own would have them."""

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def install(*packages):
    """Install those packages that are missing; skip the test where that cannot be done."""
    if not shutil.which("apt-get"):
        pytest.skip(f"{', '.join(packages)}: installed with apt-get, which is not here")
    with (Path(tempfile.gettempdir()) / "featuremill-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests side by side
        script = Path(__file__).with_name("debian_packages.sh")
        done = subprocess.run(["bash", script, *packages], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"apt-get could not install {packages}: {done.stderr.strip()[-200:]}")


def unpacked(package, folder):
    """Unpack a Debian package of data into `folder`, without installing it; return the folder."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        pytest.skip(f"{package}: a package of Debian, and apt-get or dpkg-deb is not here")
    download = f"apt-get -qq download {package}"
    script = f"{download} || {{ apt-get -qq update && {download}; }}"
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"apt-get could not download {package}: {done.stderr.strip()[-200:]}")
    (deb,) = folder.glob(f"{package}_*.deb")
    subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
    return folder
