"""Slots: kernel locks on files named by a device and a slot, with notes about the holder.

A slot has two locks: an exclusive lock of the slot, and a lock of the device, which is exclusive if
the device has one slot and shared if it has several. So a whole device and a part of it are never
leased at once. All slots of a device are equal: while it is divided into 2, no job gets a quarter.
A lock ends with its last descriptor, so with the process and the child processes that inherited it.

Inside a lease, its devices are divided again: the name of a device then has the outer slot as a
suffix (`GPU-…@0of1`), so that jobs within a lease exclude each other but not their parent.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .environment import LEASED
from .folder import open_lock, plain, read_note, try_lock

SUFFIX = ".slot"
NAME = re.compile(r"[\w@-]+@\d{1,9}of\d{1,9}\.slot", re.ASCII)
MAX_COMMAND = 200
"""Largest number of characters of a command in a note."""


class Slot(NamedTuple):
    """A slot that is held as long as its descriptors are open in a process."""

    name: str
    descriptors: tuple[int, int]

    def close(self) -> None:
        """Close the descriptors, without LOCK_UN, since a child process may still hold the slot."""
        for descriptor in self.descriptors:
            os.close(descriptor)

    def note(self, pid: int | None = None, command: str | None = None) -> None:
        """Write a note about the holder: this process, or process `pid` that runs `command`. No
        decision depends on it."""
        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            user = str(os.getuid())
        command = _command() if command is None else command[:MAX_COMMAND]
        facts = {"pid": pid or os.getpid(), "user": user, "since": time.time(), "command": command}
        with contextlib.suppress(OSError):  # the disk is full
            os.ftruncate(self.descriptors[0], 0)
            os.pwrite(self.descriptors[0], json.dumps(facts).encode(), 0)


def _command() -> str:
    """Return the command for which this process holds slots."""
    words = sys.orig_argv[1:]
    if "--" in words:
        words = words[words.index("--") + 1 :]
    return " ".join(" ".join(words).split())[:MAX_COMMAND]


class Holder(NamedTuple):
    name: str
    """`<device>@<slot>of<slots>`"""
    pid: int
    user: str
    since: float
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.user}: {self.command})"

    @property
    def device(self) -> str:
        return self.name.rpartition("@")[0]


class Taking(NamedTuple):
    """An attempt to take a slot of a device: a slot, or its holder."""

    slot: Slot | None
    num_taken: int
    """Number of slots of the device that others hold."""
    last_leased: float
    """The time of the slot's last lease, in seconds since 1970."""
    in_the_way: tuple[Holder, ...] = ()


def scoped(uuid: str, folder: Path) -> str:
    """Return the name of a device: its UUID, with the slot of the outer lease if there is one."""
    for name in LEASED.value().split(","):
        if name.startswith(f"{uuid}@") and _is_held(folder / f"{name}{SUFFIX}"):
            return name
    return uuid


def _is_held(path: Path) -> bool:
    if not path.exists():
        return False
    descriptor = open_lock(path)
    try:
        return not try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def take(folder: Path, device: str, num_slots: int) -> Taking:
    """Try to take one of `num_slots` slots of `device`; call it only as the first of the queue."""
    device_lock = open_lock(folder / f"{device}.device")
    with contextlib.ExitStack() as unless_taken:
        unless_taken.callback(os.close, device_lock)
        if not try_lock(device_lock, fcntl.LOCK_EX if num_slots == 1 else fcntl.LOCK_SH):
            return Taking(None, 0, 0.0, holders(folder, device))
        held = holders(folder, device) if num_slots > 1 else ()
        others = tuple(each for each in held if not each.name.endswith(f"of{num_slots}"))
        if others:
            return Taking(None, 0, 0.0, others)
        slot, num_taken, last_leased = None, 0, 0.0
        for number in range(num_slots):
            name = f"{device}@{number}of{num_slots}"
            path = folder / f"{name}{SUFFIX}"
            descriptor = open_lock(path)
            if not try_lock(descriptor):
                num_taken += 1
            elif slot is None:
                unless_taken.callback(os.close, descriptor)
                slot, facts = Slot(name, (descriptor, device_lock)), path.stat()
                # An empty file was created by a check; its time is not that of a lease.
                last_leased = facts.st_mtime if facts.st_size else 0.0
                continue
            os.close(descriptor)
        if slot is None:
            return Taking(None, num_taken, 0.0, holders(folder, device))
        unless_taken.pop_all()
        return Taking(slot, num_taken, last_leased)


def holders(folder: Path, device: str | None = None) -> tuple[Holder, ...]:
    """Return the holders of slots of `device` (or of any), from their notes."""
    pattern = f"{device or '*'}@*{SUFFIX}"
    return tuple(
        _holder(path)
        for path in sorted(folder.glob(pattern))
        if NAME.fullmatch(path.name)
        and (not device or "@" not in path.name[len(device) + 1 :])
        and _is_held(path)
    )


def _holder(path: Path) -> Holder:
    content = read_note(path)
    note: dict[str, Any] = content if isinstance(content, dict) else {}
    pid, since = note.get("pid"), note.get("since")
    return Holder(
        name=path.name.removesuffix(SUFFIX),
        pid=pid if isinstance(pid, int) and 0 < pid < 2**31 else 0,
        user=plain(str(note.get("user", "?")))[:40],
        since=float(since) if isinstance(since, int | float) and 0 <= since < 2**32 else 0.0,
        command=plain(str(note.get("command", "?")).replace("\n", " "))[:MAX_COMMAND],
    )


def processes_with(path: Path) -> Iterator[int]:
    """Yield the pids of processes that have the file open, if this user may see them."""
    wanted = path.stat()
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):  # another user's, or ended
            for link in folder.iterdir():
                with contextlib.suppress(OSError):
                    open_file = link.stat()
                    if (open_file.st_dev, open_file.st_ino) == (wanted.st_dev, wanted.st_ino):
                        yield int(folder.parent.name)
                        break
