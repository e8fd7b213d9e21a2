"""The folder of lock files, which is local and the same for all users, and how to open them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import stat
import time
from pathlib import Path
from typing import Any

from .environment import LEASE_FOLDER
from .errors import UserError

NAME = "featuremill-leases"
PROTOCOL = 1
"""The version of the protocol of the locks, as in PROTOCOL.md of gpu-local. A folder of a later
version has the version in a file `protocol`."""
PARENTS = (Path("/run/lock"), Path("/dev/shm"), Path("/tmp"))  # noqa: S108  (sticky, see below)
MODE = 0o1777
"""The mode of the folder: each user may add files, and remove only their own."""
NOT_LOCAL = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"),
    *("ocfs2", "orangefs", "pvfs2", "smb3", "smbfs", "virtiofs"),
}
MAX_NOTE_BYTES = 2**16
"""Largest number of bytes of a note that are read, as any user may have written it."""
MAKING_SECONDS = 1.0
"""Longest time of another process between creating a file or folder and opening it to all."""


def find() -> Path:
    """Return the folder of leases; create it if it does not exist.

    All users, including root, must find the same folder: the first that exists, else the first that
    any user may create.
    """
    named = LEASE_FOLDER.value()
    if named:
        folder = named
    else:
        paths = [parent / NAME for parent in PARENTS]
        open_paths = [path for path in paths if _is_open_to_all(path.parent)]
        existing = [path for path in paths if _is_open_to_all(path)]
        if not existing and not open_paths:
            raise UserError(
                f"there is no folder for GPU leases; name a local one in {LEASE_FOLDER}."
            )
        folder = (existing or open_paths)[0]
    try:
        folder.mkdir(parents=bool(named))
        folder.chmod(MODE)  # mkdir's own mode is reduced by the umask
    except FileExistsError:
        pass
    except OSError as error:
        raise UserError(
            f"{folder}: no folder for GPU leases can be made here ({error.strerror}); name another "
            f"local one in {LEASE_FOLDER}."
        ) from None
    _check(folder)
    return folder


def _is_open_to_all(folder: Path) -> bool:
    try:
        return stat.S_ISDIR(mode := folder.lstat().st_mode) and mode & MODE == MODE
    except OSError:
        return False


def _check(folder: Path) -> None:
    deadline = time.monotonic() + MAKING_SECONDS
    while not _is_open_to_all(folder):
        if time.monotonic() > deadline:
            raise UserError(
                f"{folder}: GPU leases need a folder, and no link to one, that all users may write "
                f"to; let its owner{_owner(folder)} chmod 1777 it, or name another in "
                f"{LEASE_FOLDER}."
            )
        time.sleep(0.01)
    kind = file_system(folder, Path("/proc/self/mountinfo").read_text("utf-8", "replace"))
    if kind in NOT_LOCAL or kind.startswith("fuse"):
        raise UserError(
            f"{folder}: it is on {kind}, and GPU leases need a file system of this machine; "
            f"name a local folder in {LEASE_FOLDER}."
        )
    version = read_note(folder / "protocol")
    if isinstance(version, int) and version > PROTOCOL:
        raise UserError(
            f"{folder}: a newer program locks GPUs there by version {version} of the protocol, and "
            f"this one has version {PROTOCOL}; upgrade it, or name another folder in "
            f"{LEASE_FOLDER}."
        )


def file_system(folder: Path, mountinfo: str) -> str:
    """Return the type of the file system of `folder`, from the text of /proc/self/mountinfo."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mountinfo.splitlines():
        mount, _, system = line.partition(" - ")
        if mount.split()[2] == number:
            return system.split()[0]
    return "unknown"


def _owner(path: Path) -> str:
    """Return the owner of `path` itself, in brackets; "" if unknown."""
    try:
        uid = path.lstat().st_uid
        return f" ({pwd.getpwuid(uid).pw_name})"
    except OSError:
        return ""
    except KeyError:
        return f" (user {uid})"


def open_lock(path: Path) -> int:
    """Open a lock file that all users share, created if needed; return its descriptor.

    With fs.protected_regular, O_CREAT on another user's file in a sticky folder is refused, so an
    existing file is opened without it. Child processes do not inherit the descriptor.

    Raises:
        UserError: if it is not a regular file with a single link; writing through a link could
            change another file of the user.
    """
    deadline = time.monotonic() + MAKING_SECONDS
    common = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        try:
            descriptor = os.open(path, common)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(path, common | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(descriptor, 0o666)  # the umask reduced it
                return descriptor
        except PermissionError:  # just created, and not open to all yet
            if time.monotonic() > deadline:
                raise _unusable(path, "it is closed to you") from None
            time.sleep(0.001)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
            raise _unusable(path, "it is not a plain file") from None
        else:
            if not _is_plain(descriptor):
                os.close(descriptor)
                raise _unusable(path, "it is not a plain file")
            return descriptor


def _is_plain(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) and status.st_nlink <= 1


def _unusable(path: Path, problem: str) -> UserError:
    return UserError(
        f"{path}: this lock file cannot be used, as {problem}; let its owner{_owner(path)} remove "
        f"it, or name another folder in {LEASE_FOLDER}."
    )


def plain(text: str) -> str:
    """Return a process's note with control characters escaped, for the screen."""
    return text if text.isprintable() else repr(text)[1:-1]


def read_note(path: Path) -> Any:
    """Return the JSON in the file `path`, or None; follows no links and blocks on no pipe."""
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path, flags)
    except OSError:
        return None
    try:
        content = os.read(descriptor, MAX_NOTE_BYTES) if _is_plain(descriptor) else b""
        return json.loads(content)
    except (OSError, ValueError, RecursionError):  # being written, or damaged by a user
        return None
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, operation: int = fcntl.LOCK_EX) -> bool:
    """Take the lock if it is free; return whether it was."""
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
