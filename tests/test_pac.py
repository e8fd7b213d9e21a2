"""The workload pac: against the definition, scipy and tensorpac; what it reads and refuses."""

import io
import json
import math
import os
import warnings
from types import MappingProxyType

import mne
import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.io
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import NO_REPORT, Desk, printed_by, run_example, working_in
from recordings import (
    CHANNELS,
    RATE_HZ,
    noise,
    pip,
    real_ieeg,
    write_brainvision,
    write_edf,
    write_edf_of,
    write_fif,
    write_npz,
)
from scipy import ndimage, stats
from scipy.signal import firwin, hilbert
from test_containers import stand_in_for_conda, verbs_and_environments

from featuremill.base import reasons
from featuremill.base.devices import cpu
from featuremill.base.errors import UserError
from featuremill.contract import WorkloadContract
from featuremill.store.results import Results
from featuremill.workload import find_workload
from featuremill.workload.compute import values_of
from featuremill.workloads import pac
from featuremill.workloads.pac import coupling, recordings, signals

CPU = cpu()
FEW = {"phase_bands": [[3, 6], [6, 10]], "amplitude_bands": [[30, 50], [60, 90]]}
QUICK = {**FEW, "segment_seconds": 2, "permutations": 20}


def computed(payloads, num_devices=1, **options):
    """Return mi, z and p, (records, phase bands, amplitude bands) each."""
    asked = pac.Options.model_validate(options)
    model = pac.load(asked, [CPU] * num_devices, None)
    values = values_of(pac, model, payloads, 1)
    shape = len(payloads), len(asked.phase_bands), len(asked.amplitude_bands)
    names = [name for name in ("mi", "z", "p") if name in values.schema.names]
    return [values[name].flatten().to_numpy().reshape(shape) for name in names]


def payloads_of(data, rate_hz=RATE_HZ):
    return [signals.payload_of(row, rate_hz) for row in data]


# The definition


def tort(phase, amplitude):
    """Return the modulation index of one phase and one amplitude as Tort et al. (2010) have it."""
    bins = np.clip(np.digitize(phase, np.linspace(-np.pi, np.pi, 19)) - 1, 0, 17)
    means = np.array([amplitude[bins == k].mean() if (bins == k).any() else 0 for k in range(18)])
    shares = means / means.sum()
    entropy = -sum(share * math.log(share) for share in shares if share > 0)
    return (math.log(18) - entropy) / math.log(18)


def analytic(segment, rate_hz, **options):
    asked = pac.Options.model_validate(options)
    if not isinstance(segment, signals.Signal):
        segment = signals.Signal(rate_hz, segment)
    bank = coupling.bank(asked, rate_hz, len(segment.samples_T))
    return coupling.analytic(segment, bank, torch.from_numpy(bank.gain_BF)).numpy()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    num_samples=st.integers(2, 400),
    num_bands=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    is_slow=st.booleans(),
    permutations=st.integers(2, 40),
    num_devices=st.integers(1, 3),
)
def test_it_is_tort_s_index_of_amplitudes_rolled_by_the_offsets(
    seed, num_samples, num_bands, is_slow, permutations, num_devices
):
    drawn = np.random.default_rng(seed)
    phase = drawn.uniform(-np.pi, np.pi, (num_bands[0], num_samples))
    if is_slow:
        phase = np.angle(np.exp(1j * np.cumsum(phase / 10, 1)))
    amplitude = drawn.exponential(size=(num_bands[1], num_samples))
    offsets = drawn.integers(1, num_samples, permutations)
    given = torch.from_numpy(phase), torch.from_numpy(amplitude), offsets
    devices = [torch.device("cpu")] * num_devices
    mi, z, p = coupling.coupling(*given, devices).results()
    for row in range(num_bands[0]):
        for column in range(num_bands[1]):
            one = phase[row], amplitude[column]
            surrogates = [tort(one[0], np.roll(one[1], -shift)) for shift in offsets]
            assert mi[row, column] == pytest.approx(tort(*one), abs=1e-12)
            deviation = np.std(surrogates, ddof=1)
            if deviation > 1e-9:
                expected = (tort(*one) - np.mean(surrogates)) / deviation
                assert z[row, column] == pytest.approx(expected, abs=1e-6)
            if min(abs(np.array(surrogates) - tort(*one))) > 1e-12:  # no tie that rounding decides
                exceeding = sum(other >= tort(*one) for other in surrogates)
                assert p[row, column] == (1 + exceeding) / (1 + permutations)


def test_a_surrogate_that_equals_the_index_exceeds_it():
    """Of an amplitude that never changes all indices are the same: nothing speaks for coupling."""
    phase = np.random.default_rng(3).uniform(-np.pi, np.pi, (1, 512))
    told = torch.from_numpy(phase), torch.ones(1, 512, dtype=torch.float64), np.arange(1, 21)
    _, _, p = coupling.coupling(*told, [torch.device("cpu")]).results()
    assert p[0, 0] == 1


def test_a_phase_on_an_edge_is_of_the_bin_above_and_pi_of_the_last():
    edges = torch.linspace(-math.pi, math.pi, 19, dtype=torch.float64)
    phases = coupling.phases_of(edges[None])
    assert phases.bin_R.tolist() == list(range(18)) and phases.count_PK.tolist() == [[1] * 17 + [2]]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(values=st.lists(st.lists(st.floats(-1, 1), min_size=1, max_size=9), min_size=1, max_size=6))
def test_moments_of_parts_are_those_of_all(values):
    def of(part):
        part = np.array(part)
        square = np.square(part - part.mean()).sum()
        return coupling.Moments(len(part), part.mean(), square, (part > 0).sum())

    whole, (merged, *others) = of([each for part in values for each in part]), map(of, values)
    for other in others:
        merged = merged.merged(other)
    assert merged.n == whole.n and merged.num_exceeding == whole.num_exceeding
    assert merged.mean == pytest.approx(whole.mean, abs=1e-12)
    assert merged.m2 == pytest.approx(whole.m2, abs=1e-12)


def test_a_shift_depends_on_seed_payload_and_number_alone():
    many, few = (coupling.offsets(b"one", 7, 1000, count) for count in (500, 20))
    assert many[:20].tolist() == few.tolist() and 1 <= many.min() <= many.max() <= 999
    for other in (coupling.offsets(b"two", 7, 1000, 20), coupling.offsets(b"one", 8, 1000, 20)):
        assert other.tolist() != few.tolist()
    assert set(coupling.offsets(b"one", 7, 3, 100)) == {1, 2}
    assert few[:4].tolist() == GOLDEN


GOLDEN = [719, 944, 551, 439]
"""Of any NumPy and machine: a stream of Philox is one that NumPy keeps."""


@pytest.mark.parametrize("num_samples", [1600, 1601, 2003])
def test_bands_are_those_of_scipy_s_filter_and_hilbert_transform(num_samples):
    samples = noise(1, 6)[0, :num_samples].astype(np.float64) + 500
    found = analytic(samples, RATE_HZ, **FEW)
    centred = samples - samples.mean()
    for (band, cycles), one in zip(pac.Options.model_validate(FEW).bands, found, strict=True):
        half = int(cycles * RATE_HZ / band[0] / 2)
        bank = coupling.bank(pac.Options.model_validate(FEW), RATE_HZ, num_samples)
        pad = bank.num_padded
        assert pad == 200 >= half
        ends = 2 * centred[0] - centred[pad:0:-1], 2 * centred[-1] - centred[-2 : -pad - 2 : -1]
        extended = np.concatenate([ends[0], centred, ends[1]])
        buffer = np.zeros(bank.num_transformed)
        buffer[: len(extended)] = extended
        taps = firwin(2 * half + 1, band, pass_zero=False, fs=RATE_HZ)
        expected = hilbert(ndimage.convolve1d(buffer, taps, mode="wrap"))[pad : pad + num_samples]
        assert abs(one - expected).max() <= 1e-11 * abs(expected).max()


def test_a_filter_delays_nothing_and_keeps_the_middle_of_its_band():
    seconds = np.arange(4000) / RATE_HZ
    (found, *_) = analytic(np.cos(2 * np.pi * 4.5 * seconds), RATE_HZ, **FEW)
    middle = slice(1000, 3000)
    assert abs(found[middle] - np.exp(2j * np.pi * 4.5 * seconds[middle])).max() < 0.02


@pytest.mark.parametrize(
    ("hz", "band", "kept"),
    [(6, [8, 13], (0.185, 0.034)), (4, [4, 8], (0.51, 0.26)), (8, [4, 8], (0.51, 0.26))],
)
def test_the_softness_of_bands_is_what_the_page_says(hz, band, kept):
    wave = np.cos(2 * np.pi * hz * np.arange(8000) / RATE_HZ)
    for passes, share in zip((1, 2), kept, strict=True):
        bands = {"phase_bands": [band], "amplitude_bands": [[30, 50]], "passes": passes}
        found = abs(analytic(wave, RATE_HZ, **bands)[0, 2000:6000])
        assert found.mean() == pytest.approx(share, abs=0.01)


# What a segment sees of its neighbours


def pink(num_channels, seconds, rate_hz, seed=0):
    """Return noise whose power falls as 1/f, as that of recordings does."""
    size = int(seconds * rate_hz)
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal((num_channels, size)))
    spectrum[:, 1:] /= np.sqrt(np.arange(1, spectrum.shape[1]))
    return np.fft.irfft(spectrum, size).astype(np.float32)


@pytest.mark.parametrize("passes", [1, 2])
def test_a_segment_inside_a_recording_is_filtered_as_the_whole_of_it(tmp_path, passes):
    data = pink(1, 12, RATE_HZ)
    asked = pac.Options.model_validate({**QUICK, "passes": passes})
    path = write_npz(tmp_path / "a.npz", data, channels=["A"])
    segments = signals_in(path, **QUICK, passes=passes)
    assert len(segments) == 6
    for number, segment in enumerate(segments[1:5], 1):  # with neighbours longer than a filter
        inside = slice(800 * number, 800 * (number + 1))
        assert np.array_equal(segment.samples_T, data[0, inside])
        whole = data[0].astype(np.float64) - segment.samples_T.mean()
        found = analytic(segment, RATE_HZ, **QUICK, passes=passes).real
        for (band, cycles), one in zip(asked.bands, found, strict=True):
            expected = whole
            for _ in range(passes):
                expected = np.convolve(expected, coupling.taps(band, cycles, RATE_HZ), "same")
            assert abs(one - expected[inside]).max() <= 1e-11 * abs(whole).max()


def test_a_recording_ends_at_a_gap_and_the_segments_beside_it_are_computed(tmp_path):
    data = pink(1, 6, RATE_HZ)
    data[0, [900, 1500]] = np.nan  # in the second segment
    path = write_npz(tmp_path / "a.npz", data, channels=["A"])
    first, broken, last = signals_in(path, **QUICK)
    assert [len(one.after_T) for one in (first, broken)] == [100, 200]
    assert (len(last.before_T), len(last.after_T)) == (99, 0)
    assert np.isfinite(np.concatenate([*first[1:], *last[1:]])).all()
    assert np.isnan(broken.samples_T[100])
    path = write_npz(tmp_path / "b.npz", data[:, :800], channels=["A"])
    (alone,) = signals_in(path, **QUICK)
    assert len(alone.after_T) == 0


@pytest.mark.slow
def test_slow_bands_of_segments_are_those_of_the_whole_recording(capsys):
    """The index at 2 to 4 Hz, by the phases and amplitudes of one filter over all of it."""
    rate_hz, seconds = 250.0, 120
    bands = {"phase_bands": [[2, 4]], "amplitude_bands": [[30, 50], [50, 70]], "permutations": 0}
    data = pink(8, seconds, rate_hz)
    asked = pac.Options.model_validate(bands)
    whole = [analytic(row.astype(np.float64), rate_hz, **bands) for row in data]
    for length in (2, 5, 10):
        size = int(length * rate_hz)
        starts = range(size, data.shape[1] - 2 * size, size)
        payloads = {"alone": [], "with neighbours": []}
        reference = []
        for row, found in zip(data, whole, strict=True):
            for start in starts:
                inside = found[:, start : start + size]
                reference.append([tort(np.angle(inside[0]), abs(one)) for one in inside[1:]])
                seen = asked.num_seen(rate_hz)
                near = row[start - seen : start + size + seen]
                payloads["alone"].append(signals.payload_of(near[seen:-seen], rate_hz))
                payloads["with neighbours"].append(signals.payload_of(near, rate_hz, seen, seen))
        wanted = np.array(reference)
        off = {}
        for name, those in payloads.items():
            (mi,) = computed(those, **bands)
            off[name] = float(np.median(abs(mi[:, 0] - wanted) / wanted))
        with capsys.disabled():
            print(f"{length} s: " + ", ".join(f"{name} {one:.1%}" for name, one in off.items()))
        assert off["with neighbours"] < 0.03 < off["alone"]


# The same numbers, however they are computed


@pytest.mark.parametrize("num_devices", [1, 2, 3])
@pytest.mark.parametrize("at_once", [coupling.AT_ONCE_NUMBERS["cpu"], 1])
def test_any_number_of_devices_and_less_at_once_give_the_same_bits(
    monkeypatch, num_devices, at_once
):
    payloads = payloads_of(noise())
    usual = computed(payloads, **FEW)
    monkeypatch.setitem(coupling.AT_ONCE_NUMBERS, "cpu", at_once)
    assert all(map(np.array_equal, usual, computed(payloads, num_devices, **FEW)))


def test_another_order_of_bands_gives_the_same_numbers_in_that_order():
    payloads = payloads_of(noise(1))
    turned = {name: bands[::-1] for name, bands in FEW.items()}
    for one, other in zip(computed(payloads, **FEW), computed(payloads, **turned), strict=True):
        np.testing.assert_array_equal(one, other[:, ::-1, ::-1])


def test_p_is_uniform_where_there_is_no_coupling():
    data = np.random.default_rng(5).standard_normal((2000, 500))
    bands = {"phase_bands": [[4, 8]], "amplitude_bands": [[40, 60]]}
    _, z, p = computed(payloads_of(data, 250.0), **bands, permutations=99)
    assert stats.kstest(p.ravel(), "uniform").pvalue > 0.01
    assert abs(z.mean()) < 0.1 and z.std() == pytest.approx(1, abs=0.1)
    assert (z > 3).mean() == pytest.approx(0.008, abs=0.002), "docs/pac.md: z is not normal"


# Recordings


def read(path, **options):
    return list(pac.records([path], pac.Options.model_validate(options)))


def payloads_in(path, **options):
    return [record.payload for record in read(path, **options)]


def signals_in(path, **options):
    return [signals.signal_of(payload) for payload in payloads_in(path, **options)]


def test_every_format_gives_the_same_records(tmp_path):
    data = noise()
    np.save(tmp_path / "rec.npy", data)
    paths = [
        write_npz(tmp_path / "rec.npz", data),
        write_brainvision(tmp_path / "rec.vhdr", data),
        write_edf(tmp_path / "rec.edf", data),
        write_fif(tmp_path / "rec_raw.fif", data),
    ]
    own = {**QUICK, "sampling_rate_hz": RATE_HZ}
    expected = payloads_in(tmp_path / "rec.npy", **own)
    assert len(expected) == 9
    for path in paths:
        found = read(path, **QUICK)
        assert [record.payload for record in found] == expected, path
        ids = [f"{path.stem}:{channel}:{n}" for n in (1, 2, 3) for channel in CHANNELS]
        assert [record.id for record in found] == ids
        assert {type(record.length) for record in found} == {int}
    assert found[3].description == "A1, 2 to 4 s" and found[3].length == 800


@pytest.mark.parametrize("kind", [np.int16, np.float64, ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_may_be_of_any_number_type_and_order(tmp_path, kind, order):
    changed = np.asarray(noise().astype(kind), order=order)
    found, expected = (
        payloads_in(write_npz(tmp_path / "a.npz", data), **QUICK) for data in (changed, noise())
    )
    assert found == expected


def test_arrays_are_mapped_and_a_segment_is_read_at_a_time(tmp_path, monkeypatch):
    path = write_npz(tmp_path / "a.npz", noise())
    mapped = recordings._mapped(path, "data.npy")
    assert isinstance(mapped, np.memmap) and np.array_equal(mapped, noise())
    monkeypatch.setattr(signals, "BLOCK_BYTES", 1)  # a channel at a time
    sizes = []
    opened = recordings.open_recording

    def spied(*asked):
        recording = opened(*asked)

        def read(*asked):
            sizes.append(recording.read(*asked).shape)
            return recording.read(*asked)

        return recording._replace(read=read)

    monkeypatch.setattr(recordings, "open_recording", spied)
    assert len(read(path, **QUICK)) == 9
    assert set(sizes) == {(1, 1000), (1, 1200)}, "a segment, and what filters see beside it"


def test_each_epoch_is_a_recording_by_itself(tmp_path):
    epochs = noise(3).reshape(3, 3, 800)
    np.save(tmp_path / "e.npy", epochs)
    own = {**FEW, "sampling_rate_hz": RATE_HZ, "permutations": 2}
    found = read(tmp_path / "e.npy", **own)
    ids = [f"e:ch{channel}:{epoch}" for epoch in (1, 2, 3) for channel in (1, 2, 3)]
    assert [record.id for record in found] == ids
    assert found[3].description == "ch1, epoch 2, 0 to 2 s"
    alone = []
    for number, epoch in enumerate(epochs):
        np.save(tmp_path / f"{number}.npy", epoch)
        alone += payloads_in(tmp_path / f"{number}.npy", **own)
    assert [record.payload for record in found] == alone
    halves = read(tmp_path / "e.npy", **own, segment_seconds=1)
    assert [record.id for record in halves[:7:3]] == ["e:ch1:1", "e:ch1:2", "e:ch1:3"]
    assert {len(signals.signal_of(record.payload).before_T) for record in halves} == {0, 200}


def test_epochs_of_mne_are_read(tmp_path):
    data = noise(3).reshape(3, 3, 800).astype(np.float64)
    info = mne.create_info(list(CHANNELS), RATE_HZ, "eeg")
    path = tmp_path / "a-epo.fif"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        epochs = mne.EpochsArray(data, info, verbose="ERROR")
        epochs.save(path, fmt="double", verbose="ERROR")
    ids = [record.id for record in read(path, **FEW)[2:4]]
    assert ids == [f"a-epo:{CHANNELS[2]}:1", f"a-epo:{CHANNELS[0]}:2"]
    samples = [signal.samples_T for signal in signals_in(path, **FEW)]
    np.testing.assert_array_equal(samples, data.reshape(9, 800).astype(np.float32))


def test_a_range_of_bands_and_no_surrogates(tmp_path):
    asked = pac.Options.model_validate({"phase_bands": {"low": 2, "high": 20, "bands": 9}})
    assert asked.phase_bands[0] == (2, 4) and asked.phase_bands[-1] == (18, 20)
    assert len(asked.phase_bands) == 9
    payloads = payloads_of(noise())
    (mi,) = computed(payloads, **FEW, permutations=0)
    assert np.array_equal(mi, computed(payloads, **FEW)[0])


def test_segments_overlap_as_asked_and_what_is_left_is_said(tmp_path):
    path = write_npz(tmp_path / "a.npz", noise())
    found = read(path, **QUICK, overlap_seconds=0.5, channels=["A2"])
    times = [record.description for record in found]
    assert times == ["A2, 0 to 2 s", "A2, 1.5 to 3.5 s", "A2, 3 to 5 s"]
    assert [record.note for record in found] == ["", "", signals.LEFT_OVER]
    (whole,) = read(path, **FEW, channels=["B1"])
    assert whole.id == "a:B1:1" and whole.length == 2400 and not whole.note


def test_a_channel_that_is_marked_bad_is_computed_and_noted(tmp_path):
    path = write_fif(tmp_path / "a_raw.fif", noise(), bad=["A2"])
    assert [record.note for record in read(path, **FEW)] == ["", signals.MARKED_BAD, ""]


def test_an_edf_of_several_rates_is_computed_at_each_channels_own(tmp_path):
    fast, slow = noise(2, seconds=6, rate_hz=400), noise(1, seconds=6, rate_hz=100)
    rows = [fast[0], slow[0], fast[1]]
    path = write_edf_of(tmp_path / "a.edf", rows, [400, 100, 400], ["C3", "Resp", "C4"])

    def said(**more):
        with pytest.raises(UserError) as error:
            read(path, **FEW, **more)
        return str(error.value)

    assert said() == (
        f"{path}: its channels have different sampling rates (400 Hz: C3 and C4; 100 Hz: Resp), "
        "and a run computes those of one; name these in options.channels."
    )
    for channels, part in (
        (["C4", "Resp"], "400 Hz: C4; 100 Hz: Resp"),
        (["Resp"], "nothing from 50 Hz on"),
        (["Fz"], "its channels have different sampling rates"),
    ):
        assert part in said(channels=channels)
    low = {**FEW, "phase_bands": [[3, 6]], "amplitude_bands": [[20, 40]], "segment_seconds": 2}
    for data, rate_hz, channels in ((fast, 400.0, ["C3", "C4"]), (slow, 100.0, ["Resp"])):
        found = read(path, **low, channels=channels)
        own = read(write_npz(tmp_path / "a.npz", data, rate_hz, channels), **low)
        assert len(own) == 3 * len(channels)
        assert [(r.id, r.payload) for r in found] == [(r.id, r.payload) for r in own]


def times(number, missing=0.0, more=b""):
    """Return the annotations of a data record that begins at its time."""
    return b"+%g\x14\x14\0" % (number + missing) + more


def test_an_edf_with_gaps_is_refused(tmp_path):
    data = noise(2)
    rates = [RATE_HZ] * 2
    of = (list(data), rates, ["C3", "C4"], "EDF+D")
    whole = write_edf_of(tmp_path / "a.edf", *of, lambda n: times(n, 0.25))
    plain = write_npz(tmp_path / "a.npz", data, channels=["C3", "C4"])
    assert payloads_in(whole, **QUICK) == payloads_in(plain, **QUICK)
    gap = write_edf_of(tmp_path / "g.edf", *of, lambda n: times(n, 100 if n > 3 else 0))
    with pytest.raises(UserError) as error:
        read(gap, **QUICK)
    assert str(error.value).startswith(
        f"{gap}: 100 s are missing in this EDF+D after 4 s, and it would be read as if they"
    )


BAD = ("BAD_movement", "bad electrode")


def marked_edf(path, data):
    marks = {3: b"+3.1\x150.4\x14BAD_movement\x14\0", 1: b"+1\x151\x14sleep\x14\0"}
    return write_edf_of(
        path, list(data), [RATE_HZ] * 3, CHANNELS, "EDF+C", lambda n: times(n, 0, marks.get(n, b""))
    )


def marked_fif(path, data):
    raw = raw_of(data)
    raw.set_annotations(mne.Annotations([3.1, 1], [0.4, 1], ["BAD_movement", "sleep"]))
    raw.save(path, verbose="ERROR")
    return path


def marked_fif_from_its_second_second(path, data):
    """Its times count from before its first sample."""
    raw = raw_of(np.hstack((data[:, :400], data)))
    marks = mne.Annotations([4.1, 2], [0.4, 1], ["bad electrode", "sleep"])
    raw.set_meas_date(1e9).set_annotations(marks)
    raw.crop(1).save(path, verbose="ERROR")
    return path


@pytest.mark.parametrize(
    ("write", "name"),
    [(marked_edf, "a.edf")]
    + [(write, "a_raw.fif") for write in (marked_fif, marked_fif_from_its_second_second)],
)
def test_segments_of_spans_that_are_marked_as_bad_are_refused(tmp_path, write, name):
    data = noise()
    found = read(write(tmp_path / name, data), **QUICK)
    plain = read(write_npz(tmp_path / "p.npz", data), **QUICK)
    assert [r.id.split(":", 1)[1] for r in found] == [r.id.split(":", 1)[1] for r in plain]
    assert all(record.reason == "" for record in found[:3] + found[6:])
    for record in found[3:6]:
        mark = record.reason.partition(": ")[2].partition(",")[0]
        assert record.reason == pac.BAD_SPAN.reason(f"{mark}, 3.1 to 3.5 s") and mark in BAD
        assert record.payload == b"" and record.length == 800
    # Its neighbours see nothing of it: 200 samples are seen of each side.
    for number, side in ((0, "after_T"), (8, "before_T")):
        mine, theirs = (signals.signal_of(each[number].payload) for each in (found, plain))
        assert np.array_equal(mine.samples_T, theirs.samples_T)
        assert len(getattr(mine, side)) == 200
    near = read(write(tmp_path / f"n_{name}", data), **QUICK | {"segment_seconds": 1.5})
    assert [bool(record.reason) for record in near[::3]] == [False, False, True, False]
    assert len(signals.signal_of(near[3].payload).after_T) == 40, "up to 3.1 s"


def raw_of(data, channels=CHANNELS):
    info = mne.create_info(list(channels), RATE_HZ, "seeg")
    return mne.io.RawArray(data.astype(np.float64), info, verbose="ERROR")


def test_channels_that_are_not_of_the_brain_move_no_others_place(tmp_path):
    """The file begins with a trigger, which is no channel to compute."""
    names, kinds = ["TRIG", *CHANNELS], ["misc", *["seeg"] * len(CHANNELS)]
    info = mne.create_info(names, RATE_HZ, kinds)
    data = np.concatenate([np.ones((1, noise().shape[1])), noise()])
    raw = mne.io.RawArray(data, info, verbose="ERROR")
    raw.save(tmp_path / "a_raw.fif", fmt="single", verbose="ERROR")
    found, expected = (
        signals_in(path, **FEW, channels=["A2"])
        for path in (tmp_path / "a_raw.fif", write_npz(tmp_path / "a.npz", noise()))
    )
    assert len(found) > 0
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.samples_T, theirs.samples_T, rtol=1e-6)


def test_a_seam_of_two_recordings_is_in_no_segment(tmp_path):
    parts = [raw_of(noise(seconds=seconds, seed=seconds)) for seconds in (3, 5)]
    whole = mne.concatenate_raws(parts, verbose="ERROR")
    whole.save(tmp_path / "j_raw.fif", verbose="ERROR")
    found = read(tmp_path / "j_raw.fif", **QUICK)
    assert [bool(record.reason) for record in found[::3]] == [False, True, False, False]
    assert "boundary, at 3 s" in found[3].reason
    thirds = read(tmp_path / "j_raw.fif", **QUICK | {"segment_seconds": 1.5})
    assert not any(record.reason for record in thirds)
    beside = [signals.signal_of(thirds[place].payload) for place in (3, 6)]  # on either side
    assert len(beside[0].after_T) == 0 and len(beside[1].before_T) == 0


def test_a_span_of_one_channel_is_bad_in_that_one(tmp_path):
    marks = mne.Annotations([2.5], [0.5], ["BAD"], ch_names=[["A2"]])
    raw_of(noise()).set_annotations(marks).save(tmp_path / "a_raw.fif", verbose="ERROR")
    found = read(tmp_path / "a_raw.fif", **QUICK)
    assert [record.id for record in found if record.reason] == ["a_raw:A2:2"]


def as_matlab(**given):
    """Return what scipy reads of a .mat with these arrays."""
    file = io.BytesIO()
    scipy.io.savemat(file, given)
    return scipy.io.loadmat(file)


@pytest.mark.parametrize(
    "arrays",
    [
        {"channels": np.array([b"A1", b"A2", b"B1"])},
        {"channels": np.array([["A1"], ["A2"], ["B1"]])},
        {"channels": as_matlab(names=["A1 ", "A2 ", "B1 "])["names"]},
        as_matlab(sampling_rate_hz=RATE_HZ, channels=["A1", "A2", "B1"]),
        {"sampling_rate_hz": np.array([RATE_HZ])},
    ],
)
def test_arrays_are_read_as_matlab_and_hdf5_hand_them_over(tmp_path, arrays):
    own = {"sampling_rate_hz": RATE_HZ, "channels": CHANNELS, "data": noise()}
    plain = {name: array for name, array in arrays.items() if name in own}
    np.savez(tmp_path / "a.npz", **own | plain)
    found = read(tmp_path / "a.npz", **QUICK, channels=["A2"])
    expected = write_npz(tmp_path / "b.npz", noise())
    assert [record.id for record in found] == ["a:A2:1", "a:A2:2", "a:A2:3"]
    assert [r.payload for r in found] == payloads_in(expected, **QUICK, channels=["A2"])


def test_one_channel_may_have_one_name(tmp_path):
    np.savez(tmp_path / "a.npz", sampling_rate_hz=RATE_HZ, channels="A1", data=noise(1)[0])
    assert read(tmp_path / "a.npz", **FEW)[0].id == "a:A1:1"


def test_an_offset_costs_no_digits(tmp_path):
    data = pink(1, 6, RATE_HZ).astype(np.float64)
    for offset, is_taken_off in ((0.0, False), (1e2, False), (1e7, True)):
        offset = offset * data.std()
        path = write_npz(tmp_path / "a.npz", data + offset, channels=["A"])
        ((_, samples, *_),) = signals_in(path, **FEW)
        assert (abs(samples.mean()) < data.std()) == (is_taken_off or not offset)
        error = abs(samples - samples.mean() - (data[0] - data.mean())).max()
        assert error < 1e-5 * data.std()


def test_what_mne_warns_of_is_handed_on(tmp_path, caplog):
    path = write_edf(tmp_path / "a.edf", noise())
    path.write_bytes(path.read_bytes()[: -2 * 3 * int(RATE_HZ)])  # a second of three channels
    assert {record.length for record in read(path, **FEW)} == {2000}
    assert f"{path}: from mne: Number of records" in caplog.text


def compressed(path):
    np.savez_compressed(path, data=noise(), sampling_rate_hz=RATE_HZ)


def cut_short(path):
    write_edf(path, noise())
    path.write_bytes(path.read_bytes()[:100])


REFUSED = [
    ("a.npy", lambda p: np.save(p, noise()), QUICK, "its sampling rate is missing"),
    ("a.npz", lambda p: np.savez(p, data=noise()), QUICK, "set sampling_rate_hz under options"),
    ("a.npz", lambda p: write_npz(p, noise()), {**QUICK, "sampling_rate_hz": 500}, "it has 400"),
    ("a.npz", lambda p: write_npz(p, noise(), 150.0), FEW, "nothing from 75 Hz on, and a band is"),
    ("a.npz", lambda p: write_npz(p, noise(), 180.0), FEW, "a band is 60 to 90 Hz"),
    ("a.npz", lambda p: write_npz(p, noise()), {**QUICK, "segment_seconds": 0.9},
     "0.9 s is shorter than 3 cycles of the lowest band (3 Hz: 1 s)"),
    ("a.npz", lambda p: write_npz(p, noise()), {**FEW, "cycles": [30, 6]}, "than 30 cycles"),
    ("a.npz", lambda p: write_npz(p, noise()), {**QUICK, "segment_seconds": 7}, "it is 6 s long"),
    ("a.npz", lambda p: write_npz(p, noise()), {**QUICK, "channels": ["C"]}, "no channel 'C'"),
    ("a.npz", lambda p: write_npz(p, noise(), channels=[*"AAB"]), QUICK, "two channels are called"),
    ("a.npz", lambda p: write_npz(p, noise(), channels=[*"AB"]), QUICK, "it names 2 channels"),
    ("a.npz", lambda p: write_npz(p, noise(), -1), QUICK, "sampling_rate_hz is -1"),
    ("a.npz", lambda p: write_npz(p, noise().T), QUICK, "2,400 rows of 3, and a row is a channel"),
    ("a.npz", lambda p: write_npz(p, noise() * 1j), QUICK, "an array of complex"),
    ("a.npz", lambda p: write_npz(p, noise(), [400.0, 400.0]), QUICK,
     "its array 'sampling_rate_hz' has the type float64 and the shape (2,); save one number"),
    ("a.npz", lambda p: write_npz(p, noise(), "400"), QUICK, "has the type <U3 and the shape ()"),
    ("a.npz", lambda p: write_npz(p, noise(), channels=[[*"AB"], [*"CD"]]), QUICK,
     "its array 'channels' has the type <U1 and the shape (2, 2); save a list of names"),
    ("a.npz", lambda p: write_npz(p, noise(), channels=np.array([b"\xff"] * 3)), QUICK,
     "its array 'channels' is not in UTF-8"),
    ("a.npz", lambda p: write_npz(p, noise(), channels=np.array([{}, {}, {}])), QUICK,
     "its array 'channels' has objects of Python in it"),
    ("a.npz", lambda p: write_npz(p, np.array([{}])), QUICK,
     "its array 'data' has objects of Python in it"),
    ("a.npz", lambda p: np.savez(p, x=noise()), QUICK, "no array called 'data'"),
    ("a.npz", compressed, QUICK, "is compressed"),
    ("a.npz", lambda p: p.write_bytes(b"no zip"), QUICK, "this recording cannot be read"),
    ("a.npy", lambda p: np.save(p, np.array([{}])), QUICK, "this recording cannot be read"),
    ("a.edf", cut_short, QUICK, "this recording cannot be read"),
    ("a.eeg", lambda p: p.write_bytes(b"x"), QUICK, "give the .vhdr beside it"),
    ("a.csv", lambda p: p.write_text("x"), QUICK, "no recording that is read here"),
    ("a.npz", lambda p: None, QUICK, "does not exist"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "write", "options", "part"), REFUSED)
def test_what_is_wrong_with_a_file_is_one_sentence(tmp_path, name, write, options, part):
    write(tmp_path / name)
    with pytest.raises(UserError) as error:
        read(tmp_path / name, **options)
    said = str(error.value)
    assert said.startswith(f"{tmp_path / name}: ") and part in said and "\n" not in said


def test_without_mne_only_arrays_are_read(tmp_path, monkeypatch):
    path = write_edf(tmp_path / "a.edf", noise())
    monkeypatch.setattr(recordings, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'featuremill\[pac\]', or save the samples"):
        read(path, **QUICK)
    assert read(write_npz(tmp_path / "a.npz", noise()), **QUICK)


def test_a_flat_or_a_broken_channel_fails_alone():
    data = noise(4)
    data[1], data[2, 7] = 3.5, np.nan
    model = pac.load(pac.Options.model_validate(FEW), [CPU], None)
    values = values_of(pac, model, payloads_of(data), 1)
    told = ["a flat signal: all of 2,400 samples are 3.5"]
    told += ["samples that are not finite: 1 of 2,400"]
    assert values["reason"].to_pylist() == [None, *told, None]
    assert [row["mi"] is None for row in values.to_pylist()] == [False, True, True, False]
    find_workload("pac")  # makes its reasons known
    assert [reasons.kind_of(one).name for one in told] == ["flat", "broken"]


# With everything around it


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory, environment):
    """Let the contract's own processes find a recording, and a flat one."""
    folder = tmp_path_factory.mktemp("contract")
    write_npz(folder / "few.npz", noise(5), channels=[*CHANNELS, "B2", "B3"])
    write_npz(folder / "flat.npz", np.zeros((1, 800)), channels=["dead"])
    with working_in(folder, **environment):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("surroundings")
class TestTheContract(WorkloadContract):
    workload = "pac"
    inputs = ("few.npz",)
    options = MappingProxyType(QUICK)
    poison = "flat.npz"


def test_the_example_finds_the_coupling_that_was_made(tmp_path):
    told = run_example("pac", tmp_path / "made")
    records = read(tmp_path / told["inputs"], **told["options"])
    _, z, p = computed([record.payload for record in records], **told["options"])
    of = {name: [n for n, r in enumerate(records) if f":{name}:" in r.id] for name in
          ("coupled", "together", "noise1")}  # fmt: skip
    found = z[of["coupled"]].mean(0)
    assert np.unravel_index(found.argmax(), found.shape) == (1, 2)  # 4 to 8 Hz, 70 to 90 Hz
    assert p[of["coupled"], 1, 2].max() < 0.05
    assert abs(z[of["together"]].mean(0)).max() < 1.5 and abs(z[of["noise1"]].mean(0)).max() < 1.5


def test_init_and_estimate_serve_it(tmp_path, environment):
    write_npz(tmp_path / "rec.npz", noise())
    desk = Desk(tmp_path, environment)
    said = desk.type("featuremill", "init", "rec.npz", "--workload", "pac", "--output", "my.yaml")
    assert "3 records, 7,200 samples" in said.text
    asked = ("featuremill", "estimate", "my.yaml", "--json")
    assert "is unknown; compute a shard" in desk.type(*asked, status=2).text
    found = json.loads(desk.type(*asked, "--tokens-per-second", "1000").out)
    assert (found["cost_left"], found["cost_unit"]) == (7200, "samples")


@pytest.mark.slow
def test_plan_and_extract_run_in_its_own_environment(tmp_path, environment):
    """With a stand-in for conda: plan reads recordings, for which it may need mne."""
    write_npz(tmp_path / "rec.npz", noise(2, 24), channels=CHANNELS[:2])
    config = {"run": "my", "inputs": "rec.npz", "workload": "pac", "options": QUICK}
    config |= {"outputs": "parquet", "device": "cpu"}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    variables = {**environment, **stand_in_for_conda(tmp_path / "base", environment)}
    Desk(tmp_path, variables).type("featuremill", "run", "my.yaml", "--sdm", "conda")
    verbs = verbs_and_environments(tmp_path / "base")
    assert verbs["plan"] == verbs["extract"] != verbs["merge"] == verbs["report"]


# Beside others


TENSORPAC = """
import sys
import warnings
import numpy as np
from scipy.stats import spearmanr
from tensorpac import Pac

given = np.load(sys.argv[1])
pac, found = Pac(idpac=(2, 0, 0), verbose=False), np.empty_like(given["mi"])
for one in np.ndindex(found.shape):
    phase, amplitude = given["phase"][one[:2]], given["amplitude"][one[0], one[2]]
    found[one] = pac.fit(phase[None, None], amplitude[None, None], verbose=False).squeeze()
own = np.empty_like(found)
for one in np.ndindex(found.shape):
    bands = {"f_pha": given["phase_bands"][one[1]], "f_amp": given["amplitude_bands"][one[2]]}
    whole = Pac(idpac=(2, 0, 0), **bands, verbose=False)
    own[one] = whole.filterfit(2000.0, given["samples"][one[0]][None], verbose=False).squeeze()
for name in ("mi", "mi_of_two_passes"):
    print("end to end", name, np.corrcoef(own.ravel(), given[name].ravel())[0, 1])
print("by ranks", spearmanr(own.ravel(), given["mi_of_two_passes"].ravel()).statistic)
print("median ratio", np.median(given["mi_of_two_passes"] / own))
print(abs(found - given["mi"]).max())
"""
"""One band and one trial at a time: of several it pools how many samples are in a bin."""


@pytest.fixture(scope="module")
def ieeg(tmp_path_factory):
    return real_ieeg(tmp_path_factory.mktemp("ieeg"))


@pytest.mark.slow
def test_it_equals_tensorpac_on_real_ieeg(ieeg, tmp_path):
    needed = "cloudpickle", "joblib", "tensorpac==0.6.5"
    pip("install", "--no-deps", "--target", tmp_path / "site", *needed)
    records = read(ieeg)
    assert len(records) == 50 and records[0].length == 10_000
    payloads = [record.payload for record in records]
    bands = np.array([analytic(signals.signal_of(one), 2000.0) for one in payloads])
    num_phases = len(pac.Options().phase_bands)
    phase, amplitude = np.angle(bands[:, :num_phases]), abs(bands[:, num_phases:])
    asked = pac.Options()
    np.savez(
        tmp_path / "g.npz",
        phase=phase,
        amplitude=amplitude,
        samples=[signals.signal_of(one).samples_T for one in payloads],
        phase_bands=asked.phase_bands,
        amplitude_bands=asked.amplitude_bands,
        mi=computed(payloads, permutations=0)[0],
        mi_of_two_passes=computed(payloads, permutations=0, passes=2)[0],
    )
    variables = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "MPLCONFIGDIR": str(tmp_path)}
    said = printed_by(TENSORPAC, tmp_path / "g.npz", env=variables)
    print(said)
    one, two = (float(line.split()[-1]) for line in said.splitlines()[:2])
    assert float(said.split()[-1]) <= 1e-9 and 0.8 < one < two


@pytest.mark.slow
def test_shards_and_devices_change_nothing_on_real_ieeg(ieeg, tmp_path, environment):
    desk, tables = Desk(tmp_path, environment), []
    for name, cost in (("one", 10**9), ("seven", 75_000)):
        config = {"run": name, "inputs": str(ieeg), "workload": "pac", "shards": {"cost": cost}}
        config |= {"outputs": "parquet", "device": "cpu"}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))
        desk.type("featuremill", "run", f"{name}.yaml", "--", NO_REPORT)
        place = Results(tmp_path / "results" / name)
        assert len(place.read_plan().shards) == (1 if name == "one" else 7)
        tables.append(pq.read_table(place.root / "embeddings.parquet"))
    first, second = tables
    assert first.equals(second)
    payloads = payloads_in(ieeg)
    for number in (1, 2, 3):
        for name, values in zip(("mi", "z", "p"), computed(payloads, number), strict=True):
            ours = first[name].combine_chunks().flatten().to_numpy()
            assert np.array_equal(ours, values.ravel())


@pytest.mark.gpu
def test_a_gpu_gives_the_same_numbers():
    """The CPU's twin is `test_any_number_of_devices_and_less_at_once_give_the_same_bits`."""
    from featuremill.base.devices import cuda_devices

    asked, payloads = pac.Options.model_validate(FEW), payloads_of(noise())
    model = pac.load(asked, cuda_devices()[:1], None)
    values = values_of(pac, model, payloads, 1)
    for name, expected in zip(("mi", "z", "p"), computed(payloads, **FEW), strict=True):
        found = values[name].flatten().to_numpy()
        np.testing.assert_allclose(found, expected.ravel(), rtol=0, atol=1e-6)
