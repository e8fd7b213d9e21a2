"""The running process and its machine: streams, parents, memory, processors, disks, versions."""

from __future__ import annotations

import contextlib
import io
import math
import os
import platform
import resource
import shlex
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from featuremill.base import __version__
from featuremill.lease.program import die_with_parent as die_with_parent

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
VERSION = __version__
PACKAGE = Path(__file__).parents[1]
_IN_WHEEL = PACKAGE / "smk" / "Snakefile"
SNAKEFILE: str = str(_IN_WHEEL if _IN_WHEEL.exists() else PACKAGE.parents[1] / "Snakefile")
"""The workflow: in the wheel beside the package, in a checkout at its root."""
PROFILES = Path(SNAKEFILE).parent / "profiles"
"""Folders of profiles, by their names."""
ALWAYS_USED = ("numpy", "pyarrow")
"""Distributions whose versions are recorded for all values."""


class _Stream(io.FileIO):
    """A standard stream that drops output after its reader, such as `head`, has closed the pipe."""

    is_read = True

    def write(self, data: Any) -> int:
        """Write; drop all output once the pipe has no reader; raise another OSError once."""
        try:
            return super().write(data)
        except BlockingIOError:
            raise
        except OSError as error:
            self.is_read = False
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            if not isinstance(error, BrokenPipeError):
                raise
            return memoryview(data).nbytes


def set_up_streams() -> None:
    """Prepare standard streams that may be closed, a pipe without a reader, or in an encoding that
    lacks some letters. Call it before the process opens a file: a file would get the descriptor of
    a closed stream, and child processes would write into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(null, True)
            setattr(sys, name, open(null, "w" if number else "r", closefd=False))  # noqa: SIM115
        elif number and type(raw := _raw(stream)) is io.FileIO and raw.fileno() == number:
            stream.flush()
            file = _Stream(number, "w", closefd=False)
            new = io.TextIOWrapper(
                # As with python -u, without which there is a buffer.
                file if raw is stream.buffer else io.BufferedWriter(file),
                stream.encoding,
                "backslashreplace",
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, new)


def is_output_read() -> bool:
    """Return whether standard output still has a reader."""
    return bool(getattr(_raw(sys.stdout), "is_read", True))


def _raw(stream: Any) -> Any:
    """Return the file of a standard stream; None if a test or a notebook has replaced it."""
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)


@contextlib.contextmanager
def starting_child() -> Iterator[None]:
    """Block SIGINT for a child that is started in the block, until the child unblocks it: Ctrl-C
    during its imports would print a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def name_of_process() -> str:
    """Return a unique name of this process: its pid and its PID namespace."""
    return f"{os.getpid()}@{_pid_namespace()}"


def die_with_starter(starter: str, signal_number: signal.Signals) -> None:
    """Ask the kernel for `signal_number` when the parent dies. Exit now if `starter`, the name of
    an ancestor, died while Python started: then another process is the parent."""
    die_with_parent(os.getppid(), signal_number)
    pid, _, namespace = starter.partition("@")
    if namespace and namespace == _pid_namespace():
        import psutil  # here: only a workflow's jobs ask

        if int(pid) not in (parent.pid for parent in psutil.Process().parents()):
            sys.exit(128 + signal_number)


def _pid_namespace() -> str:
    link = Path("/proc/self/ns/pid")
    return str(link.readlink()) if link.is_symlink() else ""


def num_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and by the quota of its
    control groups, as set by `docker run --cpus=2` and Kubernetes."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = cpu_quota()
    return cores if math.isinf(quota) else max(1, min(cores, math.ceil(quota)))


def cpu_quota(root: Path = Path("/")) -> float:
    """Return how many cores the control groups of this process allow; infinity without a limit.

    A group's limit holds for the groups inside it, so the smallest from its folder upwards counts.
    A container may see the path of its group on the host, which is not there: then its own group is
    what is mounted. Both versions of cgroups are read: `cpu.max` (cgroup-v2.rst in the kernel's
    documentation) and `cpu.cfs_quota_us` (sched-bwc.rst).
    """
    quota = math.inf
    mounted = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = mounted / "cpu" if controllers else mounted
            folder = top / path.strip("/")
            for group in (folder, *folder.parents):
                with contextlib.suppress(OSError, ValueError):
                    quota = min(quota, _quota_of(group, 1 if controllers else 2))
                if group == top:
                    break
    return quota


def _quota_of(group: Path, version: int) -> float:
    names = ["cpu.max"] if version == 2 else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
    quota, period = " ".join((group / name).read_text("ascii") for name in names).split()
    return math.inf if quota in ("max", "-1") else int(quota) / int(period)


def program() -> str:
    """Return the command `featuremill`, with its path if the shell does not find it."""
    if shutil.which("featuremill"):
        return "featuremill"
    beside = Path(sys.executable).parent / "featuremill"
    return shlex.quote(os.path.relpath(beside)) if beside.exists() else "featuremill"


def peak_of_process_mb() -> int:
    # In Linux, ru_maxrss is at least that of the parent at the fork (getrusage(2)).
    status = Path("/proc/self/status")
    for line in status.read_text("ascii").splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak // 2**20 if sys.platform == "darwin" else peak // 2**10)


def free_memory_mb() -> int:
    """Return the memory that new work may take, caches counted as free."""
    import psutil  # here, as the benchmark needs the rest of this where there is none

    return int(psutil.virtual_memory().available // 2**20)


def versions(distributions: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions that values can depend on: of featuremill, Python, NumPy and Arrow, and
    of these `distributions` where they are installed, whether or not they are imported here."""
    own = {"featuremill": VERSION, "python": platform.python_version()}
    return own | installed([*ALWAYS_USED, *distributions])


def installed(packages: Iterable[str]) -> dict[str, str]:
    versions = {}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def take_space(descriptor: int, start: int, size: int) -> None:
    """Take disk space from `start` on now: a hole in a file would end in SIGBUS on a full disk.

    Where the system has no such call (macOS), the file only grows.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, size)
    else:
        os.ftruncate(descriptor, max(os.fstat(descriptor).st_size, start + size))


def nearest_folder(path: Path) -> Path:
    """Return an absolute path if it is a folder, or else its nearest existing parent."""
    return next(parent for parent in (path, *path.parents) if parent.is_dir())
