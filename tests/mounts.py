"""A file system of one's own, small or read-only, that only the processes started in it see.

It lives in a mount namespace that a sleeping process holds, and goes when that one ends: so nothing
is ever mounted on the machine, and no user needs to be root where user namespaces are allowed.
"""

import subprocess
from pathlib import Path

import pytest

WAYS = (
    (["unshare", "-rm"], ["-U", "-m", "--preserve-credentials"]),
    (["unshare", "-m"], ["-m"]),
)
"""How to make a namespace, and how to enter it: as any user, or as root."""
HOLD = 'mount -t tmpfs -o size="$2" faults "$1" && cd "$1" && echo ready && exec sleep 3600'


def mounted(folder, size):
    """Return a file system of this size at `folder`; where none can be had, skip the test."""
    try:
        return Mount(folder, size)
    except PermissionError as error:
        pytest.skip(str(error))


class Mount:
    """A tmpfs of `size` on the empty folder `folder`."""

    def __init__(self, folder, size):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        for unshare, self._enter in WAYS:
            self._holder = subprocess.Popen(
                [*unshare, "sh", "-c", HOLD, "sh", str(folder), size],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            if self._holder.stdout.readline() == "ready\n":
                break
            self.close()
        else:
            raise PermissionError("neither unshare -rm nor unshare -m with mount works here")

    def command(self, *words):
        """Return the command that runs `words` in the folder, inside the namespace."""
        return ["nsenter", "-t", str(self._holder.pid), *self._enter, "-w", *map(str, words)]

    def remount(self, options):
        """Change the file system: `size=…`, `ro`, `rw`."""
        words = ("mount", "-o", f"remount,{options}", self.folder)
        subprocess.run(self.command(*words), check=True)

    def seen(self, path):
        """Return the path under which everybody else sees the namespace's `path`."""
        return Path(f"/proc/{self._holder.pid}/root{path}")

    def close(self):
        self._holder.kill()
        self._holder.communicate()
