"""estimate: how long a run will take on so many devices, and what it needs, before it is started.

Reads the plan, or the input where there is none; writes nothing to the run's folder. What a speed
is taken from is always said: an earlier run, a number that was given, or an assumption.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from pathlib import Path

from featuremill import config as configs
from featuremill.base.errors import UserError
from featuremill.base.this_process import num_cores
from featuremill.config import Config
from featuremill.lease import devices
from featuremill.plan import speeds
from featuremill.plan.command import planning_device
from featuremill.plan.estimate import report, view, work
from featuremill.plan.estimate.report import Facts, Model, Place
from featuremill.plan.speeds import Speed, table
from featuremill.plan.speeds.assumed import Rates, shape_told
from featuremill.store.results import Results
from featuremill.store.weights_file import WeightsFile
from featuremill.workload import Device, TellsMemory, find_workload
from featuremill.workload import weights as weights_verb
from featuremill.workload.recipe import settings_of

RESULTS = Path("results")
MOST_SLOTS = 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `featuremill estimate`."""
    add = parser.add_argument
    add("config", type=Path, help="YAML file of the run")
    slots = parser.add_mutually_exclusive_group()
    slots.add_argument("--gpus", metavar="1,4,64", help="numbers of GPUs to estimate for")
    slots.add_argument(
        "--cpu-slots", metavar="1,2", help="numbers of jobs side by side that share this CPU"
    )
    add("--device", metavar="NAME", help='the GPUs\' model, such as "NVIDIA H100 80GB HBM3"')
    add(
        "--tokens-per-second",
        type=float,
        metavar="N",
        help="speed of one job, in the workload's unit of cost (instead of looking for one)",
    )
    add(
        "--startup-seconds",
        type=float,
        metavar="S",
        help="what a job takes besides computing; a cluster's queue adds seconds to each",
    )
    add(
        "--records",
        type=float,
        metavar="N",
        help="as if the input had so many records of the same kind: a sample is enough",
    )
    add("--threads", type=int, help="processes that read the input (all cores)")
    add("--scratch", type=Path, help="folder for what reading the input needs (the system's)")
    add("--json", action="store_true", help="the same for programs")


def run(arguments: argparse.Namespace) -> int:
    """Carry out `featuremill estimate`."""
    config = configs.read(arguments.config)
    place = _place(arguments, config)
    model = _model(config)
    workload = find_workload(config.workload)
    options = workload.Options.model_validate(config.options)
    settings = settings_of(config.workload, workload, options, place.device, model.weights)
    folder = Results(RESULTS / config.run)
    found = work.look(folder, config, settings, arguments.threads, arguments.scratch)
    if arguments.records:
        found = work.scaled(found, arguments.records, config.shards.cost)
    facts = Facts(config, folder, workload, settings, found, place, model)
    by_slots = [(slots, _speed(arguments, facts, slots)) for slots in place.slots]
    answer = report.answer(facts, by_slots)
    if arguments.json:
        sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("\n".join(view.lines(answer)) + "\n")
    return 0


def _model(config: Config) -> Model:
    """Return the run's model, by its weights file or by its name.

    Raises:
        UserError: for a model that nobody can say anything about before its weights are there.
    """
    workload = find_workload(config.workload)
    options = workload.Options.model_validate(config.options)
    asked = workload.weights(options)
    if not asked:
        return Model(None, None, True)
    path = Path(weights_verb.json_of(asked))
    if entry := WeightsFile.find(path):
        return Model(weights_verb.weights_of(entry), shape_told(entry.metadata), True)
    if not isinstance(workload, TellsMemory):
        command = shlex.join(["featuremill", "weights", asked, "--output", str(path)])
        raise UserError(
            f"{path}: this run's model is not there yet, and nothing is known of it; make it with "
            f"`{command}`, then again."
        )
    weights = workload.weights_ahead(options)
    return Model(weights, shape_told(weights.metadata), False)


def _speed(arguments: argparse.Namespace, facts: Facts, slots: int) -> Speed:
    """Return the speed of one job on so many slots."""
    place, asked = facts.place, facts.asked(slots)
    if rate := arguments.tokens_per_second:
        startup = speeds.startup_of(asked, RESULTS)
        speed = speeds.given(rate, place.name or "a GPU", startup)
    elif place.is_gpu and not place.name and not speeds.earlier.look(RESULTS, asked):
        raise UserError(
            "no GPU is here and none has computed this model yet; say which it will be with "
            '--device (such as "NVIDIA H100 80GB HBM3"), or --tokens-per-second.'
        )
    else:
        speed = speeds.find(asked, RESULTS, facts.model.shape, facts.work.mean_cost)
    if (seconds := arguments.startup_seconds) is not None:
        startup_seconds = Rates(seconds, seconds, seconds)
        speed = speed._replace(startup_seconds=startup_seconds, is_startup_measured=True)
    return speed


def _place(arguments: argparse.Namespace, config: Config) -> Place:
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
        slots = _numbers("--cpu-slots", arguments.cpu_slots or "1")
        if max(slots) > num_cores():
            raise UserError(
                f"--cpu-slots {max(slots)}: this machine has {num_cores()} cores, and each job "
                "takes one at least; give a smaller number."
            )
        device = devices.cpu()
        return Place(device, device.name, slots, 1)
    slots = _numbers("--gpus", arguments.gpus or str(config.gpus))
    if min(slots) < config.gpus:
        raise UserError(
            f"--gpus {min(slots)}: one job of this config needs {config.gpus}; give at least as "
            "many, or lower gpus: in the config."
        )
    if arguments.device:
        return Place(_named(arguments.device), arguments.device, slots, config.gpus)
    device = planning_device("cuda")
    return Place(device, device.name if here else "", slots, config.gpus)


def _named(name: str) -> Device:
    """Return the GPU that `name` means, as much as the table knows of it."""
    cards = table.cards_called(name)
    if not cards:
        return Device("cuda", "", name, has_bf16=True)
    card = cards[0]
    return Device("cuda", "", card.name, card.has_bf16, 0, card.memory_mb, card.num_multiprocessors)


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
