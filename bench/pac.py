"""The workload pac beside tensorpac, in one run on this machine.

    pip install -c constraints.txt tensorpac==0.6.5 matplotlib
    python -m bench.pac
    python -m bench.pac --phases 10 --amplitudes 10 --rate 2000

Both give the modulation index of every pair of bands in segments of pink noise, and as many
surrogates of it by shifts. featuremill's time has its filters and Hilbert transform in it;
tensorpac gets the phases and amplitudes. It is called for a pair of bands and a segment at a time,
and once more for all pairs of a segment, which is quicker and gives other numbers: it pools how
many samples are in a bin. Passes alternate, on one thread; told is the median of the processor's
seconds a segment, and how far from featuremill's the indices lie.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from featuremill.base.devices import cpu
from featuremill.workload.compute import values_of
from featuremill.workloads import pac
from featuremill.workloads.pac import coupling, signals

PASSES = 3
Numbers = npt.NDArray[np.float64]


def bands(number: int, lowest_hz: float, width_hz: float) -> list[list[float]]:
    """Return bands one above the other."""
    edges = [lowest_hz + width_hz * place for place in range(number + 1)]
    return [list(pair) for pair in itertools.pairwise(edges)]


def pink(num_segments: int, num_samples: int) -> Numbers:
    """Return segments of noise whose power falls as 1/f."""
    spectrum = np.fft.rfft(np.random.default_rng(0).standard_normal((num_segments, num_samples)))
    spectrum[:, 1:] /= np.sqrt(np.arange(1, spectrum.shape[1]))
    return np.fft.irfft(spectrum, num_samples)


def ours(model: Any, payloads: list[bytes]) -> Numbers:
    """Return the indices that a worker computes, (segments, phases, amplitudes)."""
    values = values_of(pac, model, payloads, 1)
    shape = len(payloads), len(model.options.phase_bands), len(model.options.amplitude_bands)
    found: Numbers = values["mi"].flatten().to_numpy().reshape(shape)
    return found


def fitted(tensorpac: Any, phase_PT: Numbers, amplitude_AT: Numbers, n: int) -> Numbers:
    """Return the indices (P, A) that tensorpac computes in one call, with `n` surrogates each."""
    given = phase_PT[:, None], amplitude_AT[:, None]
    tensorpac.fit(*given, n_perm=n, n_jobs=1, random_state=0, verbose=False)
    found: Numbers = tensorpac.pac[..., 0].T
    return found


def pair_by_pair(tensorpac: Any, phase_PT: Numbers, amplitude_AT: Numbers, n: int) -> Numbers:
    """Return what `fitted` does, from a call a pair."""
    rows = [
        [fitted(tensorpac, phase[None], amplitude[None], n)[0, 0] for amplitude in amplitude_AT]
        for phase in phase_PT
    ]
    return np.array(rows)


def main() -> None:
    """Measure, and print a line for each of the two."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--segments", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rate", type=float, default=1000)
    parser.add_argument("--phases", type=int, default=3)
    parser.add_argument("--amplitudes", type=int, default=4)
    parser.add_argument("--permutations", type=int, default=200)
    arguments = parser.parse_args()
    from tensorpac import Pac

    torch.set_num_threads(1)
    options = pac.Options.model_validate(
        {
            "phase_bands": bands(arguments.phases, 2, 2),
            "amplitude_bands": bands(arguments.amplitudes, 40, 20),
            "permutations": arguments.permutations,
        }
    )
    model = pac.load(options, [cpu()], None)
    num_samples = int(arguments.seconds * arguments.rate)
    data = pink(arguments.segments, num_samples)
    payloads = [signals.payload_of(row, arguments.rate) for row in data]
    bank = coupling.bank(options, arguments.rate, num_samples)
    gain_BF = torch.from_numpy(bank.gain_BF)
    analytic = [
        coupling.analytic(signals.signal_of(payload), bank, gain_BF).numpy() for payload in payloads
    ]
    given = [
        (np.angle(each[: arguments.phases]), np.abs(each[arguments.phases :])) for each in analytic
    ]
    # Tort's index; surrogates by a lag (3); z of them (4).
    tensorpac, n = Pac(idpac=(2, 3, 4), verbose=False), arguments.permutations
    ways: dict[str, Callable[[], Numbers]] = {
        "featuremill": lambda: ours(model, payloads),
        "tensorpac": lambda: np.array([pair_by_pair(tensorpac, *each, n) for each in given]),
        "all at once": lambda: np.array([fitted(tensorpac, *each, n) for each in given]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, Numbers] = {}
    for number in range(PASSES + 1):
        for name, compute in ways.items():
            start = time.process_time()
            found[name] = compute()
            if number:  # the first one warms up
                seconds[name].append(time.process_time() - start)
    print(
        f"{arguments.segments} segments of {num_samples:,} samples, {arguments.phases} x "
        f"{arguments.amplitudes} bands, {n} surrogates; {cpu().name}, one core"
    )
    quickest = statistics.median(seconds["featuremill"])
    for name, each in seconds.items():
        took, off = statistics.median(each), np.abs(found[name] - found["featuremill"]).max()
        print(
            f"{name:12} {took / arguments.segments:8.4f} s a segment, {took / quickest:6.1f} times "
            f"as long; indices at most {off:.1g} off"
        )


if __name__ == "__main__":
    main()
