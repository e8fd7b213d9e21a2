"""The request for a lease, with defaults from FEATUREMILL_* variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from . import environment
from .environment import Policy, Setting
from .errors import UserError

VARIABLES: dict[str, Setting[Any]] = {
    "devices": environment.DEVICES,
    "policy": environment.POLICY,
    "slots_per_gpu": environment.SLOTS_PER_GPU,
    "min_free_mb": environment.MIN_FREE_MB,
    "wait_seconds": environment.WAIT,
}
"""The variable with the default of each field; the command line overrides it."""


def wanted(num_gpus: int) -> str:
    """Return the beginning of an error message about too few GPUs."""
    return "1 GPU is wanted" if num_gpus == 1 else f"{num_gpus} GPUs are wanted"


class Request(NamedTuple):
    """The number and kind of requested devices."""

    num_gpus: int = 1
    slots_per_gpu: int = 1
    min_free_mb: int = 0
    policy: Policy = "balanced"
    devices: str = ""
    """Numbers or UUID prefixes with commas between them; empty for all."""
    wait_seconds: float | None = None
    """Longest wait for devices, in seconds; None: no limit."""
    index_mode: bool = False
    """Whether CUDA_VISIBLE_DEVICES has numbers instead of UUIDs."""

    def check(self) -> None:
        """Raise UserError for invalid values."""
        if self.policy not in get_args(Policy):
            known = ", ".join(get_args(Policy))
            raise UserError(f"lease policy {self.policy!r} does not exist; choose one of {known}.")
        if self.num_gpus < 1 or self.slots_per_gpu < 1 or self.min_free_mb < 0:
            raise UserError(
                f"a lease of {self.num_gpus} GPUs with {self.slots_per_gpu} slots each and "
                f"{self.min_free_mb} MB free is impossible; give positive numbers."
            )

    @classmethod
    def from_environment(
        cls, fields: Mapping[str, object] | None = None, num_gpus: int = 1, index_mode: bool = False
    ) -> Request:
        """Return the request from FEATUREMILL_* variables; `fields` override their values.

        A `num_gpus` of 0, as from a clipped Snakemake resource, means 1.
        """
        texts = {key: str(value) for key, value in (fields or {}).items() if value is not None}
        values = {
            field: variable.parse(texts[field]) if field in texts else variable.value()
            for field, variable in VARIABLES.items()
        }
        return cls(max(1, num_gpus), index_mode=index_mode, **values)
