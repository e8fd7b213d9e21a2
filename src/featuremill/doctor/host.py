"""What a run needs of the machine besides devices: files, folders, space, versions."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from featuremill.base.environment import LEASE_FOLDER
from featuremill.base.errors import UserError
from featuremill.base.space import nearest_folder
from featuremill.base.this_process import VERSION, free_memory_mb, installed, num_cores
from featuremill.lease import folder

NAMED_PACKAGES = ("torch", "triton", "snakemake", "nvidia-ml-py", "numpy", "pyarrow", "fair-esm")
PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA = "0x10de"
DISPLAY_CLASS = "0x03"
"""PCI's class of graphics and compute cards, as sysfs writes its first byte."""


class Host(NamedTuple):
    open_files: int
    """How many one process may have."""
    results: Path
    """The nearest folder that exists on the way to results/."""
    results_writable: bool
    results_free_gb: float
    lock_folder: str
    lock_trouble: str
    """Why leases cannot be kept there; empty when they can."""
    num_nvidia_cards: int
    """By the PCI bus, whatever the driver says; 0 where the bus cannot be read."""
    num_processors: int
    memory_free_mb: int
    versions: dict[str, str]


def look(results: Path, pci: Path = PCI_DEVICES) -> Host:
    """Return what is true of this machine now."""
    nearest = nearest_folder(results.absolute())
    lock_folder, lock_trouble = _lock_folder()
    return Host(
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        results=nearest,
        results_writable=os.access(nearest, os.W_OK | os.X_OK),
        results_free_gb=shutil.disk_usage(nearest).free / 1e9,
        lock_folder=lock_folder,
        lock_trouble=lock_trouble,
        num_nvidia_cards=num_nvidia_cards(pci),
        num_processors=num_cores(),
        memory_free_mb=free_memory_mb(),
        versions=versions(),
    )


def _lock_folder() -> tuple[str, str]:
    """Return where leases are kept, and what is wrong with that place."""
    try:
        found = folder.find()
        with tempfile.TemporaryFile(dir=found):
            return str(found), ""
    except (UserError, OSError) as error:
        return LEASE_FOLDER.text() or "their usual folder", str(error).rstrip(".")


def num_nvidia_cards(pci: Path) -> int:
    """Count NVIDIA's graphics and compute cards on the PCI bus."""
    count = 0
    for card in pci.iterdir() if pci.is_dir() else ():
        try:
            is_nvidia = (card / "vendor").read_text().strip() == NVIDIA
            count += is_nvidia and (card / "class").read_text().startswith(DISPLAY_CLASS)
        except OSError:
            continue
    return count


def versions() -> dict[str, str]:
    """Return the versions installed here, without importing anything."""
    found = {
        "featuremill": VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }
    return found | installed(NAMED_PACKAGES)
