"""featuremill head: train classifiers and regressions on features of runs, import or apply them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from featuremill.kit.errors import UserError
from featuremill.kit.tables import add_options
from featuremill.steps.heads.section import KEYS, Head

VECTORS = {
    "--vectors COLUMN": "which vectors, where a run has several (such as mean_layer_33); once for "
    "all runs or once for each, in their order",
}
OUTPUT = {"--output heads/NAME": "the head's new folder"}
TRAIN = {
    "runs": "results/<run>; features of several stand side by side, joined by id",
    **VECTORS,
    "--labels TABLE": "CSV, TSV or Parquet with an id column, one of labels and perhaps one of "
    "groups; or, of residues, FASTA with a letter for each; of runs with samples also a column "
    "sample (without TABLE, the columns are those of the sheet of samples)",
    "--fragments FOLDER": "of featuremill translate: the labels are of its contigs, each for all "
    "of one's fragments, which stay on one side of a fold",
    "--threshold CLASS": "call a record CLASS by a threshold of its score, chosen on held-out "
    "records for --precision or --recall, and not by the highest score",
    "--precision SHARE": "of the records that are called CLASS",
    "--recall SHARE": "of the records that are of CLASS",
    **OUTPUT,
    "--seed": "of mlp (default 0)",
    "--threads N": "threads that compute (default 1); another number changes the last digits",
}
IMPORT = {
    "state_dict STATE_DICT": ".safetensors or .pth",
    "--classes": "their names in the order of the scores, as in others,virus",
    "--dims": "numbers of the features that stand side by side, in order, as in 768,2560",
    **OUTPUT,
    "--trust SHA256": "read the file with this digest although it is a pickle, which can run code",
}
PREDICT = {
    "head HEAD": "the head's folder, as in heads/NAME",
    "runs": "results/<run>, as many as the head was trained on and in that order; or a file of "
    "records (such as FASTA), of which the features are computed; or the .pt files of features "
    "that VirNucPro wrote",
    **VECTORS,
    "--output FILE": ".tsv or .parquet; records without a prediction are listed in FILE's "
    ".missing.tsv",
    "--any-recipe": "accept features of another recipe than those the head was trained on",
    "--probabilities FILE.parquet": "of a head for residues: also write the scores of each residue",
    "--device": "the device that computes records (default: the run's)",
    "--weights FILE": "weights/<name>.json of a model of the head, if not where the run has it",
}
"""Each option and its metavar, with its help."""
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "runs": {"type": Path, "nargs": "+", "metavar": "RUN"},
    "--vectors": {"action": "append", "default": []},
    "--labels": {"type": Path},
    "--fragments": {"type": Path},
    "--precision": {"type": float},
    "--recall": {"type": float},
    "--output": {"type": Path, "required": True},
    "--seed": {"type": int, "default": 0},
    "--threads": {"type": int, "default": 1},
    "state_dict": {"type": Path},
    "--classes": {"required": True},
    "--dims": {"required": True},
    "head": {"type": Path},
    "--any-recipe": {"action": "store_true"},
    "--probabilities": {"type": Path},
    "--device": {"choices": ("auto", "cuda", "cpu")},
    "--weights": {"type": Path, "action": "append", "default": []},
}


def add_arguments(parser: argparse.ArgumentParser) -> Sequence[argparse.ArgumentParser]:
    """Add the subcommands of `featuremill head`; return their parsers."""
    acts = parser.add_subparsers(dest="act", required=True, metavar="train|import|predict")
    parsers = []
    for act, about, options in (
        ("train", "fit a head to the features of labelled records, and measure it", TRAIN),
        ("import", "import a head of VirNucPro's shape from its state dict", IMPORT),
        ("predict", "predict each record's class from its features, with a score a class", PREDICT),
    ):
        description = f"{about[0].upper()}{about[1:]}."
        parsers.append(acts.add_parser(act, help=about, description=description))
        for words, text in options.items():
            name, _, metavar = words.partition(" ")
            more: dict[str, Any] = {"metavar": metavar} if metavar else {}
            parsers[-1].add_argument(name, help=text, **more, **SETTINGS.get(name, {}))
    add_options(parsers[0], Head, *KEYS)
    return parsers


def run(arguments: argparse.Namespace) -> None:
    if arguments.act == "train":
        from featuremill.steps.heads.examples import Training
        from featuremill.steps.heads.train import train

        head = _head(arguments)
        options = {name: getattr(arguments, name) for name in Training._fields[1:]}
        train(Training(head, **options))
    elif arguments.act == "import":
        from featuremill.steps.heads import importing

        chosen = importing.Chosen(
            arguments.state_dict,
            arguments.classes.split(","),
            _widths(arguments.dims),
            arguments.output,
            arguments.trust,
        )
        importing.import_head(chosen)
    else:
        from featuremill.steps.heads.computed import Choices
        from featuremill.steps.heads.predict import predict

        predict(
            arguments.head,
            arguments.runs,
            arguments.output,
            arguments.vectors,
            arguments.any_recipe,
            Choices(arguments.device, arguments.weights),
            arguments.probabilities,
        )


def _head(arguments: argparse.Namespace) -> Head:
    """Return the options of `head train` as the section of a config."""
    levels = {"precision": arguments.precision, "recall": arguments.recall}
    threshold = {"class": arguments.threshold, **levels}
    section = {
        "labels": arguments.labels and str(arguments.labels),
        "vectors": arguments.vectors,
        "threshold": {key: value for key, value in threshold.items() if value is not None},
        **{key: getattr(arguments, key) for key in KEYS},
    }
    try:
        return Head.model_validate(section)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UserError(f"head train: {problem}.") from None


def _widths(dims: str) -> list[int]:
    try:
        widths = [int(text) for text in dims.split(",")]
    except ValueError:
        widths = []
    if not widths or min(widths) < 1:
        raise UserError(f"--dims: {dims!r} are no whole numbers; give them as in --dims 768,2560.")
    return widths
