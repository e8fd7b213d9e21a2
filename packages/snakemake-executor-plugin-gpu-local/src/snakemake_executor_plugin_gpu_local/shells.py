"""Programs that stand in for the shells of jobs with GPUs.

A job's shell is a link to a small script in a folder of this process. The script asks this process
for the job's lease and becomes the real shell. The descriptors of the locks go with it, so the
lease ends with the job's processes, however they end. When Snakemake dies, its jobs with GPUs are
ended (`take_over.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import socket
import stat
import struct
import sys
import tempfile
import threading
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from . import take_over
from .lease.acquire import Lease
from .lease.folder import try_lock

PREFIX = "gpu-local-"
OWNER = "owner"
"""The file of a folder that its process has locked."""
WITH_LEASE, WITHOUT_LEASE = "with-lease", "without-lease"
"""The scripts in a folder: one takes the lease of the job that its path names."""
CREDENTIALS = struct.Struct("3i")
"""The kernel's struct ucred: process, user, group."""


class Offer(NamedTuple):
    """A lease that waits for the shell of its job."""

    held: Lease
    command: str
    """What the list of GPUs says of the job."""


class Shells:
    """The scripts, and the socket at which they get their leases."""

    def __init__(self, shell: str, other_folder: Path) -> None:
        """`other_folder` has the scripts where nothing in the temporary folder may be executed."""
        self._shell = shell
        self._offers: dict[str, Offer] = {}
        self._guards: dict[str, socket.socket] = {}
        """Connections to the guards of jobs, which end what is left of a job when they close."""
        self._lock = threading.Lock()
        self._name = f"{PREFIX}{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(f"\0{self._name}")
        self._socket.listen(128)
        self._folder, self._owner = _folder_for_programs(other_folder)
        self._write_scripts()
        threading.Thread(target=self._serve, name="gpu-local", daemon=True).start()

    def _write_scripts(self) -> None:
        """Write the scripts, before any job: the kernel does not execute a file that a process has
        open for writing, as one has that another thread forks meanwhile ("Text file busy")."""
        shell = shlex.quote(self._shell)
        take = shlex.join([sys.executable, "-IS", take_over.__file__, self._name])
        job = "_gpu_local=${0%/*}"  # the folder of the link
        scripts = {
            WITH_LEASE: f'{job}\nexec {take} "${{_gpu_local##*/}}" {shell} "$@"',
            WITHOUT_LEASE: f'exec {shell} "$@"',
        }
        for name, text in scripts.items():
            (self._folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (self._folder / name).chmod(0o700)

    def path(self, name: str) -> str:
        """Return the shell of the job `name`; its lease is offered later."""
        return str(self._link(name, WITH_LEASE))

    def without_lease(self, name: str) -> None:
        """Have the shell of the job `name`, if an earlier attempt had GPUs, ask for none."""
        if (self._folder / name).exists():
            self._link(name, WITHOUT_LEASE)

    def _link(self, name: str, script: str) -> Path:
        # Snakemake treats bash by its name, so the link has the name of the shell.
        path = self._folder / name / Path(self._shell).name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(Path(os.pardir, script))
        return path

    def offer(self, name: str, held: Lease, command: str) -> None:
        """Keep a lease until the job's shell takes it over."""
        with self._lock:
            self._offers[name] = Offer(held, command)

    def withdraw(self, names: Collection[str]) -> bool:
        """Give the leases of ended jobs back that no shell has taken; return whether there was
        one."""
        for name in names:
            if guard := self._guards.pop(name, None):
                guard.close()
        with self._lock:
            left = [offer for name in names if (offer := self._offers.pop(name, None))]
        for offer in left:
            offer.held.close()
        return bool(left)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            # One that connects and is silent must not hold the others up.
            connection.settimeout(10)
            with contextlib.suppress(OSError):
                if self._hand_over(connection):
                    continue
            connection.close()

    def _hand_over(self, connection: socket.socket) -> bool:
        """Send the lease of the job that connects; return whether it has one."""
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        pid, user, _ = CREDENTIALS.unpack(credentials)
        if user != os.getuid():
            return False
        name = connection.recv(4096).decode(errors="replace")
        with self._lock:
            offer = self._offers.pop(name, None)
        if offer is None:
            return False
        self._guards[name] = connection  # now, as the job may end before this thread goes on
        for slot in offer.held.slots:
            slot.note(pid, offer.command)
        data = json.dumps(offer.held.environment).encode()
        try:
            socket.send_fds(connection, [data], offer.held.descriptors)
        finally:
            offer.held.close()
        return True

    def close(self) -> None:
        """Remove the scripts and end the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._owner)


def _folder_for_programs(other_folder: Path) -> tuple[Path, int]:
    """Return a new folder, and the descriptor of its file OWNER, which is locked until this
    process ends."""
    parents = (Path(tempfile.gettempdir()), other_folder)
    for parent in parents:
        _remove_left_folders(parent)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        new = folder / "new"
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o700)
        if os.access(new, os.X_OK):  # not where a file system is mounted with noexec
            with contextlib.suppress(OSError):  # without locks there, it is never removed
                if try_lock(descriptor):
                    new.rename(folder / OWNER)
            return folder, descriptor
        os.close(descriptor)
        shutil.rmtree(folder)
    raise OSError(f"{' and '.join(map(str, parents))} are both mounted with noexec")


def _remove_left_folders(parent: Path) -> None:
    """Remove folders of earlier processes of this user that were killed."""
    for owner in parent.glob(f"{PREFIX}*/{OWNER}"):
        with contextlib.suppress(OSError):  # another process removes it, too
            about = owner.parent.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
                continue
            descriptor = os.open(owner, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if try_lock(descriptor):
                    shutil.rmtree(owner.parent, ignore_errors=True)
            finally:
                os.close(descriptor)
