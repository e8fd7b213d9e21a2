"""What a job's samples come to: the few numbers that its receipt keeps."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any


class _Values:
    """The mean and the highest of what was seen."""

    def __init__(self) -> None:
        self.num, self.sum = 0, 0.0
        self.highest: float | None = None

    def add(self, value: float) -> None:
        self.num += 1
        self.sum += value
        self.highest = value if self.highest is None else max(self.highest, value)

    @property
    def mean(self) -> float:
        return round(self.sum / self.num, 1)


class Summary:
    """Adds samples up; takes as much memory for a thousand as for one."""

    def __init__(self) -> None:
        self._num_samples = 0
        self._values: defaultdict[str, _Values] = defaultdict(_Values)
        self._throttled_seconds: Counter[str] = Counter()

    def add(self, sample: dict[str, Any], seconds: float) -> None:
        """Add a sample, taken so long after the last one."""
        self._num_samples += 1
        devices = sample.get("devices", [])
        for key, combine in (("utilisation", _mean), ("memory_mb", max), ("power_w", sum),
                             ("temperature_c", max)):  # fmt: skip
            if seen := [device[key] for device in devices if key in device]:
                self._values[key].add(combine(seen))
        for key, value in sample.get("process", {}).items():
            self._values[f"process.{key}"].add(value)
        self._throttled_seconds.update(
            {reason: seconds for device in devices for reason in device.get("throttle", ())}
        )

    def told(self, energy_j: float | None, num_attempts: int) -> dict[str, Any]:
        """Return the receipt's entry; `energy_j` and `num_attempts` are of all attempts."""
        found: dict[str, Any] = {"samples": self._num_samples, "attempts": num_attempts}
        if energy_j is not None:
            found["energy_j"] = round(energy_j, 1)
        for key, name, which in (
            ("utilisation", "utilisation_percent", "mean"),
            ("memory_mb", "memory_mb", "highest"),
            ("power_w", "power_w", "mean"),
            ("temperature_c", "temperature_c", "highest"),
            ("process.cpu_percent", "cpu_percent", "mean"),
            ("process.memory_mb", "process_memory_mb", "highest"),
        ):
            if key in self._values:
                found[name] = getattr(self._values[key], which)
        if self._throttled_seconds:
            seconds = self._throttled_seconds.items()
            found["throttled_seconds"] = {reason: round(value, 1) for reason, value in seconds}
        return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
