"""run: start Snakemake with the workflow of this installation, from any folder."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from featuremill.base import environment, this_process
from featuremill.base.errors import UserError
from featuremill.base.this_process import PROFILES
from featuremill.base.words import counted
from featuremill.config import yaml_lines
from featuremill.lease import GpuOptions, Request, count_slots
from featuremill.lease.environment import DEVICES, SLOTS_PER_GPU
from featuremill.lease.request import HELP_OF_DEVICES
from featuremill.store import command_line, run_lock

SETTING_NUM_JOBS = ("--cores", "-c", "--jobs", "-j", "--profile", "--workflow-profile")
"""Beginnings of Snakemake's options that set, or may set, how many jobs run at once."""
CORES = ("--cores", "-c")
DRY = {"-n", "--dry-run", "--dryrun"}
SETTING_VERBOSITY = ("--quiet", "-q", "--verbose", "--printshellcmds", "-p")
"""Beginnings of the options that set how much is shown."""
GPU_OPTIONS = (command_line.GPUS, command_line.DEVICES)
AFTER = {
    command_line.RESULTS: "a folder",
    command_line.GPUS: "a number",
    command_line.DEVICES: "GPUs, as in 0,2,",
}
"""The options of featuremill with a value, and a description of the value."""
ELSEWHERE = ("--executor", "-e", "--profile", "--workflow-profile")
"""Beginnings of the options with which jobs may run on other machines."""
PROFILE = "--workflow-profile"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="the run's config; featuremill init writes one")
    parser.add_argument(
        command_line.RESULTS, default="", metavar="FOLDER", help="where results go: FOLDER/<run>"
    )
    parser.add_argument(command_line.GPUS, metavar="N", help="how many at once (default: all)")
    parser.add_argument(command_line.DEVICES, metavar="LIST", help=HELP_OF_DEVICES)
    parser.add_argument(
        command_line.STRICT,
        action="store_true",
        help="end with status 6 if a record has no values",
    )
    parser.add_argument(
        "options",
        nargs=argparse.REMAINDER,
        metavar="…",
        help="options of snakemake, as in: --until plan; without any about cores, all of them",
    )


def run(arguments: argparse.Namespace) -> None:
    """Replace this process by Snakemake (`os.execv`)."""
    options, own = _without_own(arguments.options)
    if results := own.get(command_line.RESULTS) or arguments.results:
        results = os.path.normpath(Path(results).absolute())
    if arguments.config.is_dir():
        arguments.config = run_lock.config_of(arguments.config)
    if not arguments.config.is_file():
        raise UserError(
            f"{arguments.config}: there is no such config; featuremill init YOUR.fasta writes one."
        )
    # Snakemake does not say in which line it is no YAML.
    config, _ = yaml_lines.read(arguments.config)
    if any(word.startswith("--configfile") for word in options):
        raise UserError(
            f"--configfile: the config is {arguments.config} already; leave one of them out."
        )
    _refuse_missing_profiles(options)
    # --configfile takes all words up to the next option, --snakefile just one: options may begin
    # or end with a target.
    command = [sys.executable, "-m", "featuremill.flow.start_snakemake"]
    command += ["--configfile", str(arguments.config)]
    if DRY & {*options} and not any(w.startswith(SETTING_VERBOSITY) for w in options):
        command += ["--quiet", "host", "reason", "rules"]  # which jobs there are, and how many
    has_profile = environment.SNAKEMAKE_PROFILE.text() not in (None, "", "none")
    typed = {name: own.get(name) or getattr(arguments, name[2:]) for name in GPU_OPTIONS}
    gpus = GpuOptions.parse(*typed.values())
    is_here = not (has_profile or any(word.startswith(ELSEWHERE) for word in options))
    resources = _resources(gpus, typed, config, options, is_here=is_here)
    passed = list(options)
    if resources and resources[0] in options:  # Snakemake takes the last one alone
        after = options.index(resources[0]) + 1
        passed[after:after] = resources[1:]
    else:
        command += resources
    command += ["--snakefile", this_process.SNAKEFILE]
    if not (has_profile or any(w.startswith(SETTING_NUM_JOBS) for w in options)):
        command += ["--cores", _all_cores()]
    placed = [command_line.RESULTS, results] if results else []
    placed += [word for name, value in typed.items() if value for word in (name, value)]
    if arguments.strict or command_line.STRICT in own:
        environment.STRICT.set("1")
        placed.append(command_line.STRICT)
    command_line.remember(["featuremill", "run", str(arguments.config), *placed, *options])
    os.execv(sys.executable, [*command, *_with_cores(passed)])  # noqa: S606


def _without_own(options: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the options for Snakemake, and the values of featuremill's own options."""
    kept, own = list[str](), dict[str, str]()
    words = iter(options)
    for word in words:
        option, is_one_word, value = word.partition("=")
        if word == command_line.STRICT:
            own[word] = word
        elif option not in AFTER:
            kept.append(word)
        elif not (value := value if is_one_word else next(words, "")):
            raise UserError(f"{option}: name {AFTER[option]} after it.")
        else:
            own[option] = value
    return kept, own


def _resources(
    gpus: GpuOptions,
    typed: Mapping[str, str | None],
    config: Mapping[str, Any],
    options: Sequence[str],
    *,
    is_here: bool,
) -> list[str]:
    """Return Snakemake's option for the number of GPUs, and set the variable for their names.

    Raises:
        UserError: the options contradict the config or another option, or jobs run here
            (`is_here`) and this machine lacks the GPUs.
    """
    if not any(typed.values()):
        return []
    words = " ".join(f"{name} {value}" for name, value in typed.items() if value)
    gpus.check()
    if config.get("device") == "cpu":
        raise UserError(f"{words}: the config has device: cpu; drop one of them.")
    if any(word.startswith("gpu=") for word in options):
        raise UserError(f"{words}: --resources gpu=… limits them, too; drop one of them.")
    if gpus.devices:
        DEVICES.set(gpus.devices)
    slots = SLOTS_PER_GPU.value()
    count = gpus.of_all()
    if is_here:
        num_gpus = count_slots(Request.from_environment()) // slots
        if not num_gpus:
            raise UserError(
                f"{words}: no GPU can be used here; featuremill doctor lists the reasons."
            )
        if (count or 0) > num_gpus:
            raise UserError(f"{words}: {counted(num_gpus, 'GPU')} can be used here; ask for fewer.")
    return ["--resources", f"gpu={count * slots}"] if count else []


def _all_cores() -> str:
    """Return the value of `--cores` for all cores that this process may use: Snakemake's `all`
    ignores the quota of a container."""
    is_limited = not math.isinf(this_process.cpu_quota())
    return str(this_process.num_cores()) if is_limited else "all"


def _with_cores(options: Sequence[str]) -> Iterator[str]:
    """Yield the `options`, with `--cores all` replaced by the number of cores."""
    for before, word in itertools.pairwise(["", *options]):
        if word == "all" and before in CORES:
            yield _all_cores()
        elif word in (f"{option}{sign}all" for option in CORES for sign in ("=", "")):
            yield word.removesuffix("all") + _all_cores()
        else:
            yield word


def _refuse_missing_profiles(options: Sequence[str]) -> None:
    """Refuse a missing --workflow-profile: Snakemake would continue without it, on this machine. It
    refuses a missing --profile itself."""
    folders = (Path(), Path("profiles"), PROFILES)
    for word, following in itertools.pairwise([*options, ""]):
        option, is_one_word, value = word.partition("=")
        profile = value if is_one_word else following
        if option != PROFILE or profile in ("", "none"):
            continue
        if not any((folder / profile).exists() for folder in folders):
            names = ", ".join(sorted(path.parent.name for path in PROFILES.glob("*/config.yaml")))
            raise UserError(
                f"{PROFILE} {profile}: there is no such file or folder, and no profile of that "
                f"name comes with featuremill; name your own, or one of these: {names}."
            )
