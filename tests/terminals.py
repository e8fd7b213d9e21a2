"""A terminal for tests: a process on one of its own, and what stands on it afterwards."""

import os
import pty
import re
import select
import termios

import forks
from programs import wait_for

SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b.|[\r\n]|[^\x1b\r\n]+", re.DOTALL)
STYLES = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, command, columns, lines, **more):
        self.ours, theirs = pty.openpty()
        self.resize(columns, lines)
        environment = {**os.environ, "TERM": "xterm-256color", **more.pop("env", {})}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        self.process = forks.ForkedText(command, env=environment, **{**streams, **more})
        os.close(theirs)
        self._bytes, self.said = b"", ""

    def resize(self, columns, lines):
        """Give the terminal another size."""
        termios.tcsetwinsize(self.ours, (lines, columns))

    @property
    def text(self):
        """What was written, without its colours."""
        return STYLES.sub("", self.said)

    def read_until(self, word):
        """Read until the word comes; None: until the process has ended."""
        if word is None:
            wait_for(lambda: self.reads() is None)
        else:
            wait_for(lambda: word in self.text or self.reads() is None)
            assert word in self.text, self.text
        return self.said

    def reads(self):
        """Read what comes within a moment: return False, or None where nothing comes any more."""
        if not select.select([self.ours], [], [], 0.1)[0]:
            return None if self.process.poll() is not None else False
        try:
            self._bytes += os.read(self.ours, 65536)
        except OSError:  # the other end is closed
            return None
        self.said = self._bytes.decode("utf-8", "replace")
        return False


def rows(said, columns):
    """Return the rows of a terminal that is high enough for all that was `said`; a sequence that
    is not known here is an error."""
    screen, row, column = [""], 0, 0
    for found in SEQUENCE.finditer(said):
        text, (number, kind) = found[0], found.groups()
        if kind == "A":
            row = max(0, row - int(number or 1))
        elif kind == "J":
            assert number == ""
            screen[row:] = [screen[row][:column]]
        elif text == "\r":
            column = 0
        elif text == "\n":
            row += 1
        elif kind is None and not text.startswith("\x1b"):
            for letter in text:
                if column == columns:
                    row, column = row + 1, 0
                screen += [""] * (row + 1 - len(screen))
                before, after = screen[row][:column], screen[row][column + 1 :]
                screen[row] = before.ljust(column) + letter + after
                column += 1
        else:
            assert STYLES.match(text), repr(text)
        screen += [""] * (row + 1 - len(screen))
    return [line.rstrip() for line in screen]
