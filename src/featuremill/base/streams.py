"""Standard streams that may be closed, a pipe without a reader, or in an encoding that lacks some
letters."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


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


def set_up() -> None:
    """Prepare the streams of this process, before it opens a file: a file would get the descriptor
    of a closed stream, and child processes would write into it."""
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


def is_read() -> bool:
    """Return whether standard output still has a reader."""
    raw = _raw(sys.stdout)
    return raw.is_read if isinstance(raw, _Stream) else True


def _raw(stream: Any) -> Any:
    """Return the file of a standard stream; None if a test or a notebook has replaced it."""
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)
