"""The `options` of the workload pac."""

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
    """Bands of equal width, each starting at the end of the one before it."""

    model_config = ConfigDict(extra="forbid")
    low: Hz = Field(description="Lower edge of the first band in Hz.")
    high: Hz = Field(description="Upper edge of the last band in Hz.")
    bands: int = Field(ge=1, le=200, description="The number of bands.")


def _spread(raw: Any) -> Any:
    """Return the bands of a range; anything else unchanged."""
    if not isinstance(raw, dict):
        return raw
    range_ = Range.model_validate(raw)
    width = (range_.high - range_.low) / range_.bands
    edges = [range_.low + band * width for band in range(range_.bands)] + [range_.high]
    return tuple(pairwise(edges))


Bands = Annotated[
    tuple[Band, ...], BeforeValidator(_spread, json_schema_input_type=tuple[Band, ...] | Range)
]
LEAST_CYCLES = 3
"""Cycles of the lowest band that a segment must hold."""


class Options(WorkloadOptions):
    """The couplings and the segments to compute."""

    EXECUTION = frozenset({"segment_seconds", "overlap_seconds", "sampling_rate_hz", "channels"})
    """They determine the records; payloads contain their effect."""
    PACKAGES = MappingProxyType(dict.fromkeys(("scipy", "torch"), "featuremill[pac]"))

    phase_bands: Bands = Field(default=((2, 4), (4, 8), (8, 13)), min_length=1)
    """Bands of the phase, each with its lower and its upper edge in Hz: the rows of the values.
    `{low: 2, high: 20, bands: 9}` means nine bands of 2 Hz."""
    amplitude_bands: Bands = Field(default=((30, 50), (50, 70), (70, 90), (90, 110)), min_length=1)
    """Bands of the amplitude, in the same form: the columns of the values. A band should hold both
    sidebands: make it at least twice as wide as the highest phase frequency."""
    segment_seconds: Seconds | None = None
    """Length of a segment in seconds. If not given, a recording is one segment. A shorter remainder
    is left out; the last segment has a note about it."""
    overlap_seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds that a segment shares with the one before it."""
    sampling_rate_hz: Hz | None = None
    """Samples a second, for files without a rate (.npy)."""
    channels: tuple[str, ...] = ()
    """Names of the channels to compute; if not given, all."""
    permutations: int = Field(default=200, ge=0, le=1_000_000)
    """Surrogates of each segment: the amplitudes, shifted circularly against the phases by so many
    random offsets. The lowest possible `p` is 1 / (1 + permutations). 0: no surrogates, only the
    index `mi`."""
    seed: int = Field(default=0, ge=0)
    """The seed of the offsets, together with the content of the segment: equal segments have equal
    values in any run."""
    cycles: Annotated[tuple[Cycles, ...], Field(min_length=2, max_length=2)] = (3, 6)
    """The lengths of the filters, in cycles of a band's lower edge: of phase bands, then of
    amplitude bands. Longer filters are sharper and follow changes of the amplitude less."""
    passes: Literal[1, 2] = 1
    """How often each filter is applied: 2 is forwards and backwards, as in tensorpac, which is
    sharper."""

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
        """Every band with the cycles of its filter, phases first, then amplitudes."""
        of_phase, of_amplitude = self.cycles
        return (
            *((band, of_phase) for band in self.phase_bands),
            *((band, of_amplitude) for band in self.amplitude_bands),
        )

    @property
    def least_cycles(self) -> tuple[float, float]:
        """The least length of a segment: a number of cycles, and their frequency in Hz. It is three
        cycles of the lowest band, or the longest filter."""
        needs = [(max(LEAST_CYCLES, cycles), band[0]) for band, cycles in self.bands]
        return max(needs, key=lambda need: need[0] / need[1])

    def num_seen(self, rate_hz: float) -> int:
        """Return how many samples the longest filter reads before, and after, its output."""
        halves = [half_of_filter(band, cycles, rate_hz) for band, cycles in self.bands]
        return self.passes * max(halves)


def half_of_filter(band: Sequence[float], cycles: float, rate_hz: float) -> int:
    """Return how many samples the filter of a band (its edges in Hz) reads on each side."""
    return int(cycles * rate_hz / band[0] / 2)
