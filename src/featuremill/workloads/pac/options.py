"""What a config may set under `options` for the workload pac."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from featuremill.workload import WorkloadOptions

Hz = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Band = Annotated[tuple[Hz, ...], Field(min_length=2, max_length=2)]
Cycles = Annotated[float, Field(ge=1, le=100)]


class Range(BaseModel):
    """So many bands of the same width, each beginning where the one before it ends."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    low: Hz
    """Lower edge of the first band in Hz."""
    high: Hz
    """Upper edge of the last one."""
    bands: int = Field(ge=1, le=200)
    """How many there are."""


def _spread(given: Any) -> Any:
    """Return the bands of a range; anything else as it is."""
    if not isinstance(given, dict):
        return given
    asked = Range.model_validate(given)
    width = (asked.high - asked.low) / asked.bands
    edges = [asked.low + place * width for place in range(asked.bands)] + [asked.high]
    return tuple(pairwise(edges))


Bands = Annotated[
    tuple[Band, ...], BeforeValidator(_spread, json_schema_input_type=tuple[Band, ...] | Range)
]
LEAST_CYCLES = 3
"""Of the lowest band in a segment."""


class Options(WorkloadOptions):
    """Which couplings are computed of which segments."""

    EXECUTION = frozenset({"segment_seconds", "overlap_seconds", "sampling_rate_hz", "channels"})
    """They say what the records are, whose payloads tell it themselves."""
    PACKAGES = MappingProxyType(dict.fromkeys(("scipy", "torch"), "featuremill[pac]"))

    phase_bands: Bands = Field(default=((2, 4), (4, 8), (8, 13)), min_length=1)
    """Bands whose phase counts, each its lower and its upper edge in Hz: the rows of the values.
    `{low: 2, high: 20, bands: 9}` stands for nine bands of 2 Hz."""
    amplitude_bands: Bands = Field(default=((30, 50), (50, 70), (70, 90), (90, 110)), min_length=1)
    """Bands whose amplitude counts, in the same way: the columns of the values. One should be wide
    enough for both sidebands, so at least twice the highest phase that it may be coupled to."""
    segment_seconds: Seconds | None = None
    """Length of a segment in seconds. If not given, a recording is one segment. What is left at its
    end and shorter is left out, which the last segment says in a note."""
    overlap_seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds that a segment has in common with the one before it."""
    sampling_rate_hz: Hz | None = None
    """Samples a second, of files that do not say it (.npy)."""
    channels: tuple[str, ...] = ()
    """Names of the channels that are computed; if not given, all."""
    permutations: int = Field(default=200, ge=0, le=1_000_000)
    """Surrogates of each segment: the amplitudes, shifted circularly against the phases by so many
    offsets drawn at random. The lowest `p` there can be is 1 / (1 + permutations). 0: no
    surrogates, so only the index `mi` is delivered."""
    seed: int = Field(default=0, ge=0)
    """Of the offsets, with what is in the segment: equal segments have equal values in any run."""
    cycles: Annotated[tuple[Cycles, ...], Field(min_length=2, max_length=2)] = (3, 6)
    """How long the filters are, in cycles of a band's lower edge: those of phase bands, then those
    of amplitude bands. Longer ones are sharper and see less of how an amplitude changes."""
    passes: Literal[1, 2] = 1
    """How often each filter is applied: 2 is forwards and backwards, as tensorpac does,
    which is sharper."""

    @field_validator("phase_bands", "amplitude_bands")
    @classmethod
    def _rising(cls, bands: tuple[Band, ...]) -> tuple[Band, ...]:
        for low, high in bands:
            if not low < high:
                raise ValueError(f"{low:g} to {high:g} Hz is no band; give the lower edge first")
        return bands

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.permutations == 1:
            raise ValueError("permutations: 1 has no deviation; give 0, or 2 and more")
        if self.segment_seconds is None:
            if self.overlap_seconds:
                raise ValueError("overlap_seconds has no effect without segment_seconds")
        elif self.overlap_seconds >= self.segment_seconds:
            raise ValueError("overlap_seconds has to be less than segment_seconds")
        return self

    @property
    def bands(self) -> tuple[tuple[tuple[float, ...], float], ...]:
        """Every band with the cycles of its filter: those of phases, then those of amplitudes."""
        of_phase, of_amplitude = self.cycles
        return (
            *((band, of_phase) for band in self.phase_bands),
            *((band, of_amplitude) for band in self.amplitude_bands),
        )

    @property
    def least_cycles(self) -> tuple[float, float]:
        """What a segment has to hold: so many cycles, and of which frequency in Hz. It is three of
        the lowest band, or the longest filter."""
        needs = [(max(LEAST_CYCLES, cycles), band[0]) for band, cycles in self.bands]
        return max(needs, key=lambda need: need[0] / need[1])

    def num_seen(self, rate_hz: float) -> int:
        """Return how many samples the longest filter sees before, and after, the one it gives."""
        halves = [half_of_filter(band, cycles, rate_hz) for band, cycles in self.bands]
        return self.passes * max(halves)


def half_of_filter(band: Sequence[float], cycles: float, rate_hz: float) -> int:
    """Return how many samples the filter of a band (its edges in Hz) sees to each side."""
    return int(cycles * rate_hz / band[0] / 2)
