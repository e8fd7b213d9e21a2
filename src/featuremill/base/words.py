"""Numbers, and changes of a config, as people read them."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

NBSP = "\u00a0"
"""A no-break space, between a number and its unit on a page."""


def count(number: float) -> str:
    """Return 12345 as "12,345"."""
    return f"{number:,.0f}"


def counted(number: int, noun: str, nouns: str = "") -> str:
    """Return `number` with its noun: 1 shard, 2,000 shards; `nouns` where an s is not enough."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {nouns or noun + 's'}"


def in_units(number: int, units: str) -> str:
    """Return `number` of what `units` names in the plural: "1 residue", "2,000 residues"."""
    return counted(number, units.removesuffix("s"), units)


def records(number: int) -> str:
    return counted(number, "record")


def short(number: float) -> str:
    """Return a number to three digits: "842", "12.3 k", "1.87 M", "36.9 G"."""
    scaled, prefix = float(number), ""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(scaled) < 999.5 or prefix == "T":
            break
        scaled /= 1000
    digits = 0 if not prefix or scaled >= 99.95 else 1 if scaled >= 9.995 else 2
    return f"{scaled:.{digits}f}{NBSP}{prefix}".rstrip(NBSP)


def duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as 2 h 5 min."""
    if seconds < 9.95:
        return f"{seconds:.1f}{NBSP}s"
    total = round(seconds)
    for unit, name, part, part_name in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if total >= unit:
            rest = total % unit // part
            return f"{total // unit}{NBSP}{name}" + (f" {rest}{NBSP}{part_name}" if rest else "")
    return f"{total}{NBSP}s"


def plain_duration(seconds: float) -> str:
    """Return `duration` of whole seconds, one at least, for a terminal or a log."""
    return duration(max(1.0, round(seconds))).replace(NBSP, " ").replace(".0 s", " s")


def clock(seconds: float) -> str:
    """Return `seconds` as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def moment(seconds: float) -> str:
    """Return a time in UTC: the hosts of a run may have different time zones."""
    time = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def parsed(moment: str) -> float:
    """Return an ISO 8601 time in seconds since 1970."""
    return datetime.datetime.fromisoformat(moment).timestamp()


def size(num_bytes: int) -> str:
    """Return a file's size in decimal units, as file managers show it."""
    return f"{short(num_bytes)}B" if num_bytes >= 1000 else f"{num_bytes}{NBSP}B"


def human_bytes(size: float) -> str:
    """Return `size` bytes for a line of text, in the largest unit that leaves at least one."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def energy(joules: float) -> str:
    """Return an energy in joules, or in watt hours from a kilowatt hour on."""
    if joules < 3.6e6:
        return f"{short(joules)}J" if joules >= 1000 else f"{joules:.3g}{NBSP}J"
    return f"{short(joules / 3600)}Wh"


def share(part: float, whole: float) -> str:
    """Return `part` of `whole` in per cent; "under 1 %" for a part that would round to 0."""
    percent = 100 * part / whole if whole else 0.0
    if 0 < percent < 1:
        return f"under 1{NBSP}%"
    return f"{percent:.0f}{NBSP}%"


def listed(words: Iterable[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


MOST_CHANGES, MOST_VALUES = 4, 5
"""Changes in a sentence, and values of a list."""


class Change(NamedTuple):
    """A key with another value than before."""

    key: str
    before: Any
    now: Any


def in_words(changes: Sequence[Change]) -> str:
    """Return the changes as text, such as "layers: 6 → 3; pool: mean → max"."""
    shown = [
        f"{key}: {_value(before)} → {_value(now)}" for key, before, now in changes[:MOST_CHANGES]
    ]
    more = [f"{len(changes) - MOST_CHANGES:,} more"] if len(changes) > MOST_CHANGES else []
    return "; ".join([*shown, *more])


def _value(value: Any) -> str:
    if value in (None, "", [], ()):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_value(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        shown = [_value(item) for item in value[:MOST_VALUES]]
        return ", ".join([*shown, *["…"] * (len(value) > MOST_VALUES)])
    return str(value)
