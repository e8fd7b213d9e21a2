"""Tort's modulation index of phases and amplitudes, and of surrogates of them.

For each pair of bands: the mean amplitude in each of 18 bins of the phase, as shares of their sum.
The index is how far these are from equal, `(log 18 - entropy) / log 18` (Tort et al. 2010). A bin
without a sample has the share 0.

A surrogate shifts the amplitudes circularly by s samples. Between two changes of its bin a phase
stays in one bin, so the sum of a surrogate there is a difference of two cumulative sums, at the
changes moved by s. That needs as many look-ups as there are changes, a small part of the samples
for slow phases, and it is exact. Shapes: P phase bands, A amplitude bands, T samples, K bins, E
changes of a bin, N permutations.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

NUM_BINS = 18
BLOCK = 16
"""Permutations that a device gets at a time. Blocks are merged in the same order for any number of
devices."""
AT_ONCE_NUMBERS = {"cpu": 2**18, "cuda": 2**24}
"""Cumulative sums that are looked up at a time: they fit a core's cache, or keep a GPU busy. The
number changes no bit on a CPU."""
Numbers = npt.NDArray[np.float64]


def offsets(
    payload: bytes, seed: int, num_samples: int, permutations: int
) -> npt.NDArray[np.int64]:
    """Return the shift of each permutation, from 1 to T - 1.

    Number i is word i of Philox's stream (a counter-based generator) under a key from the seed and
    the payload's sha256. It depends on nothing else and on no order.
    """
    digest = hashlib.sha256(payload).digest() + seed.to_bytes(8, "little")
    key = np.frombuffer(hashlib.sha256(digest).digest()[:16], "<u8")
    words = np.random.Philox(key=key).random_raw(permutations)
    return (words % np.uint64(num_samples - 1)).astype(np.int64) + 1


class Phases(NamedTuple):
    """The samples at which the phases of all phase bands change their bins."""

    edge_E: Tensor
    """The samples at which bins change, one band after the other: 0, ..., T."""
    bin_R: Tensor
    """Between two edges: phase band x K + bin; P x K between the end of a band and the start of the
    next."""
    count_PK: Tensor
    """Samples in each bin."""

    def to(self, device: torch.device) -> Phases:
        """Return them on `device`."""
        return Phases(*(each.to(device) for each in self))


def phases_of(phase_PT: Tensor) -> Phases:
    """Return where phases, in radians from -pi to pi, change their bins."""
    num_bands = phase_PT.shape[0]
    inner = torch.linspace(-math.pi, math.pi, NUM_BINS + 1, dtype=torch.float64)[1:-1]
    bin_PT = torch.bucketize(phase_PT, inner.to(phase_PT.device), right=True)
    band_P1 = torch.arange(num_bands, device=phase_PT.device)[:, None]
    place_PT = band_P1 * NUM_BINS + bin_PT
    count_PK = torch.bincount(place_PT.reshape(-1), minlength=num_bands * NUM_BINS)
    # The end of a band is an edge as well, behind its last sample.
    end_P1 = torch.full_like(band_P1, num_bands * NUM_BINS)
    place_PT = torch.cat([place_PT, end_P1], 1)
    is_edge = torch.ones_like(place_PT, dtype=torch.bool)
    is_edge[:, 1:] = place_PT[:, 1:] != place_PT[:, :-1]
    edge_E = is_edge.nonzero()[:, 1]
    return Phases(edge_E, place_PT[is_edge][:-1], count_PK.view(num_bands, NUM_BINS))


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
    sums_of = []
    for chosen_N in torch.split(offset_N, size):
        places = (phases.edge_E[:, None] + chosen_N).reshape(-1)
        at_edge = cumulated_SA.index_select(0, places).view(len(phases.edge_E), -1)
        sums = at_edge.new_zeros(num_bands * NUM_BINS + 1, at_edge.shape[1])
        sums.index_add_(0, phases.bin_R, at_edge[1:] - at_edge[:-1])
        sums_of.append(sums[:-1].view(num_bands, NUM_BINS, len(chosen_N), num_amplitudes))
    # A GPU adds in another order, so a sum may be less than the one before it.
    sum_PKNA = torch.cat(sums_of, 2).clamp_min(0)
    mean_PKNA = sum_PKNA / phases.count_PK.clamp_min(1)[:, :, None, None]
    share_PKNA = mean_PKNA / mean_PKNA.sum(1, keepdim=True)
    less_entropy_PNA = torch.xlogy(share_PKNA, share_PKNA).sum(1)
    return (1 + less_entropy_PNA / math.log(NUM_BINS)).transpose(0, 1)


class Moments(NamedTuple):
    """Statistics of the indices of some surrogates, (P, A) each, in float64."""

    n: int
    mean: Numbers
    m2: Numbers
    """Sum of the squared distances from the mean."""
    num_exceeding: Numbers
    """Surrogates whose index is at least the observed one."""

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
    """The results of one segment, on their devices."""

    observed_PA: Tensor
    blocks: list[tuple[int, Tensor]]
    """The number of permutations, mean, m2 and exceedances of each block, (3, P, A)."""

    def results(self) -> tuple[Numbers, ...]:
        """Wait for the devices; return mi, z and p, (P, A) each; without permutations mi alone.

        Blocks are merged in their order, so it does not matter which device had which.
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
    """Launch one segment; the permutations are divided among the `devices` in blocks."""
    # On a CPU each band by itself, so that its sums fit the cache; on a GPU in as few launches as
    # possible.
    bands = torch.split(phase_PT, 1 if phase_PT.device.type == "cpu" else len(phase_PT))
    phases, cumulated_SA = [phases_of(each) for each in bands], cumulated(amplitude_AT)
    none = torch.zeros(1, dtype=torch.int64, device=phase_PT.device)
    observed_PA = _indices(phases, cumulated_SA, none)[0]
    there = [
        ([each.to(device) for each in phases], cumulated_SA.to(device), observed_PA.to(device))
        for device in devices
    ]
    blocks = []
    for number, first in enumerate(range(0, len(offset_N), BLOCK)):
        chosen_N = torch.from_numpy(offset_N[first : first + BLOCK])
        of_bands, cumulated_SA, observed = there[number % len(devices)]
        index_NPA = _indices(of_bands, cumulated_SA, chosen_N.to(observed.device))
        mean_PA = index_NPA.mean(0)
        m2_PA = (index_NPA - mean_PA).square().sum(0)
        exceeding_PA = (index_NPA >= observed).sum(0).double()
        blocks.append((len(chosen_N), torch.stack([mean_PA, m2_PA, exceeding_PA])))
    return Coupling(observed_PA, blocks)


def _indices(phases: Sequence[Phases], cumulated_SA: Tensor, offset_N: Tensor) -> Tensor:
    return torch.cat([index_of(each, cumulated_SA, offset_N) for each in phases], 1)
