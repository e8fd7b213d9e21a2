"""Read typed environment variables; the variables of leases.

The variables have the prefix FEATUREMILL_ in every program that is built from this source, because
a lease has to find the outer lease. No other module of this package reads the environment.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar, cast, get_args

from .errors import UserError

Policy = Literal["balanced", "memory", "sequential"]
"""The policy that chooses among free GPUs; docs/lease.md describes them."""
T = TypeVar("T")
MAX_NUMBER = 1e9
MAX_SHOWN = 40
"""Largest number of characters of an invalid value in a message."""


_KEPT: dict[str, str | None] = {}
"""The values of variables before `set_for_children`."""


class Variable:
    def __init__(self, name: str, meaning: str = "") -> None:
        self.name = name
        self.meaning = meaning
        """The meaning in Markdown, for docs/environment.md."""

    def __str__(self) -> str:
        return self.name

    def text(self) -> str | None:
        """Return its value; None if it is not set."""
        return _KEPT[self.name] if self.name in _KEPT else os.environ.get(self.name)

    def set(self, text: str) -> None:
        """Set it for this process and new child processes."""
        os.environ[self.name] = text

    def set_for_children(self, text: str) -> None:
        """Set it for new child processes only; `text()` still returns the former value."""
        _KEPT.setdefault(self.name, self.text())
        self.set(text)

    def restore(self) -> None:
        """Undo `set_for_children`."""
        held = _KEPT.pop(self.name, None)
        self.unset() if held is None else self.set(held)

    def set_default(self, text: str) -> None:
        os.environ.setdefault(self.name, text)

    def unset(self) -> None:
        os.environ.pop(self.name, None)


class ValueType(NamedTuple, Generic[T]):
    words: str
    """The noun of the value, as in "…: 'x' is not <words>"."""
    parse: Callable[[str], T]
    """A function that parses a text; it raises ValueError for an invalid one."""


class Setting(Variable, Generic[T]):
    """A typed variable with a default, for an unset or empty variable."""

    def __init__(
        self,
        name: str,
        kind: ValueType[T],
        default: T,
        meaning: str,
        default_words: str = "",
        is_internal: bool = False,
    ) -> None:
        """`default_words` describe the default in docs/environment.md."""
        super().__init__(f"FEATUREMILL_{name}", meaning)
        self.kind = kind
        self.default = default
        self.default_words = default_words
        self.is_internal = is_internal

    def value(self) -> T:
        """Return its value.

        Raises:
            UserError: if the value is invalid.
        """
        return self.parse(self.text() or "")

    def parse(self, text: str) -> T:
        """Return the value of `text`; raise UserError as `value` does."""
        if not text:
            return self.default
        try:
            return self.kind.parse(text)
        except ValueError:
            raise UserError(
                f"{self.name}: {text[:MAX_SHOWN]!r} is not {self.kind.words}; fix or unset it."
            ) from None


def number(text: str) -> float:
    """Return a finite number; raise ValueError for an invalid text."""
    value = float(text)
    if not math.isfinite(value) or abs(value) > MAX_NUMBER:
        raise ValueError
    return value


def _policy(text: str) -> Policy:
    if text not in get_args(Policy):
        raise ValueError
    return cast(Policy, text)


TEXT: ValueType[str] = ValueType("a text", str)
LIST: ValueType[str] = ValueType("names with commas between", str)
FOLDER: ValueType[Path | None] = ValueType("a folder", Path)
NUMBER: ValueType[int] = ValueType("a number", lambda text: int(number(text)))
SECONDS_OR_NEVER: ValueType[float | None] = ValueType("a number of seconds", number)
POLICY_NAME: ValueType[Policy] = ValueType(f"one of {', '.join(get_args(Policy))}", _policy)

DEVICES = Setting(
    "DEVICES",
    LIST,
    "",
    "The only GPUs to lease, as in `0,2`: numbers of `nvidia-smi`, or UUIDs.",
    "all",
)
LEASED = Setting(
    "LEASED",
    LIST,
    "",
    "The slots that a lease around this process holds, `<device>@<slot>of<slots>`.",
    is_internal=True,
)
LEASE_FOLDER = Setting(
    "LEASE_FOLDER",
    FOLDER,
    None,
    "Locks of leases: on a disk of this machine, the same for all users of its GPUs.",
    "`featuremill-leases` below `/run/lock`, `/dev/shm` or `/tmp`",
)
MIN_FREE_MB = Setting("MIN_FREE_MB", NUMBER, 0, "MiB that must be free on a leased GPU.")
BALANCED: Policy = "balanced"
POLICY = Setting(
    "POLICY",
    POLICY_NAME,
    BALANCED,
    "Which free GPU a lease takes ([choices](lease.md#options)).",
)
SLOTS_PER_GPU = Setting("SLOTS_PER_GPU", NUMBER, 1, "Equal slots of a GPU; a lease takes one.")
WAIT = Setting(
    "WAIT",
    SECONDS_OR_NEVER,
    None,
    "Seconds that a lease waits for its GPUs.",
    "no limit",
)
_GIVEN_GPUS = "The GPUs that a scheduler or container gave, if `CUDA_VISIBLE_DEVICES` is not set."
CUDA_DEVICE_ORDER = Variable("CUDA_DEVICE_ORDER", "Set to `PCI_BUS_ID`, the order of `nvidia-smi`.")
CUDA_VISIBLE_DEVICES = Variable(
    "CUDA_VISIBLE_DEVICES", "The GPUs that may be used; a lease sets it for its command."
)
NVIDIA_VISIBLE_DEVICES = Variable("NVIDIA_VISIBLE_DEVICES", _GIVEN_GPUS)
SLURM_JOB_GPUS = Variable("SLURM_JOB_GPUS", _GIVEN_GPUS)
SLURM_STEP_GPUS = Variable("SLURM_STEP_GPUS", _GIVEN_GPUS)


def of_child(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of this process with `changes`, for a child process."""
    return {**os.environ, **changes}
