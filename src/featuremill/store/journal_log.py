"""The log of a journal: its reader, and changes to a journal that no worker writes.

`featuremill.store.journal` describes the log. The supervisor uses this module, which does not
import Arrow.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import xxhash

MAGIC = "featuremill-journal 1"


class Commit(NamedTuple):
    """A committed batch."""

    end: int
    """The offset of its end in the data file."""
    digest: str
    """The xxh3-64 of its bytes."""
    num_rows: int


class LogState(NamedTuple):
    """The content of a log."""

    batch_cost: int
    commits: list[Commit]
    strikes: list[tuple[int, ...]]
    in_flight: tuple[int, ...]

    def num_rows(self, data: Path) -> int:
        """Return the number of committed rows that lie within the size of the data file `data`."""
        try:
            num_bytes = data.stat().st_size
        except FileNotFoundError:
            num_bytes = 0
        return sum(commit.num_rows for commit in self.commits if commit.end <= num_bytes)


def read_log(path: Path) -> LogState | None:
    """Return the content of the log at `path`, up to its first unreadable line; None without a
    usable log."""
    try:  # and not `exists`: another process may remove it at any moment
        lines = path.read_bytes().split(b"\n")[:-1]  # the text behind the last newline was cut off
    except FileNotFoundError:
        return None
    commits: list[Commit] = []
    strikes: list[tuple[int, ...]] = []
    in_flight: deque[tuple[int, ...]] = deque()
    try:
        magic, _, budget = lines[0].decode("ascii").rpartition(" ")
        if magic != MAGIC:
            return None
        batch_cost = _natural(budget)
    except (IndexError, ValueError):
        return None
    for line in lines[1:]:
        try:
            word, *rest = line.decode("ascii").split(" ")
            if not line:
                continue
            if word == "commit":
                commits.append(Commit(_natural(rest[0]), rest[1], _natural(rest[2], least=0)))
                if in_flight:  # a quarantined record has no `begin`
                    in_flight.popleft()
            elif word == "begin":
                in_flight.append(_rows(rest[0]))
            elif word == "strike":
                strikes.append(_rows(rest[0]))
                in_flight.clear()
            elif word == "abort":
                in_flight.clear()
            else:
                break
        except (IndexError, ValueError):
            break
    return LogState(batch_cost, commits, strikes, tuple(row for rows in in_flight for row in rows))


def _rows(text: str) -> tuple[int, ...]:
    return tuple(_natural(row, least=0) for row in text.split(","))


def _natural(text: str, least: int = 1) -> int:
    if not text.isdecimal() or not least <= (number := int(text)) < 2**63:
        raise ValueError(text)
    return number


def num_rows_in(path: Path) -> int:
    """Return the number of committed rows of the journal at `path`."""
    state = read_log(path.with_suffix(".log"))
    return state.num_rows(path) if state else 0


def add_strike(log_path: Path, rows: Iterable[int]) -> None:
    """Append to a closed journal's log that a worker died with `rows` in flight."""
    with log_path.open("ab") as log:  # a killed writer may have left half a line
        log.write(f"\nstrike {joined(rows)}\n".encode("ascii"))
        log.flush()
        os.fsync(log.fileno())


def digest_of_file(path: Path) -> str:
    """Return the digest of the file, as `Journal.finish` computes it."""
    state = xxhash.xxh3_128()
    with path.open("rb") as handle:
        while block := handle.read(4 * 2**20):
            state.update(block)
    return state.hexdigest()


def joined(rows: Iterable[int]) -> str:
    return ",".join(map(str, rows))
