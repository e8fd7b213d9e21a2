"""Filter a segment into bands, and compute Tort's modulation index of their phases and amplitudes,
and of surrogates.

A filter is a linear-phase FIR (`scipy.signal.firwin`, Hamming window), whose length is a number of
cycles of its band's lower edge. It is centred, so it has no delay. Applied twice, its gain is
squared. A segment is extended at both ends by its neighbours in the recording, as many as the
longest filter reads. Beyond the ends of the recording, the extension is odd, as in
`scipy.signal.filtfilt`. In the frequency domain, a band is one product with the filter's real gain,
which the Hilbert transform doubles for positive and sets to 0 for negative frequencies. All numbers
are float64.

For each pair of bands, the mean amplitudes in 18 bins of the phase are divided by their sum. The
index measures how much these shares differ from equal ones: `(log 18 - entropy) / log 18` (Tort et
al. 2010). A bin without a sample has the share 0.

A surrogate shifts the amplitudes circularly by s samples. Between two edges, at which it changes
its bin, a phase is in one bin. So the sum of a surrogate's amplitudes there is the difference of
two cumulative sums, at the edges plus s. This is exact and needs one look-up per edge, and slow
phases have far fewer edges than samples.

Shape legend: B bands, P phase bands, A amplitude bands, T samples, F frequencies, K bins, E edges,
N permutations, S cumulative sums.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import fft, signal
from torch import Tensor

from featuremill.workloads.pac.options import Options, half_of_filter
from featuremill.workloads.pac.signals import Signal

KEPT_BANKS = 8
"""The number of banks in the cache; there is one for each sampling rate and length of segments."""
NUM_BINS = 18
BLOCK = 16
"""Permutations that a device computes at a time. Blocks are merged in the same order for any number
of devices."""
AT_ONCE_NUMBERS = {"cpu": 2**18, "cuda": 2**24}
"""Cumulative sums that are looked up at a time: as many as fit in a core's cache, or as a GPU needs
to be busy. On a CPU, the number changes no bit."""
Numbers = npt.NDArray[np.float64]


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


def offsets(
    payload: bytes, seed: int, num_samples: int, permutations: int
) -> npt.NDArray[np.int64]:
    """Return the shift of each permutation, from 1 to T - 1.

    It is a word of the counter-based generator Philox, whose key is made of the seed and the
    payload's sha256.
    """
    digest = hashlib.sha256(payload).digest() + seed.to_bytes(8, "little")
    key = np.frombuffer(hashlib.sha256(digest).digest()[:16], "<u8")
    words = np.random.Philox(key=key).random_raw(permutations)
    return (words % np.uint64(num_samples - 1)).astype(np.int64) + 1


class Phases(NamedTuple):
    """The bins of the phases of all phase bands, as runs of samples in one bin."""

    edge_E: Tensor
    """The edges of the runs, as samples from 0 to T, one band after the other."""
    bin_R: Tensor
    """The bin of each run, as phase band × K + bin; P × K between the end of a band and the start
    of the next."""
    count_PK: Tensor

    def to(self, device: torch.device) -> Phases:
        return Phases(*(each.to(device) for each in self))


def phases_of(phase_PT: Tensor) -> Phases:
    """Return the bins of phases, which are in radians from -pi to pi."""
    num_bands = phase_PT.shape[0]
    inner = torch.linspace(-math.pi, math.pi, NUM_BINS + 1, dtype=torch.float64)[1:-1]
    bin_PT = torch.bucketize(phase_PT, inner.to(phase_PT.device), right=True)
    band_P1 = torch.arange(num_bands, device=phase_PT.device)[:, None]
    numbered_PT = band_P1 * NUM_BINS + bin_PT
    count_PK = torch.bincount(numbered_PT.reshape(-1), minlength=num_bands * NUM_BINS)
    # The end of a band, after its last sample, is an edge as well.
    end_P1 = torch.full_like(band_P1, num_bands * NUM_BINS)
    numbered_PT = torch.cat([numbered_PT, end_P1], 1)
    is_edge = torch.ones_like(numbered_PT, dtype=torch.bool)
    is_edge[:, 1:] = numbered_PT[:, 1:] != numbered_PT[:, :-1]
    edge_E = is_edge.nonzero()[:, 1]
    return Phases(edge_E, numbered_PT[is_edge][:-1], count_PK.view(num_bands, NUM_BINS))


def cumulated(amplitude_AT: Tensor) -> Tensor:
    """Return the sums of the first 0 to 2 T amplitudes, (2 T + 1, A); the second T repeat the
    first."""
    once_TA = amplitude_AT.T.cumsum(0)
    zero_1A = torch.zeros_like(once_TA[:1])
    return torch.cat([zero_1A, once_TA, once_TA[-1:] + once_TA])


def index_of(phases: Phases, cumulated_SA: Tensor, offset_N: Tensor) -> Tensor:
    """Return the modulation index of each pair under each shift, (N, P, A)."""
    num_bands, num_amplitudes = len(phases.count_PK), cumulated_SA.shape[1]
    most = AT_ONCE_NUMBERS[cumulated_SA.device.type]
    size = max(1, most // (len(phases.edge_E) * num_amplitudes))
    parts = []
    for chosen_N in torch.split(offset_N, size):
        indices = (phases.edge_E[:, None] + chosen_N).reshape(-1)
        at_edge = cumulated_SA.index_select(0, indices).view(len(phases.edge_E), -1)
        sums = at_edge.new_zeros(num_bands * NUM_BINS + 1, at_edge.shape[1])
        sums.index_add_(0, phases.bin_R, at_edge[1:] - at_edge[:-1])
        parts.append(sums[:-1].view(num_bands, NUM_BINS, len(chosen_N), num_amplitudes))
    # A GPU does not add in order, so a cumulative sum may be less than the one before it.
    sum_PKNA = torch.cat(parts, 2).clamp_min(0)
    mean_PKNA = sum_PKNA / phases.count_PK.clamp_min(1)[:, :, None, None]
    share_PKNA = mean_PKNA / mean_PKNA.sum(1, keepdim=True)
    less_entropy_PNA = torch.xlogy(share_PKNA, share_PKNA).sum(1)
    return (1 + less_entropy_PNA / math.log(NUM_BINS)).transpose(0, 1)


class Moments(NamedTuple):
    """Statistics of the modulation indices of some surrogates, (P, A) each, in float64."""

    n: int
    mean: Numbers
    m2: Numbers
    """Sum of the squared distances from the mean."""
    num_exceeding: Numbers
    """The number of surrogates whose index is at least the observed one."""

    def merged(self, other: Moments) -> Moments:
        """Return the statistics of both together (Chan, Golub and LeVeque 1979)."""
        n = self.n + other.n
        off = other.mean - self.mean
        return Moments(
            n,
            self.mean + off * (other.n / n),
            self.m2 + other.m2 + off * off * (self.n * other.n / n),
            self.num_exceeding + other.num_exceeding,
        )

    def z(self, observed: Numbers) -> Numbers:
        """Return how many standard deviations `observed` is above the mean."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return (observed - self.mean) / np.sqrt(self.m2 / (self.n - 1))

    def p(self) -> Numbers:
        """Return the share of surrogates whose index is at least the observed one, which counts as
        a surrogate (Phipson and Smyth 2010)."""
        return (1 + self.num_exceeding) / (1 + self.n)


class Coupling(NamedTuple):
    """The results of one segment, on several devices."""

    observed_PA: Tensor
    blocks: list[tuple[int, Tensor]]
    """The number of permutations of each block, with mean, m2 and num_exceeding (3, P, A)."""

    def results(self) -> tuple[Numbers, ...]:
        """Wait for the devices; return mi, z and p, (P, A) each, or mi alone without permutations.

        Blocks are merged in order, so the result does not depend on their devices.
        """
        observed: Numbers = self.observed_PA.cpu().numpy()
        if not self.blocks:
            return (observed,)
        moments, *others = (Moments(n, *block.cpu().numpy()) for n, block in self.blocks)
        for other in others:
            moments = moments.merged(other)
        return observed, moments.z(observed), moments.p()


def coupling(
    phase_PT: Tensor,
    amplitude_AT: Tensor,
    offset_N: npt.NDArray[np.int64],
    devices: Sequence[torch.device],
) -> Coupling:
    """Start to compute one segment; blocks of permutations are divided among the `devices`."""
    # On a CPU each band by itself, so that its sums fit in the cache; on a GPU all bands together,
    # for few kernel launches.
    bands = torch.split(phase_PT, 1 if phase_PT.device.type == "cpu" else len(phase_PT))
    phases, cumulated_SA = [phases_of(each) for each in bands], cumulated(amplitude_AT)
    no_shift = torch.zeros(1, dtype=torch.int64, device=phase_PT.device)
    observed_PA = _indices(phases, cumulated_SA, no_shift)[0]
    copies = [
        ([each.to(device) for each in phases], cumulated_SA.to(device), observed_PA.to(device))
        for device in devices
    ]
    blocks = []
    for number, first in enumerate(range(0, len(offset_N), BLOCK)):
        chosen_N = torch.from_numpy(offset_N[first : first + BLOCK])
        of_bands, cumulated_SA, observed = copies[number % len(devices)]
        index_NPA = _indices(of_bands, cumulated_SA, chosen_N.to(observed.device))
        mean_PA = index_NPA.mean(0)
        m2_PA = (index_NPA - mean_PA).square().sum(0)
        exceeding_PA = (index_NPA >= observed).sum(0).double()
        blocks.append((len(chosen_N), torch.stack([mean_PA, m2_PA, exceeding_PA])))
    return Coupling(observed_PA, blocks)


def _indices(phases: Sequence[Phases], cumulated_SA: Tensor, offset_N: Tensor) -> Tensor:
    return torch.cat([index_of(each, cumulated_SA, offset_N) for each in phases], 1)
