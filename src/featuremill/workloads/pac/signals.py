"""Cut recordings into segments, and write these to payloads.

A recording is read by one segment of some channels at a time. A payload has the samples and the
sampling rate, and so all that a computation needs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.kit.errors import UserError
from featuremill.kit.files import refuse_unreadable
from featuremill.kit.reasons import Kind
from featuremill.kit.text import clipped, one_line
from featuremill.workload import Record
from featuremill.workloads.pac import recordings
from featuremill.workloads.pac.options import Options
from featuremill.workloads.pac.recordings import DATA, RATE, Recording, Samples, Span

HEADER = struct.Struct("<dII")
"""The header of a payload: the sampling rate in Hz, and the numbers of neighbouring samples before
and after the segment."""
MOST_SAMPLES = 2_000_000
"""The largest number of samples of a segment; a sample takes about 50 bytes for each band."""
BLOCK_BYTES = 2**26
"""The largest size of the samples, in float64, of the channels that are read at a time."""
LEFT_OVER = "what follows is shorter than a segment and left out"
MARKED_BAD = "marked as bad in the recording"
BAD_SPAN = Kind(
    "bad_span",
    ("a span that the recording marks as bad",),
    "mne's own tools leave such spans out, too: take other segments (options.segment_seconds), or "
    "remove the annotation.",
)
MOST_OFFSET = 1000
"""The largest mean of a segment, in its standard deviations, for which float32 is precise."""
NO_SAMPLES = np.empty(0)


class Signal(NamedTuple):
    rate_hz: float
    samples_T: npt.NDArray[np.float64]
    before_T: npt.NDArray[np.float64] = NO_SAMPLES
    """The samples before the segment, as many as the longest filter reads."""
    after_T: npt.NDArray[np.float64] = NO_SAMPLES


def payload_of(samples: Samples, rate_hz: float, num_before: int = 0, num_after: int = 0) -> bytes:
    """Return the payload of a segment, with samples in float32. The first `num_before` and the last
    `num_after` samples are its neighbours. A large mean is subtracted, as float32 would otherwise
    lose the signal."""
    header = HEADER.pack(rate_hz, num_before, num_after)
    segment = np.asarray(samples[num_before : len(samples) - num_after], np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = segment.mean(), segment.std()
        if deviation and abs(mean) > MOST_OFFSET * deviation:
            samples = samples - mean
        return header + np.ascontiguousarray(samples, "<f4").tobytes()


def num_samples_of(payload: bytes) -> int:
    _, num_before, num_after = HEADER.unpack_from(payload)
    return (len(payload) - HEADER.size) // 4 - int(num_before) - int(num_after)


def signal_of(payload: bytes) -> Signal:
    rate_hz, num_before, num_after = HEADER.unpack_from(payload)
    samples = np.frombuffer(payload, "<f4", offset=HEADER.size).astype(np.float64)
    end = len(samples) - num_after
    return Signal(rate_hz, samples[num_before:end], samples[:num_before], samples[end:])


def records(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Yield the segments of each channel of `inputs`. Ids are `file:channel:segment`, with segments
    counted from 1.

    Raises:
        UserError: a file is no recording, has no sampling rate, or does not fit the options.
    """
    for path in inputs:
        refuse_unreadable(path)
        recordings.refuse_unknown(path)
    for path in inputs:
        yield from _segments(path, options)


def _segments(path: Path, options: Options) -> Iterator[Record]:
    recording = recordings.open_recording(path, options.channels)
    rate_hz = _rate(path, recording, options)
    size, step = _sizes(path, recording, rate_hz, options)
    chosen = _chosen(path, recording, options)
    starts = range(0, recording.num_samples - size + 1, step)
    is_left_over = starts[-1] + size < recording.num_samples
    at_once = max(1, BLOCK_BYTES // (8 * size))
    name, number, num_seen = recordings.stem_of(path), 0, options.num_seen(rate_hz)
    starts_of_epochs = [(epoch, start) for epoch in range(recording.num_epochs) for start in starts]
    for segment, (epoch, start) in enumerate(starts_of_epochs, 1):
        first_read = max(0, start - num_seen)
        last_read = min(recording.num_samples, start + size + num_seen)
        near = [
            span for span in recording.spans if span.stop >= first_read and span.start <= last_read
        ]
        for first in range(0, len(chosen), at_once):
            indices = chosen[first : first + at_once]
            with recordings.reading(path):
                rows = recording.read(indices, epoch, first_read, last_read)
            for index, samples in zip(indices, rows, strict=True):
                number += 1
                channel = recording.channels[index]
                notes = [MARKED_BAD] if channel in recording.bad else []
                notes += [LEFT_OVER] if is_left_over and start == starts[-1] else []
                seconds = f"{start / rate_hz:g} to {(start + size) / rate_hz:g} s"
                spans = [span for span in near if channel in (span.channels or (channel,))]
                reason = _reason(spans, start, start + size, rate_hz)
                low = max([first_read, *(span.stop for span in spans if span.stop <= start)])
                high = min([last_read, *(s.start for s in spans if s.start >= start + size)])
                whole = samples[low - first_read : high - first_read]
                of_epoch = f", epoch {epoch + 1}" if recording.num_epochs > 1 else ""
                yield Record(
                    id=f"{name}:{channel}:{segment}",
                    description=f"{channel}{of_epoch}, {seconds}",
                    payload=b"" if reason else _payload(whole, rate_hz, start - low, size),
                    source=str(path),
                    line=number,
                    reason=reason,
                    note="; ".join(notes),
                    length=size,
                )


def _reason(spans: Sequence[Span], start: int, stop: int, rate_hz: float) -> str:
    """Return the reason for a segment that overlaps a bad span; else ""."""
    for span in spans:
        if span.start < stop and span.stop > start:
            first, last = span.start / rate_hz, span.stop / rate_hz
            when = f"{first:g} to {last:g} s" if last > first else f"at {first:g} s"
            return BAD_SPAN.reason(f"{clipped(one_line(span.name))}, {when}")
    return ""


def _payload(samples: Samples, rate_hz: float, start: int, size: int) -> bytes:
    """Return the payload of the segment of `size` samples from `start`. Its neighbours end before
    the first sample that is not finite."""
    with np.errstate(over="ignore"):
        is_bad = ~np.isfinite(np.asarray(samples, "<f4"))
    before, after = np.flatnonzero(is_bad[:start]), np.flatnonzero(is_bad[start + size :])
    first = int(before[-1]) + 1 if len(before) else 0
    last = start + size + int(after[0]) if len(after) else len(samples)
    return payload_of(samples[first:last], rate_hz, start - first, last - start - size)


def _rate(path: Path, recording: Recording, options: Options) -> float:
    """Return the sampling rate; raise UserError if a band is not below half of it."""
    stated, option_hz = recording.rate_hz, options.sampling_rate_hz
    if stated and option_hz and stated != option_hz:
        raise UserError(
            f"{path}: it has {stated:g} samples a second, and options.{RATE} is {option_hz:g}; "
            "leave the option out, or give this file a run of its own."
        )
    rate_hz = stated or option_hz
    if rate_hz is None:
        raise UserError(
            f"{path}: its sampling rate is missing; set {RATE} under options, or "
            f"save an .npz with {DATA} and {RATE}."
        )
    for (low, high), _ in options.bands:
        if high >= rate_hz / 2:
            raise UserError(
                f"{path}: at {rate_hz:g} samples a second there is nothing from {rate_hz / 2:g} Hz "
                f"on, and a band is {low:g} to {high:g} Hz; lower it in options, or take it out."
            )
    return rate_hz


def _sizes(path: Path, recording: Recording, rate_hz: float, options: Options) -> tuple[int, int]:
    """Return the number of samples of a segment, and between the starts of two segments."""
    size = step = recording.num_samples
    if options.segment_seconds is not None:
        size = round(options.segment_seconds * rate_hz)
        step = max(1, round((options.segment_seconds - options.overlap_seconds) * rate_hz))
    cycles, low = options.least_cycles
    if size < cycles / low * rate_hz or size <= options.num_seen(rate_hz):
        raise UserError(
            f"{path}: a segment of {size / rate_hz:g} s is shorter than {cycles:g} cycles of the "
            f"lowest band ({low:g} Hz: {cycles / low:g} s); take longer segments, or leave that "
            "band out."
        )
    if size > recording.num_samples:
        raise UserError(
            f"{path}: it is {recording.num_samples / rate_hz:g} s long, and a segment has "
            f"{size / rate_hz:g} s; lower options.segment_seconds, or take the file out."
        )
    if size > MOST_SAMPLES:
        raise UserError(
            f"{path}: a segment of {size:,} samples is too long, {MOST_SAMPLES:,} at most; set "
            "options.segment_seconds."
        )
    return size, step


def _chosen(path: Path, recording: Recording, options: Options) -> list[int]:
    """Return the indices of the channels to compute, in the order of the file."""
    names = list(recording.channels)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{path}: two channels are called {twice!r}; rename one of them.")
    if missing := [name for name in options.channels if name not in names]:
        raise UserError(
            f"{path}: there is no channel {missing[0]!r}; it has {recordings.shortened(names)}: "
            "fix options.channels."
        )
    return [index for index, name in enumerate(names) if name in (options.channels or names)]
