"""Read from an EDF what mne ignores: the sampling rate of each channel, and gaps between data
records.

mne resamples all channels to the highest rate, and reads an EDF+D as if it had no gaps. EDF: Kemp
et al. 1992, doi:10.1016/0013-4694(92)90009-7; EDF+, whose annotations are the samples of a separate
channel: Kemp and Olivan 2003, doi:10.1016/S1388-2457(03)00123-8.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, NamedTuple

ANNOTATIONS = ("EDF Annotations", "BDF Annotations")
BEFORE_SAMPLES = 216
"""Bytes per channel in the header before the numbers of samples in a data record."""
END_OF_TIME = b"\x14"
"""The byte after the time of a data record in an annotation channel."""


class Gap(NamedTuple):
    """The first gap: its time from the start, and its length, both in seconds."""

    after: float
    missing: float


class Header(NamedTuple):
    labels: list[str]
    """The labels of the channels without annotations, in the order of the file."""
    rates_hz: list[float]
    gap: Gap | None


def read(path: Path) -> Header:
    """Return the header of the EDF `path`.

    Raises:
        ValueError: it is no EDF.
    """
    with path.open("rb") as file:
        fixed = file.read(256)
        if len(fixed) < 256:
            raise ValueError("its header is cut short")
        num_channels = int(_number(fixed[252:256]))
        seconds = _number(fixed[244:252]) or 1.0  # mne's default
        about = file.read(256 * num_channels)
        labels = [_text(about[16 * channel : 16 * channel + 16]) for channel in range(num_channels)]
        start = BEFORE_SAMPLES * num_channels
        counts = [
            int(_number(about[start + 8 * channel : start + 8 * channel + 8]))
            for channel in range(num_channels)
        ]
        is_data = [label not in ANNOTATIONS for label in labels]
        gap = None
        if fixed[192:197] == b"EDF+D" and not all(is_data):
            gap = _gap(file, len(fixed) + len(about), counts, is_data.index(False), seconds)
    kept = [channel for channel, is_kept in enumerate(is_data) if is_kept]
    rates_hz = [counts[channel] / seconds for channel in kept]
    return Header([labels[channel] for channel in kept], rates_hz, gap)


def _gap(
    file: BinaryIO, num_header: int, counts: list[int], channel: int, seconds: float
) -> Gap | None:
    """Return the first gap between data records, by their times in the annotation channel
    `channel`."""
    record_bytes = 2 * sum(counts)
    before = num_header + 2 * sum(counts[:channel])
    num_records = (file.seek(0, 2) - num_header) // record_bytes
    first = 0.0
    for number in range(num_records):
        file.seek(before + number * record_bytes)
        time = float(file.read(2 * counts[channel]).partition(END_OF_TIME)[0])
        first = first if number else time
        missing = time - first - number * seconds
        if abs(missing) > seconds / max(counts) / 2:  # half a sample
            return Gap(number * seconds, missing)
    return None


def _text(field: bytes) -> str:
    return field.decode("latin-1").strip()


def _number(field: bytes) -> float:
    return float(_text(field).strip("\0").replace(",", "."))
