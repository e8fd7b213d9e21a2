"""On what, and on how many of them, a run is estimated: what was typed, checked."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import NamedTuple

from featuremill.base.errors import UserError
from featuremill.base.this_process import num_cores
from featuremill.config import Run
from featuremill.lease import devices
from featuremill.lease.devices import Device
from featuremill.plan.command import planning_device
from featuremill.plan.speeds import earlier, table

MOST_SLOTS = 100_000


class Place(NamedTuple):
    """What the run would be computed on."""

    device: Device
    name: str
    """Of the GPU, as far as anybody said; "" for any. Of a CPU, its own."""
    slots: tuple[int, ...]
    """Numbers of GPUs, or of jobs side by side on the CPU."""
    gpus_a_job: int

    @property
    def is_gpu(self) -> bool:
        """Whether it is GPUs."""
        return self.device.kind == "cuda"

    def jobs(self, slots: int) -> int:
        """Return how many jobs run side by side on so many slots."""
        return slots // self.gpus_a_job

    def threads(self, slots: int) -> int:
        """Return the cores of each of so many jobs on the CPU."""
        return 0 if self.is_gpu else max(1, num_cores() // slots)


def choose(arguments: argparse.Namespace, config: Run) -> Place:
    """Return where to estimate for.

    Raises:
        UserError: for numbers that mean nothing, and for what contradicts the config.
    """
    _check_numbers(arguments)
    wants_gpu = bool(arguments.gpus or arguments.device)
    if config.device == "cpu" and wants_gpu:
        raise UserError(
            f"{arguments.config}: device: cpu computes on the CPU; give --cpu-slots, or set "
            "device: auto."
        )
    if config.device == "cuda" and arguments.cpu_slots:
        raise UserError(
            f"{arguments.config}: device: cuda computes on GPUs; give --gpus, or set device: auto."
        )
    if arguments.cpu_slots and arguments.device:
        raise UserError("--device names a GPU; give --gpus with it, not --cpu-slots.")
    here = [] if config.device == "cpu" or arguments.cpu_slots else devices.cuda_devices()
    if not (wants_gpu or here or config.device == "cuda"):
        return _cpu(arguments)
    slots = _numbers("--gpus", arguments.gpus or str(config.gpus))
    for number in slots:
        if number < config.gpus:
            raise UserError(
                f"--gpus {number}: one job of this config needs {config.gpus}; give at least as "
                "many, or lower gpus: in the config."
            )
    if arguments.device:
        device = _named(arguments.device)
        return Place(device, arguments.device, slots, config.gpus)
    device = planning_device("cuda")
    return Place(device, device.name if here else "", slots, config.gpus)


def _cpu(arguments: argparse.Namespace) -> Place:
    slots = _numbers("--cpu-slots", arguments.cpu_slots or "1")
    if max(slots) > num_cores():
        raise UserError(
            f"--cpu-slots {max(slots)}: this machine has {num_cores()} cores, and each job takes "
            "one at least; give a smaller number."
        )
    device = devices.cpu()
    return Place(device, device.name, slots, 1)


def _named(name: str) -> Device:
    """Return the GPU that `name` means, as much as the table knows of it."""
    cards = table.cards_called(name)
    if not cards:
        return Device("cuda", "", name, has_bf16=True)
    card = cards[0]
    return Device("cuda", "", card.name, card.has_bf16, 0, card.memory_mb, card.num_multiprocessors)


def asked(place: Place, slots: int, settings: dict[str, object]) -> earlier.Asked:
    """Return what to ask the speed of."""
    return earlier.Asked(settings, place.name, place.is_gpu, place.gpus_a_job, place.threads(slots))


def _numbers(option: str, text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= MOST_SLOTS for word in words):
        raise UserError(
            f"{option} {text!r}: give numbers from 1 to {MOST_SLOTS:,} with commas between them, "
            "such as 1,4,64."
        )
    return tuple(dict.fromkeys(int(word) for word in words))


def _check_numbers(arguments: argparse.Namespace) -> None:
    least = {"tokens_per_second": 1e-9, "startup_seconds": 0.0, "records": 1.0, "threads": 1}
    for name, smallest in least.items():
        value = getattr(arguments, name)
        if value is not None and not (math.isfinite(value) and value >= smallest):
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} {value:g}: give a positive number.")
    if arguments.scratch is not None and not Path(arguments.scratch).is_dir():
        raise UserError(
            f"--scratch {arguments.scratch}: there is no such folder; make it, or name another."
        )
