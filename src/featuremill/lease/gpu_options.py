"""The options `--gpus` (a number) and `--devices` (a list), parsed the same by all commands."""

from __future__ import annotations

import re
from typing import NamedTuple

from .errors import UserError

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
        """Raise UserError for `--gpus 0`."""
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
