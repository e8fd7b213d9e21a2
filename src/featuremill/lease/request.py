"""What a lease asks for, and where its defaults come from: FEATUREMILL_* variables."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from featuremill.base.errors import UserError

Policy = Literal["balanced", "memory", "sequential"]
VARIABLES = {
    "devices": "FEATUREMILL_DEVICES",
    "policy": "FEATUREMILL_POLICY",
    "slots_per_gpu": "FEATUREMILL_SLOTS_PER_GPU",
    "min_free_mb": "FEATUREMILL_MIN_FREE_MB",
    "wait_seconds": "FEATUREMILL_WAIT",
}
"""The variable that gives each field its default. The command line beats it."""

MAX_NUMBER = 1e9


class Request(NamedTuple):
    """What is wanted of which devices."""

    num_gpus: int = 1
    slots_per_gpu: int = 1
    min_free_mb: int = 0
    policy: Policy = "balanced"
    devices: str = ""
    """Numbers or UUID prefixes with commas between them; empty for all."""
    wait_seconds: float | None = None
    """How long to wait for devices; None for ever."""
    index_mode: bool = False
    """Name the devices to the command by number instead of UUID."""

    def check(self) -> None:
        """Refuse what cannot be meant."""
        if self.policy not in get_args(Policy):
            known = ", ".join(get_args(Policy))
            raise UserError(f"lease policy {self.policy!r} does not exist; choose one of {known}.")
        if self.num_gpus < 1 or self.slots_per_gpu < 1 or self.min_free_mb < 0:
            raise UserError(
                f"a lease of {self.num_gpus} GPUs with {self.slots_per_gpu} slots each and "
                f"{self.min_free_mb} MB free cannot be; give positive numbers."
            )

    @classmethod
    def from_environment(
        cls, given: Mapping[str, object] | None = None, num_gpus: int = 1, index_mode: bool = False
    ) -> Request:
        """Return the request of the FEATUREMILL_* variables, where `given` does not say it.

        A number of 0, as from a clipped Snakemake resource, means one.
        """
        values = {field: os.environ.get(name, "") for field, name in VARIABLES.items()}
        values |= {key: str(value) for key, value in (given or {}).items() if value is not None}
        wait = values["wait_seconds"]
        return cls(
            num_gpus=max(1, num_gpus),
            slots_per_gpu=int(_number("slots_per_gpu", values["slots_per_gpu"] or "1")),
            min_free_mb=int(_number("min_free_mb", values["min_free_mb"] or "0")),
            policy=values["policy"] or "balanced",  # type: ignore[arg-type]  # checked above
            devices=values["devices"],
            wait_seconds=_number("wait_seconds", wait) if wait else None,
            index_mode=index_mode,
        )


def _number(field: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or abs(number) > MAX_NUMBER:
        raise UserError(f"{VARIABLES[field]}: {text[:40]!r} is not a number.")
    return number
