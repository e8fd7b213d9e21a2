"""All runs of a config, and what they come to together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel, ConfigDict, Field

from featuremill.base.words import duration, human_bytes
from featuremill.plan.estimate.report import Estimate
from featuremill.plan.speeds.assumed import Range


class Sum(BaseModel):
    """What all runs come to on so many slots, one run after the other: they share the devices."""

    model_config = ConfigDict(frozen=True)
    slots: int
    hours: Range
    device_hours: Range


class WholeEstimate(BaseModel):
    model_config = ConfigDict(frozen=True)
    version: int = 1
    run: str
    runs: list[Estimate]
    sums: list[Sum]
    """A number of slots each; none where one run computes on GPUs and the other does not."""
    besides: str = Field(default="", exclude=True)
    """What is not estimated."""

    @classmethod
    def of(cls, name: str, runs: Sequence[Estimate], besides: str = "") -> WholeEstimate:
        sums = [
            Sum(
                slots=rows[0].slots,
                hours=_sum([row.hours for row in rows]),
                device_hours=_sum([row.device_hours for row in rows]),
            )
            for rows in zip(*(run.rows for run in runs), strict=False)
            if len({run.slot for run in runs}) == len({row.slots for row in rows}) == 1
        ]
        return cls(run=name, runs=list(runs), sums=sums, besides=besides)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the page: each run's, then the sums."""
        for run in self.runs:
            yield from (f"{run.run}:", *(f"  {line}".rstrip() for line in run.lines()), "")
        slot = self.runs[0].slot
        for each in self.sums:
            hours, devices = each.hours, each.device_hours
            yield (
                f"In all, with {each.slots:,} {slot}{'s' * (each.slots != 1)}: "
                f"{_told(hours)}, {slot} hours {devices.middle:.3g}."
            )
        num_bytes = sum(sum(run.disk.values()) for run in self.runs)
        yield f"Disk in all: {human_bytes(num_bytes)}."
        if self.besides:
            yield self.besides


def _told(hours: Range) -> str:
    low, middle, high = (duration(3600 * each) for each in (hours.low, hours.middle, hours.high))
    return middle if low == high else f"{middle} ({low} to {high})"


def _sum(ranges: Sequence[Range]) -> Range:
    low, middle, high = zip(*((one.low, one.middle, one.high) for one in ranges), strict=True)
    return Range(sum(low), sum(middle), sum(high))
