"""Read recordings and cut them into segments: .npy and .npz with NumPy alone, EDF, FIF and
BrainVision with mne.

No whole file is in memory: arrays are memory-mapped, and other files are read by one segment of
some channels at a time. A payload has the samples and the sampling rate, and so all that a
computation needs.
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

from featuremill.kit.errors import UserError
from featuremill.kit.files import refuse_unreadable
from featuremill.kit.reasons import Kind
from featuremill.kit.text import clipped, listed, one_line
from featuremill.workload import Record
from featuremill.workloads.pac import edf_header
from featuremill.workloads.pac.options import Options

ARRAYS = (".npy", ".npz")
EDF = ".edf"
BY_MNE = (EDF, ".fif", ".fif.gz", ".vhdr")
EPOCHS = ("-epo", "_epo")
"""Suffixes in the names of mne's files of epochs, before .fif."""
DATA, RATE, CHANNELS = "data", "sampling_rate_hz", "channels"
"""The names of the arrays in an .npz; CHANNELS is optional."""
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
BAD = "BAD"
"""The beginning of the annotations of such spans, in upper or lower case: mne's convention."""
MOST_OFFSET = 1000
"""The largest mean of a segment, in its standard deviations, for which float32 is precise."""

Samples = npt.NDArray[Any]
log = logging.getLogger("featuremill.pac")


class Span(NamedTuple):
    """A range of samples that is marked as bad; an empty one is a boundary between recordings."""

    start: int
    stop: int
    name: str
    channels: Sequence[str]
    """The marked channels; empty for all."""


class Recording(NamedTuple):
    channels: Sequence[str]
    rate_hz: float | None
    """The sampling rate; None if the file has none."""
    num_samples: int
    read: Callable[[Sequence[int], int, int, int], Samples]
    """Returns samples (channels, samples); the arguments are the indices of channels, the epoch,
    the first sample, and the sample after the last."""
    num_epochs: int = 1
    """The number of epochs, such as trials, of `num_samples` each."""
    bad: frozenset[str] = frozenset()
    spans: Sequence[Span] = ()


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
        _refuse_suffix(path)
    for path in inputs:
        yield from _segments(path, options)


def _segments(path: Path, options: Options) -> Iterator[Record]:
    recording = _opened(path, options.channels)
    rate_hz = _rate(path, recording, options)
    size, step = _sizes(path, recording, rate_hz, options)
    chosen = _chosen(path, recording, options)
    starts = range(0, recording.num_samples - size + 1, step)
    is_left_over = starts[-1] + size < recording.num_samples
    at_once = max(1, BLOCK_BYTES // (8 * size))
    name, number, num_seen = _stem(path), 0, options.num_seen(rate_hz)
    starts_of_epochs = [(epoch, start) for epoch in range(recording.num_epochs) for start in starts]
    for segment, (epoch, start) in enumerate(starts_of_epochs, 1):
        first_read = max(0, start - num_seen)
        last_read = min(recording.num_samples, start + size + num_seen)
        near = [
            span for span in recording.spans if span.stop >= first_read and span.start <= last_read
        ]
        for first in range(0, len(chosen), at_once):
            indices = chosen[first : first + at_once]
            with _reading(path):
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
            f"{path}: there is no channel {missing[0]!r}; it has {_some(names)}: fix "
            "options.channels."
        )
    return [index for index, name in enumerate(names) if name in (options.channels or names)]


def _some(names: Sequence[str], most: int = 10) -> str:
    shown = list(names[:most])
    return listed(shown if len(names) <= most else [*shown, f"{len(names) - most:,} others"])


# Files


def _suffix(path: Path) -> str:
    """Return the suffix of a file, which is its format; "" if it is unknown."""
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
    """Convert any exception to a UserError about the file."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # mne raises many kinds
        problem = clipped(" ".join(str(error).split()).rstrip(".") or type(error).__name__)
        raise UserError(
            f"{path}: this recording cannot be read ({problem}); export it again."
        ) from None


def _opened(path: Path, channels: Sequence[str]) -> Recording:
    """Return the recording in a file; `channels` is the option of that name."""
    suffix = _suffix(path)
    with _reading(path):
        if suffix in BY_MNE:
            return _by_mne(path, channels)
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
        rate_hz = None
        if RATE in names:
            rate_hz = float(_loaded(path, arrays, RATE, "iuf", 0, "one number"))
        channels = _texts(path, arrays, CHANNELS) if CHANNELS in names else None
    return _of_array(path, _mapped(path, f"{DATA}.npy"), rate_hz, channels)


def _loaded(
    path: Path, arrays: Any, name: str, kinds: str, most_axes: int, instead: str
) -> Samples:
    """Return a small array of an .npz without axes of length 1, which arrays of MATLAB have.
    `kinds` are codes of NumPy's dtypes; error messages advise to save `instead`."""
    try:
        array: Samples = arrays[name].squeeze()
    except ValueError:
        raise UserError(
            f"{path}: its array {name!r} has objects of Python in it, as a cell of MATLAB becomes; "
            "save plain numbers, or a list of texts."
        ) from None
    if array.ndim > most_axes or array.dtype.kind not in kinds:
        raise UserError(
            f"{path}: its array {name!r} has the type {array.dtype} and the shape {array.shape}; "
            f"save {instead}."
        )
    return array


def _texts(path: Path, arrays: Any, name: str) -> list[str]:
    """Return the texts of an array; those from HDF5 are bytes."""
    array = _loaded(path, arrays, name, "USiu", 1, "a list of names")
    try:
        return [
            (each.decode() if isinstance(each, bytes) else str(each)).strip()
            for each in np.atleast_1d(array).tolist()
        ]
    except UnicodeDecodeError:
        raise UserError(f"{path}: its array {name!r} is not in UTF-8; save texts.") from None


def _mapped(path: Path, name: str) -> Samples:
    """Return a memory map of an array in an .npz; `numpy.load` would read all of it."""
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
        if dtype.hasobject:
            raise UserError(
                f"{path}: its array {DATA!r} has objects of Python in it; save numbers."
            )
        file.seek(member.header_offset + 26)  # the lengths of the name and of the extra field
        lengths = struct.unpack("<HH", file.read(4))
        start = member.header_offset + 30 + sum(lengths) + num_header
    return np.memmap(path, dtype, "r", start, shape, "F" if is_fortran else "C")


def _of_array(
    path: Path, samples: Samples, rate_hz: float | None, channels: Sequence[str] | None
) -> Recording:
    """Return the recording of an array: (samples,), (channels, samples), or (epochs, channels,
    samples)."""
    if samples.dtype.kind not in "iuf" or samples.ndim not in (1, 2, 3) or not samples.size:
        raise UserError(
            f"{path}: an array of {samples.dtype} and shape {samples.shape} is no recording; save "
            "numbers as (channels, samples), or as (epochs, channels, samples)."
        )
    epochs = samples.reshape((1,) * (3 - samples.ndim) + samples.shape)
    num_epochs, num_channels, num_samples = epochs.shape
    if num_channels > num_samples:
        raise UserError(
            f"{path}: it has {num_channels:,} rows of {num_samples:,}, and a row is a channel; "
            "transpose it."
        )
    if channels is None:
        channels = [f"ch{number}" for number in range(1, num_channels + 1)]
    elif len(channels) != num_channels:
        raise UserError(
            f"{path}: it names {len(channels):,} channels and has {num_channels:,} rows; fix one "
            "of the two."
        )
    if rate_hz is not None and not 0 < rate_hz < float("inf"):
        raise UserError(f"{path}: {RATE} is {rate_hz:g}; give samples a second.")
    return Recording(
        channels,
        rate_hz,
        num_samples,
        lambda indices, epoch, start, stop: epochs[epoch][list(indices), start:stop],
        num_epochs,
    )


def _by_mne(path: Path, channels: Sequence[str]) -> Recording:
    import mne

    has_epochs = _stem(path).endswith(EPOCHS)

    def opened(**more: Any) -> tuple[Any, list[int]]:
        """Return the recording as mne reads it, and the indices of its brain channels."""
        data: Any
        if has_epochs:
            data = mne.read_epochs(path, preload=False, verbose="WARNING")
        else:
            data = mne.io.read_raw(path, preload=False, verbose="WARNING", **more)
        kinds = {"meg": True, "eeg": True, "seeg": True, "ecog": True, "dbs": True}
        return data, mne.pick_types(data.info, ref_meg=False, exclude=[], **kinds).tolist()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data, picks = opened()
        if _suffix(path) == EDF and (labels := _of_one_rate(path, data, picks, channels)):
            data, picks = opened(include=labels)
    for warning in caught:
        log.warning("%s: from mne: %s", path, " ".join(str(warning.message).split()))
    if not picks:
        raise UserError(
            f"{path}: none of its channels is MEG, EEG, sEEG, ECoG or DBS; set its channel types."
        )

    def read(chosen: Sequence[int], epoch: int, start: int, stop: int) -> Samples:
        wanted = [picks[index] for index in chosen]
        samples: Samples
        if has_epochs:
            (samples,) = data[epoch].get_data(wanted, verbose="ERROR")
            return samples[:, start:stop]
        samples = data.get_data(wanted, start, stop, verbose="ERROR")
        return samples

    names = [data.ch_names[index] for index in picks]
    rate_hz, bad = float(data.info["sfreq"]), frozenset(data.info["bads"])
    if has_epochs:
        return Recording(names, rate_hz, len(data.times), read, len(data), bad)
    return Recording(names, rate_hz, int(data.n_times), read, bad=bad, spans=_bad_spans(data))


def _of_one_rate(
    path: Path, data: Any, indices: Sequence[int], channels: Sequence[str]
) -> list[str]:
    """Return the labels of the channels of an EDF that have the sampling rate of the computed ones;
    [] if all channels have it. mne would resample all channels to the highest rate.

    Raises:
        UserError: the computed channels have several rates, or the data has gaps.
    """
    header = edf_header.read(path)
    if header.gap:
        raise UserError(
            f"{path}: {header.gap.missing:g} s are missing in this EDF+D after "
            f"{header.gap.after:g} s, and it would be read as if they were not; export each "
            "stretch without a gap as a file of its own."
        )
    rate_of = dict(zip(data.ch_names, header.rates_hz, strict=True))
    names = [data.ch_names[index] for index in indices]
    computed = [name for name in names if name in channels] or names
    rates = sorted({rate_of[name] for name in computed}, reverse=True)
    if len(rates) > 1:
        of_rates = "; ".join(
            f"{rate:g} Hz: {_some([name for name in computed if rate_of[name] == rate])}"
            for rate in rates
        )
        raise UserError(
            f"{path}: its channels have different sampling rates ({of_rates}), and a run computes "
            "those of one; name these in options.channels."
        )
    if set(header.rates_hz) <= set(rates):
        return []
    by_label = zip(header.labels, header.rates_hz, strict=True)
    return [label for label, rate in by_label if rate in rates]


def _bad_spans(data: Any) -> list[Span]:
    rate_hz, spans = float(data.info["sfreq"]), []
    for note in data.annotations:
        if str(note["description"]).upper().startswith(BAD):
            start = round((note["onset"] - data.first_time) * rate_hz)
            stop = start + round(note["duration"] * rate_hz)
            spans.append(Span(start, stop, str(note["description"]), note.get("ch_names", ())))
    return spans
