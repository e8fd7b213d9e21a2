"""estimate: how long a run will take on so many devices, and what it needs, before it starts.

Reads the plan, or the input without a plan; writes nothing to the run's folder.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from featuremill.base import devices
from featuremill.base.errors import UserError
from featuremill.base.this_process import num_cores
from featuremill.base.words import listed
from featuremill.config import Run, project, yaml_lines
from featuremill.config.problems import Places
from featuremill.plan.estimate.report import Case, Estimate, WholeEstimate
from featuremill.plan.estimate.work import PREFIX, look
from featuremill.plan.speeds import cards_called
from featuremill.store.results import Results
from featuremill.store.weights_file import WeightsFile
from featuremill.workload import DEFAULT, Device, EstimatesMemory, Weights, Workload, optional
from featuremill.workload import weights as weights_verb
from featuremill.workload.hugging_face import place_of
from featuremill.workload.recipe import settings_of

RESULTS = Path("results")
MOST_SLOTS = 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "config",
        type=Path,
        metavar="RUN",
        help="a config, the folder of a run, or a file of records",
    )
    add("--model", help="the network; without a config, of the workload")
    add("--workload", help=f"what is computed; default: that of the config, or {DEFAULT}")
    slots = parser.add_mutually_exclusive_group()
    slots.add_argument("--gpus", metavar="1,4,64", help="numbers of GPUs to estimate for")
    slots.add_argument(
        "--cpu-slots", metavar="1,2", help="numbers of jobs side by side that share this CPU"
    )
    add("--device", metavar="NAME", help='the GPUs\' model, such as H100 or "RTX 4090"')
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
    add("--json", action="store_true", help="print JSON, for programs")


def run(arguments: argparse.Namespace) -> int:
    for name, smallest in {"tokens_per_second": 1e-9, "startup_seconds": 0.0}.items():
        value = getattr(arguments, name)
        if value is not None and not (math.isfinite(value) and value >= smallest):
            raise UserError(f"--{name.replace('_', '-')} {value:g}: give a positive number.")
    read = _project_of(arguments)
    with tempfile.TemporaryDirectory(prefix=PREFIX) as scratch:
        paths = project.records_now(read, Path(scratch))
        runs = [_estimate(run, arguments, paths[name]) for name, run in read.runs.items()]
    more = f"Not in this: {listed(each.label for each in read.products)}." if read.products else ""
    is_single = len(runs) == 1 and not read.products
    estimate = runs[0] if is_single else WholeEstimate.of(read.name, runs, more)
    answers = [line for run in runs for line in run.answer(arguments.device)]
    page = "\n".join([*answers, *estimate.lines()])
    text = estimate.model_dump_json(indent=2) if arguments.json else page
    sys.stdout.write(f"{text}\n")
    return 0


def _project_of(arguments: argparse.Namespace) -> project.ProjectConfig:
    path: Path = arguments.config
    is_config = path.suffix in (".yaml", ".yml") or not path.is_file()
    if is_config and not (arguments.model or arguments.workload):
        return project.read(path)
    raw: dict[str, Any] = {"run": "estimate", "inputs": str(path), "workload": DEFAULT}
    places: Places = {}
    if is_config:
        raw, places = yaml_lines.read(path)
        if project.FEATURES in raw:
            raise UserError(f"{path}: it has several models; leave --model and --workload out.")
    if arguments.workload:
        raw["workload"] = arguments.workload
    if arguments.model:
        raw["options"] = {**(raw.get("options") or {}), "model": arguments.model}
    return project.validate(raw, str(path), places)


def _estimate(config: Run, arguments: argparse.Namespace, paths: Sequence[Path] = ()) -> Estimate:
    """Return the estimate of one run; `paths` replace its inputs."""
    _check_devices(arguments, config)
    here = [] if config.device == "cpu" or arguments.cpu_slots else devices.cuda_devices()
    is_gpu = bool(arguments.gpus or arguments.device or here or config.device == "cuda")
    slots = _slots(arguments, config, is_gpu=is_gpu)
    device = device_called(arguments.device, is_gpu=is_gpu)
    name = arguments.device or (device.name if here or not is_gpu else "")
    weights = _weights(config.workload, config.module, config.options)
    settings = settings_of(config.workload, config.module, config.options, device, weights)
    folder = Results(RESULTS / config.run)
    work = look(folder, config, settings, paths)
    case = Case(config, folder, settings, weights, device, name, work)
    return case.estimate(slots, arguments.tokens_per_second, arguments.startup_seconds)


def _weights(name: str, workload: Workload, options: Any) -> Weights | None:
    """Return the model of the run, from its weights file or by its name.

    Raises:
        UserError: the weights are not here, and the workload needs them.
    """
    model = workload.weights(options)
    if not model:
        return None
    path = Path(weights_verb.json_of(model, name))
    if entry := WeightsFile.find(path):
        return weights_verb.weights_of(entry)
    if isinstance(workload, EstimatesMemory):
        return workload.weights_ahead(options)
    if optional(workload, "CHECKPOINTS"):
        command = weights_verb.command_for(model, name, str(path))
        raise UserError(
            f"{path}: the weights of this run are not there yet; type `{command}` first, then "
            "this command again."
        )
    return Weights(Path(model).name, place_of(model), "", {})  # taken as they are, and not hashed


def device_called(name: str | None, *, is_gpu: bool) -> Device:
    """Return the device to estimate for; a GPU called `name` by its data sheet."""
    if not is_gpu:
        return devices.cpu()
    if not name:
        return devices.planning_device("cuda")
    cards = cards_called(name)
    if not cards:
        return Device("cuda", "", name, has_bf16=True)
    card = cards[0]
    return Device("cuda", "", card.name, card.has_bf16, 0, card.memory_mb, card.num_multiprocessors)


def _check_devices(arguments: argparse.Namespace, config: Run) -> None:
    on_gpus, on_cpu = arguments.gpus or arguments.device, arguments.cpu_slots
    if on_cpu and arguments.device:
        raise UserError("--device names a GPU; give --gpus with it, not --cpu-slots.")
    if config.device == "cpu" and on_gpus:
        where, option = "the CPU", "--cpu-slots"
    elif config.device == "cuda" and on_cpu:
        where, option = "GPUs", "--gpus"
    else:
        return
    raise UserError(
        f"{arguments.config}: device: {config.device} computes on {where}; give {option}, or set "
        "device: auto."
    )


def _slots(arguments: argparse.Namespace, config: Run, *, is_gpu: bool) -> list[int]:
    """Return the numbers of GPUs, or of jobs on this CPU."""
    option, text = "--cpu-slots", arguments.cpu_slots or "1"
    if is_gpu:
        option, text = "--gpus", arguments.gpus or str(config.gpus)
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= MOST_SLOTS for word in words):
        raise UserError(
            f"{option} {text!r}: give numbers from 1 to {MOST_SLOTS:,} with commas between them, "
            "such as 1,4,64."
        )
    slots = list(dict.fromkeys(map(int, words)))
    if is_gpu and min(slots) < config.gpus:
        raise UserError(
            f"--gpus {min(slots)}: one job of this config needs {config.gpus}; give at least as "
            "many, or lower gpus_per_job: in the config."
        )
    if not is_gpu and max(slots) > num_cores():
        raise UserError(
            f"--cpu-slots {max(slots)}: this machine has {num_cores()} cores, and each job "
            "takes one at least; give a smaller number."
        )
    return slots
