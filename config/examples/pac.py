"""Write the signals that config/examples/pac.yaml runs on: MADE UP, with a coupling that is known.

Four channels of pink noise, a minute at 500 samples a second. In the channel `coupled` the
amplitude of 80 Hz follows the phase of 5 Hz; `together` has both rhythms, one regardless of the
other. Run as `python config/examples/pac.py made`, which makes that folder.
"""

import sys
from pathlib import Path

import numpy as np

RATE_HZ, SECONDS = 500.0, 60
SLOW_HZ, FAST_HZ = 5.0, 80.0
CHANNELS = ("coupled", "together", "noise1", "noise2")


def pink(drawn: np.random.Generator, num_samples: int) -> np.ndarray:
    """Return noise whose power falls as 1/f, of variance 1."""
    spectrum = np.fft.rfft(drawn.standard_normal(num_samples))
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    spectrum[0] = 0
    noise = np.fft.irfft(spectrum, num_samples)
    return noise / noise.std()


def wandering(drawn: np.random.Generator, hz: float, num_samples: int) -> np.ndarray:
    """Return the phase, in radians, of a rhythm that forgets its phase in about a second: of one
    that never does, a shift is as coupled as what was observed."""
    noise = drawn.standard_normal(num_samples) / np.sqrt(RATE_HZ)
    return np.cumsum(2 * np.pi * hz / RATE_HZ + noise)


def main(folder: Path) -> None:
    """Write coupled.npz."""
    drawn = np.random.default_rng(0)
    num_samples = int(RATE_HZ * SECONDS)
    data = np.array([pink(drawn, num_samples) for _ in CHANNELS])
    for row, follows in enumerate([True, False]):
        phase, other = (wandering(drawn, SLOW_HZ, num_samples) for _ in range(2))
        swell = (1 + np.cos(phase if follows else other)) / 2
        data[row] += np.cos(phase) + 0.5 * swell * np.cos(wandering(drawn, FAST_HZ, num_samples))
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        folder / "coupled.npz",
        data=data.astype(np.float32),
        sampling_rate_hz=RATE_HZ,
        channels=CHANNELS,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
