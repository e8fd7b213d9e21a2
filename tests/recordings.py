"""Recordings for the tests of the workload pac: made up ones in each format, and real ones."""

import subprocess
import sys
import tarfile

import numpy as np
import pytest
from pypi import fetched

RATE_HZ = 400.0
CHANNELS = ("A1", "A2", "B1")
MNE_HFO_SHA256 = "4f48854c43456f9383a386f8efda292b49801a89c2c4592ffdd126830de65a61"


def noise(num_channels=3, seconds=6, rate_hz=RATE_HZ, seed=0):
    """Return (channels, samples) float32, whole numbers so that every format holds them."""
    drawn = np.random.default_rng(seed)
    walk = drawn.standard_normal((num_channels, int(seconds * rate_hz))).cumsum(1)
    return (np.round(1000 * walk / abs(walk).max()) + 0.0).astype(np.float32)  # no minus zero


def write_npz(path, data, rate_hz=RATE_HZ, channels=CHANNELS):
    np.savez(path, data=data, sampling_rate_hz=rate_hz, channels=channels)
    return path


def write_brainvision(path, data, rate_hz=RATE_HZ, channels=CHANNELS):
    """Write .vhdr, .vmrk and .eeg by BrainVision's core format 1.0; the numbers are volts."""
    lines = [
        "Brain Vision Data Exchange Header File Version 1.0",
        *("[Common Infos]", "Codepage=UTF-8", f"DataFile={path.stem}.eeg"),
        *(f"MarkerFile={path.stem}.vmrk", "DataFormat=BINARY", "DataOrientation=MULTIPLEXED"),
        *(f"NumberOfChannels={len(channels)}", f"SamplingInterval={1e6 / rate_hz}"),
        *("[Binary Infos]", "BinaryFormat=IEEE_FLOAT_32", "[Channel Infos]"),
        *(f"Ch{number}={name},,1,V" for number, name in enumerate(channels, 1)),
    ]
    path.write_text("\n".join(lines) + "\n")
    path.with_suffix(".eeg").write_bytes(np.ascontiguousarray(data.T, "<f4").tobytes())
    marks = [
        "Brain Vision Data Exchange Marker File, Version 1.0",
        *("[Common Infos]", f"DataFile={path.stem}.eeg", "[Marker Infos]"),
        "Mk1=New Segment,,1,1,0,20200101000000000000",
    ]
    path.with_suffix(".vmrk").write_text("\n".join(marks) + "\n")
    return path


def write_edf(path, data, rate_hz=RATE_HZ, channels=CHANNELS):
    """Write EDF (Kemp et al. 1992), a data record a second; the numbers are volts."""
    return write_edf_of(path, list(data), [rate_hz] * len(data), channels)


def write_edf_of(path, signals, rates_hz, channels, kind="", annotations=None):
    """The same of channels with rates of their own. `kind` is EDF+C or EDF+D; `annotations` returns
    those of a data record, by its number (Kemp and Olivan 2003), which stand between the first
    channel and the others."""
    per_record, channels, signals = list(map(int, rates_hz)), list(channels), list(signals)
    num_records = len(signals[0]) // per_record[0]
    blocks = [
        signal.reshape(num_records, -1).astype("<i2")
        for signal in (np.asarray(signal) for signal in signals)
    ]
    if annotations is not None:
        texts = [annotations(number).ljust(120, b"\0") for number in range(num_records)]
        channels.insert(1, "EDF Annotations")
        per_record.insert(1, 60)
        blocks.insert(1, np.frombuffer(b"".join(texts), "<i2").reshape(num_records, -1))
    num_channels = len(channels)

    def fields(width, *values):
        return b"".join(str(value).ljust(width).encode() for value in values)

    def each(width, value):
        return fields(width, *[value] * num_channels)

    head = [
        *(fields(8, 0), fields(80, "X X X X", "Startdate X X X X")),
        *(fields(8, "01.01.20", "00.00.00"), fields(8, 256 * (1 + num_channels))),
        *(fields(44, kind), fields(8, num_records, 1), fields(4, num_channels)),
        *(fields(16, *channels), each(80, ""), each(8, "V"), each(8, -32768), each(8, 32767)),
        *(each(8, -32768), each(8, 32767), each(80, ""), fields(8, *per_record), each(32, "")),
    ]
    path.write_bytes(b"".join(head) + np.hstack(blocks).tobytes())
    return path


def write_fif(path, data, rate_hz=RATE_HZ, channels=CHANNELS, bad=()):
    import mne

    info = mne.create_info(list(channels), rate_hz, "seeg")
    info["bads"] = list(bad)
    raw = mne.io.RawArray(data.astype(np.float64), info, verbose="ERROR")
    raw.save(path, overwrite=True, verbose="ERROR")
    return path


def pip(*words):
    """Let pip do it; skip the test where it cannot."""
    command = [sys.executable, "-m", "pip", "-q", "--no-input", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip could not {words[0]} {words[-1]}: {done.stderr.strip()[-200:]}")


def real_ieeg(folder):
    """Return the .vhdr of a human iEEG of 50 channels, 5 s at 2 kHz: an example of mne-hfo 0.2."""
    with tarfile.open(fetched("mne-hfo==0.2", MNE_HFO_SHA256, "--no-binary", ":all:")) as packed:
        packed.extractall(folder, filter="data")
    (path,) = folder.rglob("*_ieeg.vhdr")
    return path
