"""The request for a lease, with defaults from FEATUREMILL_* variables; and --gpus and --devices of
every command."""

from __future__ import annotations

import re
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

MAX_SLOTS = 256
"""Largest number of slots of a GPU: each is a file in the folder of all users, which stays."""


def wanted(num_gpus: int) -> str:
    """Return the beginning of an error message about too few GPUs."""
    return "1 GPU is wanted" if num_gpus == 1 else f"{num_gpus} GPUs are wanted"


class Request(NamedTuple):
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
        if self.policy not in get_args(Policy):
            known = ", ".join(get_args(Policy))
            raise UserError(f"lease policy {self.policy!r} does not exist; choose one of {known}.")
        if self.num_gpus < 1 or self.slots_per_gpu < 1 or self.min_free_mb < 0:
            raise UserError(
                f"a lease of {self.num_gpus} GPUs with {self.slots_per_gpu} slots each and "
                f"{self.min_free_mb} MB free is impossible; give positive numbers."
            )
        if self.slots_per_gpu > MAX_SLOTS:
            raise UserError(
                f"a GPU of {self.slots_per_gpu} slots is impossible; give at most {MAX_SLOTS}."
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


ALL = "all"
DEVICE = re.compile(r"(?:cuda:)?(\d+)|((?:GPU|MIG)-\S*)")
"""A number of nvidia-smi, also as torch writes it, or the start of a UUID or of a MIG name."""
HELP_OF_DEVICES = "only these GPUs: numbers, UUIDs or MIG names, as in 0,2"


class GpuOptions(NamedTuple):
    """A number of GPUs, and the GPUs to take them from."""

    number: int | None = None
    """The number of GPUs; None for no limit."""
    devices: str = ""
    """Numbers, UUIDs or MIG names with commas between them; empty for any."""

    @classmethod
    def parse(cls, gpus: str | None, devices: str | None) -> GpuOptions:
        """Return the values of `--gpus` and `--devices`. A list after `--gpus` names devices.

        Raises:
            UserError: if a value is invalid, or the values contradict each other.
        """
        if gpus is None or gpus == ALL:
            return cls(None, _listed("--devices", devices) if devices else "")
        if not gpus.isdecimal():
            if devices:
                raise UserError(
                    f"--gpus {gpus} and --devices {devices}: both name devices; leave one of them "
                    "out."
                )
            listed = _listed("--gpus", gpus)
            return cls(listed.count(",") + 1, listed)
        count, listed = int(gpus), _listed("--devices", devices) if devices else ""
        if listed and count > listed.count(",") + 1:
            raise UserError(f"--gpus {gpus}: --devices {devices} names fewer; name as many.")
        return cls(count, listed)

    def of_all(self) -> int | None:
        """Return the number of GPUs, or of the devices if only these are named."""
        if self.number is None and self.devices:
            return self.devices.count(",") + 1
        return self.number

    def check(self) -> None:
        if self.number == 0:
            raise UserError(
                "--gpus 0: this is the number of GPUs; for the GPU of number 0, give --devices 0."
            )


def _listed(option: str, text: str) -> str:
    """Return the devices of a list, without repeats."""
    tokens = [token.strip() for token in text.split(",")]
    if len(tokens) > 1 and not tokens[-1]:  # "0," is a list with one entry
        tokens.pop()
    matches = [DEVICE.fullmatch(token) for token in tokens]
    if not all(matches):
        raise UserError(
            f"{option} {text}: give numbers as nvidia-smi has them, UUIDs (GPU-…) or MIG names "
            "(MIG-…) with commas between them, as in 0,2"
            + ("; or how many, as in 2." if option == "--gpus" else ".")
        )
    return ",".join(dict.fromkeys(match[1] or match[2] for match in matches if match))
