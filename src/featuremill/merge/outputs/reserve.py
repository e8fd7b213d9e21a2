"""Disk space taken before a library writes that does not survive a full disk.

HDF5 goes on in silence after a write that failed, and ends the process with SIGSEGV when the file
is closed. So the space is taken here first: where the disk is full, that is an error like others.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from featuremill.store.files import take_space

STEP_BYTES = 2**22
"""Taken at once where there is so much."""
NO_SUCH_CALL = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""What file systems answer that cannot give space ahead."""


class Reserve:
    """Space for a file that somebody else writes, from its beginning on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._needed = self._taken = 0

    def need(self, num_bytes: int) -> None:
        """Make sure that so many bytes more can be written.

        Raises:
            OSError: when the disk is full, or a quota is used up.
        """
        self._needed += num_bytes
        if self._needed > self._taken and not self._take(self._needed + STEP_BYTES):
            self._take(self._needed, is_last_try=True)

    def _take(self, end: int, is_last_try: bool = False) -> bool:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            take_space(descriptor, self._taken, end - self._taken)
        except OSError as error:
            if error.errno not in NO_SUCH_CALL:
                if is_last_try:
                    raise OSError(error.errno, error.strerror, str(self._path)) from None
                return False
        finally:
            os.close(descriptor)
        self._taken = end
        return True

    def forget(self) -> None:
        """Begin again: the file was emptied."""
        needed, self._needed, self._taken = self._needed, 0, 0
        self.need(needed)
