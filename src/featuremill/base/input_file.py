"""Checks of a file before it is read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from featuremill.base.errors import UserError
from featuremill.base.text import CONTROL, one_line


def check(path: Path) -> None:
    """Raise UserError unless `path` is a regular, non-empty file that we may read."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = str(path).encode("utf-8", "backslashreplace").decode()
        raise UserError(f"{shown}: this file's name is not in UTF-8; rename it.") from None
    if CONTROL.search(str(path)):
        raise UserError(
            f"{one_line(str(path))}: this file's name holds control characters; rename it."
        )
    try:
        status = path.stat()
    except FileNotFoundError:
        if str(path) == "-":
            raise UserError(
                "-: records are read twice, so not from a pipe; save them to a file and name it."
            ) from None
        kind = "is a link to a file that is gone" if path.is_symlink() else "does not exist"
        where = f" (seen from where the command is started: {Path.cwd()})"
        note = "" if path.is_absolute() else where
        raise UserError(f"{path}: this file {kind}; check the path{note}.") from None
    except PermissionError:
        raise _unreadable(path) from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; check the path.") from None
    if stat.S_ISDIR(status.st_mode):
        raise UserError(f"{path}: this is a folder; name the files in it.")
    if not stat.S_ISREG(status.st_mode):
        raise UserError(
            f"{path}: this is a pipe or a device, and those can't be read twice; save it to a file."
        )
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise _unreadable(path)
    if not status.st_size:
        raise UserError(f"{path}: this file is empty; check the step that made it.")


def _unreadable(path: Path) -> UserError:
    return UserError(
        f"{path}: you may not read this file; ask its owner, or try chmod +r (folders: +x)."
    )
