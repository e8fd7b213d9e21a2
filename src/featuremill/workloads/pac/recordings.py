"""Open recordings: .npy and .npz with NumPy alone, EDF, FIF and BrainVision with mne.

No whole file is in memory: arrays are memory-mapped, and mne reads only what is wanted.

mne resamples all channels of an EDF to the highest rate, and reads an EDF+D as if it had no gaps.
So the rates and gaps are read here. EDF: Kemp et al. 1992, doi:10.1016/0013-4694(92)90009-7; EDF+,
whose annotations are the samples of a separate channel: Kemp and Olivan 2003,
doi:10.1016/S1388-2457(03)00123-8.
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
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from featuremill.kit.errors import UserError
from featuremill.kit.text import clipped, listed

ARRAYS = (".npy", ".npz")
EDF = ".edf"
BY_MNE = (EDF, ".fif", ".fif.gz", ".vhdr")
EPOCHS = ("-epo", "_epo")
"""Suffixes in the names of mne's files of epochs, before .fif."""
DATA, RATE, CHANNELS = "data", "sampling_rate_hz", "channels"
"""The names of the arrays in an .npz; CHANNELS is optional."""
BAD = "BAD"
"""The beginning of the annotations of bad spans, in upper or lower case: mne's convention."""
ANNOTATIONS = ("EDF Annotations", "BDF Annotations")
BEFORE_SAMPLES = 216
"""Bytes per channel in the header before the numbers of samples in a data record."""
END_OF_TIME = b"\x14"
"""The byte after the time of a data record in an annotation channel."""
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


def _suffix(path: Path) -> str:
    """Return the suffix of a file, which is its format; "" if it is unknown."""
    name = path.name.lower()
    return next((suffix for suffix in (*ARRAYS, *BY_MNE) if name.endswith(suffix)), "")


def stem_of(path: Path) -> str:
    return path.name[: -len(_suffix(path))]


def refuse_unknown(path: Path) -> None:
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
def reading(path: Path) -> Iterator[None]:
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


def open_recording(path: Path, channels: Sequence[str]) -> Recording:
    """Return the recording in a file; `channels` is the option of that name."""
    suffix = _suffix(path)
    with reading(path):
        if suffix in BY_MNE:
            return _by_mne(path, channels)
        if suffix == ".npy":
            return _of_array(path, np.load(path, mmap_mode="r", allow_pickle=False), None, None)
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
            labels = _texts(path, arrays, CHANNELS) if CHANNELS in names else None
        return _of_array(path, _mapped(path, f"{DATA}.npy"), rate_hz, labels)


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

    has_epochs = stem_of(path).endswith(EPOCHS)

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
    header = edf_header(path)
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
            f"{rate:g} Hz: {shortened([name for name in computed if rate_of[name] == rate])}"
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


class Gap(NamedTuple):
    """The first gap: its time from the start, and its length, both in seconds."""

    after: float
    missing: float


class Header(NamedTuple):
    labels: list[str]
    """The labels of the channels without annotations, in the order of the file."""
    rates_hz: list[float]
    gap: Gap | None


def edf_header(path: Path) -> Header:
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
        labels = [
            about[16 * channel : 16 * channel + 16].decode("latin-1").strip()
            for channel in range(num_channels)
        ]
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


def _number(field: bytes) -> float:
    return float(field.decode("latin-1").strip().strip("\0").replace(",", "."))


def shortened(names: Sequence[str]) -> str:
    """Return up to ten of the names as a text, with the number of the others."""
    others = [f"{len(names) - 10:,} others"] if len(names) > 10 else []
    return listed([*names[:10], *others])
