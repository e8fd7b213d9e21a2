"""Takes a job's lease from Snakemake and becomes the job's shell, which inherits the locks.

It is run as `python -IS take_over.py SOCKET NAME SHELL ARGUMENTS…` by the program that a job has
in the place of its shell (`shells.py`), and imports no more than it needs: each job waits for it.

It leaves a guard behind, a process that does nothing until Snakemake dies: then it ends the
processes of the job, which could otherwise write files beside those of the next Snakemake.
"""

import json
import os
import signal
import socket
import sys
import time

MAX_BYTES = 2**16
MAX_DESCRIPTORS = 253
"""SCM_MAX_FD of the kernel; a device has two."""
GRACE_SECONDS = 10.0
"""How long processes have between SIGTERM and SIGKILL."""


def main() -> None:
    """Become the shell; end with status 1 if Snakemake has ended."""
    name, job, shell, *words = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(f"\0{name}")
        connection.sendall(job.encode())
        data, descriptors, *_ = socket.recv_fds(connection, MAX_BYTES, MAX_DESCRIPTORS)
        changes = json.loads(data)
    except (OSError, ValueError):
        sys.exit("gpu-local: Snakemake has no GPUs for this job any more.")
    _leave_guard(connection, os.getpid())
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a job must not
        signal.signal(number, signal.SIG_DFL)
    os.execve(shell, [shell, *words], {**os.environ, **changes})  # noqa: S606


def _leave_guard(connection: socket.socket, job: int) -> None:
    started = _start_of(job)
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    if os.fork():  # the guard is no child of the job, which may wait for all of its own
        os._exit(0)
    os.setsid()  # a terminal's Ctrl-C is not for it
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    kept = connection.fileno()
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in (0, 1, 2, kept):
            try:
                os.close(number)
            except OSError:  # that of the list
                continue
    connection.recv(1)  # ends when Snakemake closes it, as the job has ended, or dies
    if started and _start_of(job) == started:  # else it has ended, and what it left may stay
        _end({job: started})
    os._exit(0)


def _about(pid: int) -> "tuple[int, str] | None":
    """Return parent and time of start of a process; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] == "Z" else (int(words[1]), words[19])


def _start_of(pid: int) -> str:
    about = _about(pid)
    return about[1] if about else ""


def _end(known: "dict[int, str]") -> None:
    """End processes, each with its time of start, and their descendants: first by SIGTERM, then by
    SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        told: set[int] = set()
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            alive = {pid for pid, start in known.items() if _start_of(pid) == start}
            # A child usually has a greater number than its parent; else it is seen next time.
            for pid in sorted(map(int, filter(str.isdecimal, os.listdir("/proc")))):
                about = None if pid in known else _about(pid)
                if about and about[0] in alive:
                    known[pid] = about[1]
                    alive.add(pid)
            if not alive:
                return
            for pid in alive - told:
                try:
                    os.kill(pid, number)
                except OSError:  # it has ended
                    continue
            told |= alive
            time.sleep(0.05)


if __name__ == "__main__":
    main()
