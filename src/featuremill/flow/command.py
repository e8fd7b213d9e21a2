"""run: start Snakemake with the workflow of this installation, from any folder."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from featuremill.base import environment, this_process
from featuremill.base.errors import UserError
from featuremill.base.this_process import PROFILES
from featuremill.config import load
from featuremill.store import command_line, run_lock

SAYING_HOW_MUCH = ("--cores", "-c", "--jobs", "-j", "--profile", "--workflow-profile")
"""Beginnings of Snakemake's options that set, or may set, how many jobs run at once."""
CORES = ("--cores", "-c")
DRY = {"-n", "--dry-run", "--dryrun"}
LOUDNESS = ("--quiet", "-q", "--verbose", "--printshellcmds", "-p")
"""Beginnings of the options that set how much is shown."""
PROFILE = "--workflow-profile"
"""Snakemake itself refuses a missing --profile."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="the run's config; featuremill init writes one")
    parser.add_argument(
        command_line.RESULTS, default="", metavar="FOLDER", help="where results go: FOLDER/<run>"
    )
    parser.add_argument(
        "options",
        nargs=argparse.REMAINDER,
        metavar="…",
        help="options of snakemake, as in: --resources gpu=4; without any about cores, all of them",
    )


def run(arguments: argparse.Namespace) -> None:
    """Become Snakemake."""
    options, results = _without_results(arguments.options)
    if results := results or arguments.results:
        results = os.path.normpath(Path(results).absolute())
    if arguments.config.is_dir():
        arguments.config = run_lock.config_of(arguments.config)
    if not arguments.config.is_file():
        raise UserError(
            f"{arguments.config}: there is no such config; featuremill init YOUR.fasta writes one."
        )
    load(arguments.config)  # as Snakemake does not say in which line it stops being YAML
    if any(word.startswith("--configfile") for word in options):
        raise UserError(
            f"--configfile: the config is {arguments.config} already; leave one of them out."
        )
    for profile in _profiles(options):
        _refuse_missing(profile)
    # --configfile takes all words up to the next option, --snakefile just one: options may begin
    # or end with a target.
    command = [sys.executable, "-m", "featuremill.flow.start_snakemake"]
    command += ["--configfile", str(arguments.config)]
    if DRY & {*options} and not any(w.startswith(LOUDNESS) for w in options):
        command += ["--quiet", "host", "reason", "rules"]  # which jobs there are, and how many
    command += ["--snakefile", this_process.SNAKEFILE]
    has_profile = environment.SNAKEMAKE_PROFILE.text() not in (None, "", "none")
    if not (has_profile or any(w.startswith(SAYING_HOW_MUCH) for w in options)):
        command += ["--cores", _all_cores()]
    placed = [command_line.RESULTS, results] if results else []
    command_line.remember(["featuremill", "run", str(arguments.config), *placed, *options])
    os.execv(sys.executable, [*command, *_with_cores(options)])  # noqa: S606


def _without_results(options: Sequence[str]) -> tuple[list[str], str]:
    """Return the `options` without `--results`, and its value."""
    kept, results = list[str](), ""
    words = iter(options)
    for word in words:
        option, is_one_word, value = word.partition("=")
        if option != command_line.RESULTS:
            kept.append(word)
        elif not (results := value if is_one_word else next(words, "")):
            raise UserError(f"{option}: name a folder after it.")
    return kept, results


def _all_cores() -> str:
    """Return what `--cores` is to be for all that this process may use: Snakemake's own `all` does
    not see the quota of a container."""
    is_limited = not math.isinf(this_process.cpu_quota())
    return str(this_process.num_cores()) if is_limited else "all"


def _with_cores(options: Sequence[str]) -> Iterator[str]:
    """Yield the `options`, with `_all_cores` in the place of an `all` that is a number of cores."""
    for before, word in itertools.pairwise(["", *options]):
        if word == "all" and before in CORES:
            yield _all_cores()
        elif word in (f"{option}{sign}all" for option in CORES for sign in ("=", "")):
            yield word.removesuffix("all") + _all_cores()
        else:
            yield word


def _profiles(options: Sequence[str]) -> Iterator[str]:
    """Yield the workflow profiles that `options` name."""
    for word, following in itertools.pairwise([*options, ""]):
        option, is_one_word, value = word.partition("=")
        if option == PROFILE:
            yield value if is_one_word else following


def _refuse_missing(profile: str) -> None:
    """Refuse a profile that is not there: Snakemake would continue without it, on this machine."""
    places = (Path(), Path("profiles"), PROFILES)
    if profile in ("", "none") or any((place / profile).exists() for place in places):
        return
    names = ", ".join(sorted(path.parent.name for path in PROFILES.glob("*/config.yaml")))
    raise UserError(
        f"{PROFILE} {profile}: there is no such file or folder, and no profile of that name comes "
        f"with featuremill; name your own, or one of these: {names}."
    )
