"""Compute the analytic signal of a segment in bands: filters and Hilbert transform in one step.

A filter is a linear-phase FIR (`scipy.signal.firwin`, Hamming window), whose length is a number of
cycles of its band's lower edge. It is centred, so it has no delay. Applied twice, its gain is
squared. A segment is extended at both ends by its neighbours in the recording, as many as the
longest filter reads. Beyond the ends of the recording, the extension is odd, as in
`scipy.signal.filtfilt`. In the frequency domain, a band is one product with the filter's real gain,
which the Hilbert transform doubles for positive and sets to 0 for negative frequencies. All numbers
are float64.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import fft, signal

from featuremill.workloads.pac.options import Options, half_of_filter
from featuremill.workloads.pac.signals import Signal

if TYPE_CHECKING:
    from torch import Tensor

Numbers = npt.NDArray[np.float64]
KEPT_BANKS = 8
"""The number of banks in the cache; there is one for each sampling rate and length of segments."""


class Bank(NamedTuple):
    """The filters for segments of one sampling rate and one length."""

    gain_BF: Numbers
    """The gain of each band at each frequency from 0 to Nyquist's, doubled by the Hilbert
    transform."""
    num_padded: int
    """The number of samples that extend a segment at each end."""
    num_transformed: int
    """The length of the transform: that of an extended segment, and zeros up to a fast length."""


def taps(band: Sequence[float], cycles: float, rate_hz: float) -> Numbers:
    """Return the weights of a band's filter, an odd number; `band` has its edges in Hz."""
    half = half_of_filter(band, cycles, rate_hz)
    weights: Numbers = signal.firwin(2 * half + 1, band, pass_zero=False, fs=rate_hz)
    return weights


@functools.lru_cache(KEPT_BANKS)
def bank(options: Options, rate_hz: float, num_samples: int) -> Bank:
    """Return the filters of all bands of `options`, phases first."""
    filters = [taps(band, cycles, rate_hz) for band, cycles in options.bands]
    num_padded = options.num_seen(rate_hz)
    num_transformed = fft.next_fast_len(num_samples + 2 * num_padded)
    rows = []
    for weights in filters:
        centred = np.zeros(num_transformed)
        centred[: len(weights)] = weights
        rows.append(np.fft.rfft(np.roll(centred, -(len(weights) // 2))).real)
    gain_BF = 2 * np.array(rows) ** options.passes
    gain_BF[:, 0] /= 2
    if num_transformed % 2 == 0:
        gain_BF[:, -1] /= 2  # Nyquist's frequency is its own mirror image, like zero
    return Bank(gain_BF, num_padded, num_transformed)


def extended(segment: Signal, num_padded: int) -> Numbers:
    """Return a segment minus its mean, with `num_padded` samples before and after it: its
    neighbours, then their odd extension."""
    samples = np.concatenate([segment.before_T, segment.samples_T, segment.after_T])
    samples -= segment.samples_T.mean()
    front, back = num_padded - len(segment.before_T), num_padded - len(segment.after_T)
    before = 2 * samples[0] - samples[front:0:-1]
    after = 2 * samples[-1] - samples[-2 : -back - 2 : -1]
    return np.concatenate([before, samples, after])


def analytic(segment: Signal, bank: Bank, gain_BF: Tensor) -> Tensor:
    """Return the analytic signal of a segment in each band, (B, T) complex128.

    `gain_BF` is that of `bank`, on the device that computes.
    """
    padded = torch.from_numpy(extended(segment, bank.num_padded)).to(gain_BF.device)
    spectrum_F = torch.fft.rfft(padded, bank.num_transformed)
    signal_BT: Tensor = torch.fft.ifft(spectrum_F * gain_BF, bank.num_transformed)
    return signal_BT[:, bank.num_padded : bank.num_padded + len(segment.samples_T)]
