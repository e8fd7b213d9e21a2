"""Recordings become segments: .npy and .npz by NumPy alone, EDF, FIF and BrainVision by mne.

Nothing is read whole: arrays are mapped into memory, and of a recording one segment of some
channels is held at a time. The payload of a record says its sampling rate, so that it is all that
computing needs.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.base.errors import UserError
from featuremill.base.text import clipped
from featuremill.base.words import listed
from featuremill.inputs import source
from featuremill.workload import Record
from featuremill.workloads.pac.options import Options

ARRAYS = (".npy", ".npz")
BY_MNE = (".edf", ".fif", ".fif.gz", ".vhdr")
DATA, RATE, CHANNELS = "data", "sampling_rate_hz", "channels"
"""What the arrays in an .npz are called; the last one may be missing."""
HEADER = struct.Struct("<d")
"""The sampling rate in Hz, in front of a payload's samples."""
MOST_SAMPLES = 2_000_000
"""Of one segment: computing it takes about 50 bytes a sample and band."""
BLOCK_BYTES = 2**26
"""Samples, as float64, of the channels that are read at a time."""
LEFT_OVER = "what follows is shorter than a segment and left out"
MARKED_BAD = "marked as bad in the recording"

Samples = npt.NDArray[Any]
log = logging.getLogger("featuremill.pac")


class Recording(NamedTuple):
    """What a file holds."""

    channels: Sequence[str]
    rate_hz: float | None
    """None where the file does not say it."""
    num_samples: int
    read: Callable[[Sequence[int], int, int], Samples]
    """Returns the samples of some channels from a first to before a last one, (channels, samples).
    """
    bad: frozenset[str] = frozenset()
    """Channels that somebody marked as bad."""


class Signal(NamedTuple):
    """One channel's segment."""

    rate_hz: float
    samples_T: npt.NDArray[np.float64]


def payload_of(samples: Samples, rate_hz: float) -> bytes:
    """Return a segment as a payload: the sampling rate, then its samples in float32."""
    return HEADER.pack(rate_hz) + np.ascontiguousarray(samples, "<f4").tobytes()


def num_samples_of(payload: bytes) -> int:
    """Return how many samples a payload holds."""
    return (len(payload) - HEADER.size) // 4


def signal_of(payload: bytes) -> Signal:
    """Return the segment that a payload holds."""
    (rate_hz,) = HEADER.unpack_from(payload)
    samples_T = np.frombuffer(payload, "<f4", offset=HEADER.size).astype(np.float64)
    return Signal(rate_hz, samples_T)


def segments(inputs: Sequence[Path], options: Options) -> Iterator[Record]:
    """Stream the segments of each channel of `inputs`, as `file:channel:segment`, counted from 1.

    Raises:
        UserError: for a file that is none, or has no sampling rate, and for options that it cannot
            meet.
    """
    for path in inputs:
        source.check(path)
        _refuse_suffix(path)
    for path in inputs:
        yield from _segments(path, options)


def _segments(path: Path, options: Options) -> Iterator[Record]:
    recording = _opened(path)
    rate_hz = _rate(path, recording, options)
    size, step = _sizes(path, recording, rate_hz, options)
    chosen = _chosen(path, recording, options)
    starts = range(0, recording.num_samples - size + 1, step)
    is_left_over = starts[-1] + size < recording.num_samples
    at_once = max(1, BLOCK_BYTES // (8 * size))
    name, number = _stem(path), 0
    for segment, start in enumerate(starts, 1):
        for first in range(0, len(chosen), at_once):
            places = chosen[first : first + at_once]
            with _reading(path):
                rows = recording.read(places, start, start + size)
            for place, samples in zip(places, rows, strict=True):
                number += 1
                channel = recording.channels[place]
                notes = [MARKED_BAD] if channel in recording.bad else []
                notes += [LEFT_OVER] if is_left_over and start == starts[-1] else []
                seconds = f"{start / rate_hz:g} to {(start + size) / rate_hz:g} s"
                yield Record(
                    id=f"{name}:{channel}:{segment}",
                    description=f"{channel}, {seconds}",
                    payload=payload_of(samples, rate_hz),
                    source=str(path),
                    line=number,
                    note="; ".join(notes),
                    length=size,
                )


def _rate(path: Path, recording: Recording, options: Options) -> float:
    """Return the sampling rate, once all bands are below half of it."""
    told, given = recording.rate_hz, options.sampling_rate_hz
    if told and given and told != given:
        raise UserError(
            f"{path}: it says {told:g} samples a second, and options.{RATE} says {given:g}; leave "
            "the option out, or give this file a run of its own."
        )
    rate_hz = told or given
    if rate_hz is None:
        raise UserError(
            f"{path}: nothing says how many samples a second it has; set {RATE} under options, or "
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
    """Return the samples of a segment, and from one's beginning to the next one's."""
    size = step = recording.num_samples
    if options.segment_seconds is not None:
        size = round(options.segment_seconds * rate_hz)
        step = max(1, round((options.segment_seconds - options.overlap_seconds) * rate_hz))
    cycles, low = options.least_cycles
    if size < cycles / low * rate_hz:
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
    """Return the places of the channels that are computed, in the order of the file."""
    names = list(recording.channels)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{path}: two channels are called {twice!r}; rename one of them.")
    if missing := [name for name in options.channels if name not in names]:
        raise UserError(
            f"{path}: there is no channel {missing[0]!r}; it has {_some(names)}: mend "
            "options.channels."
        )
    return [place for place, name in enumerate(names) if name in (options.channels or names)]


def _some(names: Sequence[str], most: int = 10) -> str:
    shown = list(names[:most])
    return listed(shown if len(names) <= most else [*shown, f"{len(names) - most:,} others"])


# Files


def _suffix(path: Path) -> str:
    """Return the suffix that says what a file is; "" for none that is read."""
    name = path.name.lower()
    return next((suffix for suffix in (*ARRAYS, *BY_MNE) if name.endswith(suffix)), "")


def _stem(path: Path) -> str:
    return path.name[: -len(_suffix(path))]


def _refuse_suffix(path: Path) -> None:
    suffix = _suffix(path)
    if not suffix:
        known = ", ".join((*ARRAYS, *BY_MNE))
        hint = "give the .vhdr beside it" if path.suffix in (".eeg", ".vmrk") else f"give {known}"
        raise UserError(f"{path}: this is no recording that is read here; {hint}.")
    if suffix in BY_MNE and find_spec("mne") is None:
        raise UserError(
            f"{path}: {suffix} is read by mne, which is not installed in this Python; "
            "pip install 'featuremill[pac]', or save the samples as .npz."
        )


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Tell what goes wrong in reading as one sentence about the file."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # mne raises all kinds
        told = clipped(" ".join(str(error).split()).rstrip(".") or type(error).__name__)
        raise UserError(
            f"{path}: this recording cannot be read ({told}); export it again."
        ) from None


def _opened(path: Path) -> Recording:
    suffix = _suffix(path)
    with _reading(path):
        if suffix in BY_MNE:
            return _by_mne(path)
        if suffix == ".npy":
            return _of_array(path, np.load(path, mmap_mode="r", allow_pickle=False), None, None)
        return _of_archive(path)


def _of_archive(path: Path) -> Recording:
    with np.load(path, allow_pickle=False) as arrays:
        names = set(arrays.files)
        if DATA not in names:
            raise UserError(
                f"{path}: it holds no array called {DATA!r}; save it as numpy.savez(file, "
                f"{DATA}=samples, {RATE}=1000.0, {CHANNELS}=names)."
            )
        rate_hz = float(arrays[RATE]) if RATE in names else None
        channels = [str(name) for name in arrays[CHANNELS]] if CHANNELS in names else None
    return _of_array(path, _mapped(path, f"{DATA}.npy"), rate_hz, channels)


def _mapped(path: Path, name: str) -> Samples:
    """Return an array of an .npz as it lies in the file, which NumPy itself would read whole."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        member = archive.getinfo(name)
        if member.compress_type != zipfile.ZIP_STORED:
            raise UserError(
                f"{path}: {DATA!r} is compressed, so that segments of it cannot be read; save it "
                "with numpy.savez."
            )
        with archive.open(name) as header:
            version = np.lib.format.read_magic(header)
            read = np.lib.format.read_array_header_1_0
            if version != (1, 0):
                read = np.lib.format.read_array_header_2_0
            shape, is_fortran, dtype = read(header)
            num_header = header.tell()
        file.seek(member.header_offset + 26)  # of the local header: two lengths, then what they are
        lengths = struct.unpack("<HH", file.read(4))
        start = member.header_offset + 30 + sum(lengths) + num_header
    return np.memmap(path, dtype, "r", start, shape, "F" if is_fortran else "C")


def _of_array(
    path: Path, samples: Samples, rate_hz: float | None, channels: Sequence[str] | None
) -> Recording:
    """Return the recording whose samples are an array, (channels, samples) or (samples,)."""
    if samples.dtype.kind not in "iuf" or samples.ndim not in (1, 2) or not samples.size:
        raise UserError(
            f"{path}: an array of {samples.dtype} and shape {samples.shape} is no recording; save "
            "numbers, a row a channel."
        )
    rows = samples.reshape(1, -1) if samples.ndim == 1 else samples
    if rows.shape[0] > rows.shape[1]:
        raise UserError(
            f"{path}: it has {rows.shape[0]:,} rows of {rows.shape[1]:,}, and a row is a channel; "
            "transpose it."
        )
    if channels is None:
        channels = [f"ch{number}" for number in range(1, len(rows) + 1)]
    elif len(channels) != len(rows):
        raise UserError(
            f"{path}: it names {len(channels):,} channels and has {len(rows):,} rows; mend one of "
            "the two."
        )
    if rate_hz is not None and not 0 < rate_hz < float("inf"):
        raise UserError(f"{path}: {RATE} is {rate_hz:g}; give samples a second.")
    return Recording(
        channels,
        rate_hz,
        rows.shape[1],
        lambda places, start, stop: rows[list(places), start:stop],
    )


def _by_mne(path: Path) -> Recording:
    import mne

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        raw = mne.io.read_raw(path, preload=False, verbose="WARNING")
        kinds = {"meg": True, "eeg": True, "seeg": True, "ecog": True, "dbs": True}
        places = mne.pick_types(raw.info, ref_meg=False, exclude=[], **kinds)
    for warning in told:
        log.warning("%s: mne says: %s", path, " ".join(str(warning.message).split()))
    if not len(places):
        raise UserError(
            f"{path}: none of its channels is MEG, EEG, sEEG, ECoG or DBS; set its channel types."
        )

    def read(chosen: Sequence[int], start: int, stop: int) -> Samples:
        wanted = [int(places[place]) for place in chosen]
        found: Samples = raw.get_data(wanted, start, stop, verbose="ERROR")
        return found

    names = [raw.ch_names[place] for place in places]
    rate_hz = float(raw.info["sfreq"])
    return Recording(names, rate_hz, int(raw.n_times), read, frozenset(raw.info["bads"]))
