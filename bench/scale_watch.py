"""What a tree of processes takes, verb by verb: seconds, processor time and memory. Linux only."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EVERY_SECONDS = 0.1
FOLDER_EVERY_SECONDS = 2.0
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass
class Job:
    """One run of a verb: its process and all below it."""

    verb: str
    began: float
    ended: float = 0.0
    peak_anonymous_kb: int = 0
    high_water_kb: dict[int, int] = field(default_factory=dict)
    """VmHWM of each process, which counts mapped files too."""
    ticks: dict[int, int] = field(default_factory=dict)


class Watch:
    """Looks at the processes below this one ten times a second; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.jobs: dict[int, Job] = {}
        self.peak_folder_bytes = 0
        """The most that `folder` took, looked at now and then."""
        self._folder = folder
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=(self._look, EVERY_SECONDS)),
            threading.Thread(target=self._repeat, args=(self._measure, FOLDER_EVERY_SECONDS)),
        ]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def of(self, verb: str) -> dict[str, Any]:
        """Return what the jobs of a verb took: together, and the largest of them."""
        jobs = [job for job in self.jobs.values() if job.verb == verb]
        lives = [job.ended - job.began for job in jobs]
        ticks = sum(sum(job.ticks.values()) for job in jobs)
        return {
            "jobs": len(jobs),
            "seconds": round(max(j.ended for j in jobs) - min(j.began for j in jobs), 2),
            "seconds_a_job": round(sum(lives) / len(jobs), 3),
            "cpu_seconds": round(ticks / TICKS_A_SECOND, 2),
            "peak_mb": max(sum(job.high_water_kb.values()) for job in jobs) // 1024,
            "peak_anonymous_mb": max(job.peak_anonymous_kb for job in jobs) // 1024,
        }

    def _repeat(self, action: Callable[[], None], every_seconds: float) -> None:
        while not self._stop.wait(every_seconds):
            action()

    def _look(self) -> None:
        now = time.monotonic()
        anonymous: dict[int, int] = {}
        for root, verb, process in _below(os.getpid()):
            job = self.jobs.setdefault(root, Job(verb, now))
            job.ended = now
            try:
                status = (process / "status").read_text()
                times = (process / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            found = dict(line.split(":", 1) for line in status.splitlines())
            if "VmHWM" not in found:  # a zombie
                continue
            pid = int(process.name)
            job.high_water_kb[pid] = int(found["VmHWM"].split()[0])
            job.ticks[pid] = int(times[11]) + int(times[12])
            anonymous[root] = anonymous.get(root, 0) + int(found["RssAnon"].split()[0])
        for root, size in anonymous.items():
            self.jobs[root].peak_anonymous_kb = max(self.jobs[root].peak_anonymous_kb, size)

    def _measure(self) -> None:
        self.peak_folder_bytes = max(self.peak_folder_bytes, bytes_in(self._folder))


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files in `folder`; 0 when it is not there."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(path) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total


def _below(pid: int, root: int = 0, verb: str = "") -> Iterator[tuple[int, str, Path]]:
    """Yield each process below `pid`, with the verb that it belongs to and that verb's process."""
    for child in _children(pid):
        process = Path(f"/proc/{child}")
        found = "" if verb not in ("", "snakemake") else _verb_of(process)
        if found:
            yield child, found, process
            yield from _below(child, child, found)
        else:
            if root:
                yield root, verb, process
            yield from _below(child, root, verb)


def _children(pid: int) -> list[int]:
    """Return the processes that any thread of `pid` started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            found += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


def _verb_of(process: Path) -> str:
    """Return the verb that this process is, "snakemake" for that, and nothing for others."""
    try:
        words = (process / "cmdline").read_text().split("\0")
    except OSError:
        return ""
    for place, word in enumerate(words[:4]):
        if word.endswith("featuremill"):
            return words[place + 1]
        if word == "snakemake":
            return word
    return ""
