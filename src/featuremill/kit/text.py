"""Numbers and untrusted text as people read them, and lines of progress."""

from featuremill.base.progress import Progress
from featuremill.base.text import clipped, one_line, plain, wrapped
from featuremill.base.words import (
    clock,
    count,
    counted,
    duration,
    human_bytes,
    listed,
    records,
    share,
)

__all__ = [
    "Progress",
    "clipped",
    "clock",
    "count",
    "counted",
    "duration",
    "human_bytes",
    "listed",
    "one_line",
    "plain",
    "records",
    "share",
    "wrapped",
]
