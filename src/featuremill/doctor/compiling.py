"""What Triton needs to compile kernels: itself, a C compiler, Python's headers, and a folder that
shared objects are loaded from. Tried, not only looked for; Triton is not imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import NamedTuple

from featuremill.base import environment, triton_cache
from featuremill.doctor.host import installed, nearest_folder
from featuremill.lease.folder import file_system

SOURCE = "#include <Python.h>\nint featuremill_probe(void) { return 8; }\n"
LOAD = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).featuremill_probe() != 8)"
COMPILER_SECONDS = 30.0
MOUNTS = Path("/proc/self/mountinfo")


class Compiling(NamedTuple):
    """What there is, and what is wrong with it (empty where nothing is)."""

    triton: str | None
    """Its version."""
    compiler: str | None
    compiler_trouble: str
    has_headers: bool
    folder: str
    """Where a run's kernels are kept."""
    file_system: str
    folder_trouble: str


def look() -> Compiling:
    """Compile and load a function in the folder that a run would use, and leave nothing there."""
    folder = triton_cache.folder().absolute()
    place = nearest_folder(folder)
    include, compiler = _include(), find_compiler()
    compiler_trouble, folder_trouble = _try(place, compiler, include)
    return Compiling(
        triton=installed(["triton"]).get("triton"),
        compiler=compiler,
        compiler_trouble=compiler_trouble,
        has_headers=(include / "Python.h").is_file(),
        folder=str(folder),
        file_system=file_system_of(place),
        folder_trouble=folder_trouble,
    )


def file_system_of(place: Path) -> str:
    """Return the type of the file system that `place` is on."""
    return file_system(place, MOUNTS.read_text("utf-8", "replace") if MOUNTS.exists() else "")


def find_compiler() -> str | None:
    """Return the C compiler that Triton takes (triton/runtime/build.py), which is not always cc."""
    return environment.CC.text() or shutil.which("gcc") or shutil.which("clang")


def _include() -> Path:
    scheme = sysconfig.get_default_scheme()
    scheme = "posix_prefix" if scheme == "posix_local" else scheme  # Debian's, as Triton does
    return Path(sysconfig.get_paths(scheme)["include"])


def _try(place: Path, compiler: str | None, include: Path) -> tuple[str, str]:
    """Return what is wrong with the compiler and what with the folder."""
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=".featuremill-") as folder:
            source, library = Path(folder, "probe.c"), Path(folder, "probe.so")
            source.write_text(SOURCE)
            if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
                return "", "it is mounted noexec, so nothing that is compiled can be loaded from it"
            if compiler is None:
                return "", ""
            flags = ("-shared", "-fPIC", f"-I{include}", "-o")
            if trouble := _trouble_of(compiler, source, *flags, library):
                return trouble, ""
            # In a child: while it is loaded, NFS could not remove it.
            trouble = _trouble_of(sys.executable, "-IS", "-c", LOAD, library)
            return "", trouble and f"what is compiled there cannot be loaded ({trouble})"
    except OSError as error:
        return "", (error.strerror or str(error)).lower()


def _trouble_of(*command: str | Path) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=COMPILER_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"no end within {COMPILER_SECONDS:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    if not done.returncode:
        return ""
    lines = done.stderr.strip().splitlines()
    told = next((line for line in lines if "rror: " in line), lines[-1] if lines else "")
    return " ".join(told.split())[:200] or f"status {done.returncode}"
