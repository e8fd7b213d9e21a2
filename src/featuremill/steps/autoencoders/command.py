"""`featuremill sae`: train sparse autoencoders on features of finished runs, and apply them.

`train` trains an autoencoder, `watch` shows its progress, and `estimate` prints the memory that it
needs. `encode` writes the active features of each record. `report` measures the quality and lists
the strongest records of each feature. Files of runs are only read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from featuremill.kit.devices import HELP_OF_DEVICES, GpuOptions
from featuremill.kit.errors import UserError
from featuremill.kit.tables import add_options, words_of
from featuremill.steps.autoencoders import OPTIONS, PACKAGES, Autoencoder

if TYPE_CHECKING:
    from featuremill.steps.autoencoders.card import Options

ACTS = {
    "train": "train an autoencoder, or continue an interrupted training",
    "watch": "show the progress of a training",
    "estimate": "print the memory that a training needs, without starting it",
    "encode": "write the active features of each record",
    "report": "measure the quality, and list the strongest records of each feature",
}


def add_arguments(parser: argparse.ArgumentParser) -> Sequence[argparse.ArgumentParser]:
    """Add the subcommands of `featuremill sae`; return their parsers."""
    acts = parser.add_subparsers(dest="act", required=True, metavar="ACT")
    parsers = {
        act: acts.add_parser(act, help=about, description=f"{about[0].upper()}{about[1:]}.")
        for act, about in ACTS.items()
    }
    for act in ("train", "estimate", "encode", "report"):
        parsers[act].add_argument(
            "run_folder", type=Path, metavar="RUN", help="results/<run>, finished"
        )
    for act in ("train", "estimate"):
        add_options(parsers[act], Autoencoder, "vectors", *OPTIONS)
        add = parsers[act].add_argument
        add(
            "--gpus",
            metavar="N",
            help="number of GPUs, each with a process: 1 to 8 (default 1); on CPUs, of processes",
        )
        add("--devices", metavar="LIST", help=HELP_OF_DEVICES)
    for act in ("encode", "report"):
        add = parsers[act].add_argument
        add(
            "--sae",
            type=Path,
            required=True,
            metavar="saes/NAME",
            help="folder of the autoencoder; for encode, also a published one (SAELens' layout)",
        )
        add(
            "--any-recipe",
            action="store_true",
            help="accept vectors with another recipe than those of the training",
        )
        add("--threads", type=int, default=1, metavar="N", help="number of threads (default 1)")
    add = parsers["train"].add_argument
    add("--output", type=Path, required=True, metavar="saes/NAME", help="the autoencoder's folder")
    add_options(parsers["train"], Autoencoder, "device", "threads", "checkpoint_minutes")
    add = parsers["watch"].add_argument
    add("sae", type=Path, metavar="FOLDER", help="the autoencoder's folder")
    add("--once", action="store_true", help="print the screen once, and exit")
    add("--json", action="store_true", help="for programs: the last line of training.jsonl")
    add("--every", type=float, default=10.0, metavar="SECONDS", help="interval (default 10)")
    parsers["estimate"].add_argument("--json", action="store_true", help="in bytes, for programs")
    add = parsers["encode"].add_argument
    add(
        "--output",
        type=Path,
        required=True,
        metavar="FILE.parquet",
        help="columns id and features, a list of (feature, value); per residue, the highest value",
    )
    add("--vectors", help="for a published autoencoder (default: the states of its hook)")
    parsers["report"].add_argument(
        "--output",
        type=Path,
        metavar="FILE.html",
        help="the page (default: report.html in the autoencoder's folder); features.tsv beside it",
    )
    return list(parsers.values())


def run(arguments: argparse.Namespace) -> int:
    """Run `featuremill sae`; return 1 if a watched training is not done."""
    if arguments.act == "watch":
        from featuremill.steps.autoencoders import progress

        return progress.watch(arguments.sae, arguments.once, arguments.json, arguments.every)
    if arguments.act in ("train", "estimate"):
        gpus = GpuOptions.parse(arguments.gpus, arguments.devices)
        gpus.check()
        if gpus.devices and getattr(arguments, "device", "") == "cpu":
            raise UserError(f"--devices {gpus.devices}: --device cpu takes no GPU; drop one.")
    if arguments.act != "estimate":
        from featuremill.kit.workloads import refuse_lacking

        refuse_lacking(PACKAGES)
    if arguments.act == "train":
        from featuremill.steps.autoencoders import train

        train.train(
            train.Arguments(
                arguments.run_folder,
                arguments.vectors,
                arguments.output,
                _options(arguments),
                gpus.of_all() or 1,
                gpus.devices,
                arguments.device,
                max(1, arguments.threads),
                arguments.checkpoint_minutes,
                _words(arguments),
            )
        )
    elif arguments.act == "estimate":
        from featuremill.steps.autoencoders import train

        num_ranks = gpus.of_all() or 1
        options = _options(arguments)
        train.print_estimate(
            arguments.run_folder, arguments.vectors, options, num_ranks, arguments.json
        )
    elif arguments.act == "encode":
        from featuremill.steps.autoencoders.encode import encode

        encode(
            arguments.run_folder,
            arguments.sae,
            arguments.output,
            arguments.any_recipe,
            arguments.threads,
            arguments.vectors,
        )
    else:
        from featuremill.steps.autoencoders.page import report

        report(
            arguments.run_folder,
            arguments.sae,
            arguments.output,
            arguments.any_recipe,
            arguments.threads,
        )
    return 0


def _options(arguments: argparse.Namespace) -> Options:
    from featuremill.steps.autoencoders.card import Options

    return Options.of({name: getattr(arguments, name) for name in OPTIONS})


def _words(arguments: argparse.Namespace) -> list[str]:
    """Return the command of a rank of the same training."""
    names = ("vectors", "output", "threads", "checkpoint_minutes", "log_file")
    options = _options(arguments).as_json() | {name: getattr(arguments, name) for name in names}
    loudness = [f"--{word}" for word in ("quiet", "verbose") if getattr(arguments, word)]
    return ["sae", "train", str(arguments.run_folder), *words_of(options), *loudness]
