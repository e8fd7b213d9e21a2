"""run: start Snakemake with the workflow of this installation, from any folder."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from featuremill import SNAKEFILE
from featuremill.errors import UserError

SAYING_HOW_MUCH = ("--cores", "-c", "--jobs", "-j", "--profile", "--workflow-profile")
"""Beginnings of Snakemake's options that say, or may say, how many jobs run at once."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `featuremill run`."""
    parser.add_argument("config", type=Path, help="the run's config; featuremill init writes one")
    parser.add_argument(
        "options",
        nargs=argparse.REMAINDER,
        metavar="…",
        help="options of snakemake, as in: --resources gpu=4; without any about cores, all of them",
    )


def run(arguments: argparse.Namespace) -> None:
    """Become Snakemake."""
    if not arguments.config.is_file():
        raise UserError(
            f"{arguments.config}: there is no such config; featuremill init YOUR.fasta writes one."
        )
    if any(word.startswith("--configfile") for word in arguments.options):
        raise UserError(
            f"--configfile: the config is {arguments.config} already; leave one of them out."
        )
    # --configfile takes all words up to the next option, --snakefile just one: options may begin
    # or end with a target.
    command = [sys.executable, "-m", "snakemake", "--configfile", str(arguments.config)]
    command += ["--snakefile", SNAKEFILE]
    if not any(word.startswith(SAYING_HOW_MUCH) for word in arguments.options):
        command += ["--cores", "all"]
    os.execv(sys.executable, [*command, *arguments.options])  # noqa: S606
