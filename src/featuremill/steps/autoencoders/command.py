"""sae: sparse autoencoders on the features of finished runs.

`estimate` prints the memory of a training, `train` trains, `watch` shows the progress, `encode`
writes the active features of each record, and `report` measures the quality and lists the strongest
records of each feature. A run is only read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from featuremill.kit.devices import HELP_OF_DEVICES, GpuOptions
from featuremill.kit.errors import UserError

if TYPE_CHECKING:
    from featuremill.steps.autoencoders.card import Options


Acts: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_arguments(parser: argparse.ArgumentParser) -> Sequence[argparse.ArgumentParser]:
    """Add the subcommands of `featuremill sae`; return their parsers."""
    acts = parser.add_subparsers(dest="act", required=True, metavar="ACT")
    adding = (_add_train, _add_watch, _add_estimate, _add_encode, _add_report)
    return [add(acts) for add in adding]


def _add(acts: Acts, name: str, says: str) -> argparse.ArgumentParser:
    return acts.add_parser(name, help=says, description=f"{says[0].upper()}{says[1:]}.")


def _add_train(acts: Acts) -> argparse.ArgumentParser:
    parser = _add(acts, "train", "train an autoencoder, or continue an interrupted training")
    _add_options(parser)
    add = parser.add_argument
    add("--output", type=Path, required=True, metavar="saes/NAME", help="the autoencoder's folder")
    add(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="cuda: not without a GPU (default auto)",
    )
    add(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="threads of each rank that compute (default 1); others change the last digits",
    )
    add(
        "--checkpoint-minutes",
        type=float,
        default=10.0,
        metavar="MINUTES",
        help="between two checkpoints (default 10)",
    )
    return parser


def _add_estimate(acts: Acts) -> argparse.ArgumentParser:
    parser = _add(acts, "estimate", "say what memory a training needs, and start nothing")
    _add_options(parser)
    parser.add_argument("--json", action="store_true", help="in bytes, for programs")
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_run(parser)
    add("--vectors", help="the vectors, one a record or one a residue (default: the only ones)")
    add(
        "--features",
        type=int,
        default=4096,
        metavar="M",
        help="of the autoencoder (default 4096); usually a multiple of the vectors' width",
    )
    add(
        "--kind",
        choices=("topk", "relu", "jumprelu"),
        default="topk",
        help="topk: k features are active; relu: with a penalty on their sum (L1); jumprelu: with "
        "thresholds, and a penalty on their count (L0) (default topk)",
    )
    add("--k", type=int, help="of topk: features that are active in a vector (default 32)")
    add(
        "--sparsity",
        type=float,
        metavar="WEIGHT",
        help="of relu and jumprelu: weight of the penalty beside the squared error, of vectors "
        "with the mean length sqrt(width) (default 1); more leaves fewer features active",
    )
    add(
        "--bandwidth",
        type=float,
        metavar="WIDTH",
        help="of jumprelu: how far around a threshold numbers move it (default 0.05)",
    )
    add(
        "--batch",
        type=int,
        default=4096,
        metavar="B",
        help="vectors of a step, of all devices together (default 4096)",
    )
    add("--steps", type=int, default=10_000, metavar="N", help="(default 10,000)")
    add("--seed", type=int, default=0, help="(default 0)")
    add(
        "--learning-rate",
        type=float,
        metavar="RATE",
        help="(default 2e-4 / sqrt(M / 16384), by Gao et al. 2024)",
    )
    add(
        "--dead-after",
        type=int,
        default=200,
        metavar="STEPS",
        help="without activity, a feature is dead and helped along (default 200)",
    )
    add(
        "--held-out",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="of the records, for the report alone (default 0.05)",
    )
    add(
        "--dtype",
        choices=("fp32", "bf16"),
        default="fp32",
        help="of products (default fp32); weights and sums are fp32",
    )
    add(
        "--gpus",
        metavar="N",
        help="how many, with a process each: 1 to 8 (default 1); on CPUs, so many processes",
    )
    add("--devices", metavar="LIST", help=HELP_OF_DEVICES)


def _add_watch(acts: Acts) -> argparse.ArgumentParser:
    parser = _add(acts, "watch", "show how far a training is")
    add = parser.add_argument
    add("sae", type=Path, metavar="FOLDER", help="the autoencoder's folder")
    add("--once", action="store_true", help="print the screen once, and exit")
    add("--json", action="store_true", help="for programs: the last line of training.jsonl")
    add("--every", type=float, default=10.0, metavar="SECONDS", help="between looks (default 10)")
    return parser


def _add_encode(acts: Acts) -> argparse.ArgumentParser:
    parser = _add(acts, "encode", "write which features are active in each record")
    _add_run(parser)
    _add_sae(parser)
    add = parser.add_argument
    add(
        "--output",
        type=Path,
        required=True,
        metavar="FILE.parquet",
        help="id, and features: a list of (feature, value); per residue, the highest value counts",
    )
    add("--vectors", help="for a published autoencoder (default: the states of its hook)")
    _add_computing(parser)
    return parser


def _add_report(acts: Acts) -> argparse.ArgumentParser:
    parser = _add(acts, "report", "say how good it is, and which records each feature is about")
    _add_run(parser)
    _add_sae(parser)
    add = parser.add_argument
    add(
        "--output",
        type=Path,
        metavar="FILE.html",
        help="the page (default: report.html in the autoencoder's folder); features.tsv beside it",
    )
    _add_computing(parser)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="results/<run>, finished")


def _add_sae(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sae",
        type=Path,
        required=True,
        metavar="saes/NAME",
        help="the autoencoder's folder: trained here or, for encode, published (SAELens' layout)",
    )


def _add_computing(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--any-recipe",
        action="store_true",
        help="take vectors that were made otherwise than those it was trained on",
    )
    add("--threads", type=int, default=1, metavar="N", help="that compute (default 1)")


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
    if arguments.act == "train":
        from featuremill.steps.autoencoders import train

        train.train(
            train.Asked(
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
        from featuremill.steps.autoencoders import estimate

        estimate.say(
            arguments.run_folder,
            arguments.vectors,
            _options(arguments),
            gpus.of_all() or 1,
            arguments.json,
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
        from featuremill.steps.autoencoders.report import report

        report(
            arguments.run_folder,
            arguments.sae,
            arguments.output,
            arguments.any_recipe,
            arguments.threads,
        )
    return 0


OPTIONS = (
    *("kind", "features", "k", "sparsity", "bandwidth", "batch", "steps", "seed"),
    *("learning_rate", "dead_after", "held_out", "dtype"),
)


def _options(arguments: argparse.Namespace) -> Options:
    from featuremill.steps.autoencoders.card import Options

    return Options.of({name: getattr(arguments, name) for name in OPTIONS})


def _words(arguments: argparse.Namespace) -> list[str]:
    """Return the command of a rank of the same training."""
    given = {
        **_options(arguments).as_json(),
        "vectors": arguments.vectors,
        "output": arguments.output,
        "threads": arguments.threads,
        "checkpoint_minutes": arguments.checkpoint_minutes,
        "log_file": arguments.log_file,
    }
    words = ["sae", "train", str(arguments.run_folder)]
    words += [
        f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None
    ]
    loudness = [word for word in ("quiet", "verbose") if getattr(arguments, word)]
    return [*words, *(f"--{word}" for word in loudness)]
