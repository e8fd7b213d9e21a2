"""head: classifiers on the features of finished runs.

`train` fits one to labelled records, `import` converts one of VirNucPro's, `predict` applies
either. A head is a folder; features and results of runs are only read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from featuremill.kit.errors import UserError

if TYPE_CHECKING:
    from featuremill.steps.heads.threshold import Wanted


def add_arguments(parser: argparse.ArgumentParser) -> Sequence[argparse.ArgumentParser]:
    """Add the subcommands of `featuremill head`; return their parsers."""
    acts = parser.add_subparsers(dest="act", required=True, metavar="train|import|predict")
    return [_add_train(acts), _add_import(acts), _add_predict(acts)]


Acts: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add_train(acts: Acts) -> argparse.ArgumentParser:
    says = "fit a head to the features of labelled records, and say how good it is"
    train = acts.add_parser("train", help=says, description=f"{says[0].upper()}{says[1:]}.")
    add = train.add_argument
    _add_runs(train, "results/<run>; features of several stand side by side, joined by id")
    add(
        "--labels",
        type=Path,
        metavar="TABLE",
        help="CSV, TSV or Parquet with an id column, one of labels and perhaps one of groups; or, "
        "of residues, FASTA with a letter for each; of "
        "runs with samples also a column sample (without TABLE, the columns are those of the sheet "
        "of samples)",
    )
    add("--column", default="", help="the column of the labels (not of labels in FASTA)")
    add("--id-column", default="", metavar="COLUMN", help="of TABLE, if not found by its name")
    add(
        "--group",
        metavar="COLUMN",
        help="records that have the same value here, such as a genus, are never on both sides of a "
        "fold (default: each record by itself, or each sample)",
    )
    add(
        "--fragments",
        type=Path,
        metavar="FOLDER",
        help="of featuremill translate: the labels are of its contigs, each for all of one's "
        "fragments, which stay on one side of a fold",
    )
    add(
        "--task",
        choices=("classification", "regression", "per_residue"),
        help="what labels are: names of classes (default), numbers, or a letter for each residue",
    )
    add(
        "--mask",
        default="",
        metavar="LETTERS",
        help="per_residue: the letters of residues without a label, as in --mask X",
    )
    add(
        "--kind",
        choices=("logistic", "mlp"),
        default="logistic",
        help="logistic regression (default), or VirNucPro's network with one hidden layer",
    )
    add(
        "--threshold",
        metavar="CLASS",
        help="call a record CLASS by a threshold of its score, chosen on held-out records for "
        "--precision or --recall, and not by the highest score",
    )
    add("--precision", type=float, metavar="SHARE", help="of the records that are called CLASS")
    add("--recall", type=float, metavar="SHARE", help="of the records that are of CLASS")
    _add_output(train)
    add("--seed", type=int, default=0, help="of mlp (default 0)")
    add(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="threads that compute (default 1); another number changes the last digits",
    )
    return train


def _add_import(acts: Acts) -> argparse.ArgumentParser:
    says = "take over a head of VirNucPro's shape from its state dict"
    parser = acts.add_parser("import", help=says, description=f"{says[0].upper()}{says[1:]}.")
    add = parser.add_argument
    add("state_dict", type=Path, metavar="STATE_DICT", help=".safetensors or .pth")
    add(
        "--classes",
        required=True,
        help="their names in the order of the scores, as in others,virus",
    )
    add(
        "--dims",
        required=True,
        help="numbers of the features that stand side by side, in order, as in 768,2560",
    )
    _add_output(parser)
    add(
        "--trust",
        metavar="SHA256",
        help="read this very file although it is a pickle, whose code then runs as you",
    )
    return parser


def _add_predict(acts: Acts) -> argparse.ArgumentParser:
    says = "say the class of each record by its features, with a score a class"
    parser = acts.add_parser("predict", help=says, description=f"{says[0].upper()}{says[1:]}.")
    add = parser.add_argument
    add("head", type=Path, metavar="HEAD", help="the head's folder, as in heads/NAME")
    _add_runs(
        parser,
        "results/<run>, as many as the head was trained on and in that order; or a file of records "
        "(such as FASTA), of which the features are computed; or the .pt files of features that "
        "VirNucPro wrote",
    )
    add(
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help=".tsv or .parquet; records without a prediction are listed in FILE's .missing.tsv",
    )
    add(
        "--any-recipe",
        action="store_true",
        help="take features that were made otherwise than those the head was trained on",
    )
    add(
        "--probabilities",
        type=Path,
        metavar="FILE.parquet",
        help="of a head for residues: also write the scores of each residue",
    )
    add("--device", choices=("auto", "cuda", "cpu"), help="computes records (default: the run's)")
    add(
        "--weights",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="weights/<name>.json of a model of the head, where it is elsewhere",
    )
    return parser


def _add_runs(parser: argparse.ArgumentParser, says: str) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=says)
    parser.add_argument(
        "--vectors",
        action="append",
        default=[],
        metavar="COLUMN",
        help="which vectors, where a run has several (such as mean_layer_33); once for all runs or "
        "once for each, in their order",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", type=Path, required=True, metavar="heads/NAME", help="the head's new folder"
    )


def run(arguments: argparse.Namespace) -> None:
    if arguments.act == "train":
        from featuremill.steps.heads.examples import Chosen
        from featuremill.steps.heads.train import train

        given = vars(arguments) | {"threshold": _threshold(arguments)}
        _refuse_of_classes(arguments)
        train(Chosen(**{name: given[name] for name in Chosen._fields}))
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


def _threshold(arguments: argparse.Namespace) -> Wanted | None:
    from featuremill.steps.heads.threshold import wanted

    if arguments.threshold is None:
        if arguments.precision is not None or arguments.recall is not None:
            raise UserError("--threshold: name the class that the precision or recall is of.")
        return None
    return wanted(arguments.threshold, arguments.precision, arguments.recall)


def _refuse_of_classes(arguments: argparse.Namespace) -> None:
    """Raise UserError where options of classes are given for another task."""
    if arguments.mask and arguments.task != "per_residue":
        raise UserError("--mask: this is of residues, so give --task per_residue, too.")
    if not arguments.column and arguments.task != "per_residue":
        raise UserError("--column: name the column of the labels.")
    if arguments.task in (None, "classification"):
        return
    given = {"--kind": arguments.kind != "logistic", "--threshold": bool(arguments.threshold)}
    for option, is_given in given.items():
        if is_given:
            raise UserError(f"{option}: this is of classes, and not of --task {arguments.task}.")


def _widths(dims: str) -> list[int]:
    try:
        widths = [int(text) for text in dims.split(",")]
    except ValueError:
        widths = []
    if not widths or min(widths) < 1:
        raise UserError(f"--dims: {dims!r} are no whole numbers; give them as in --dims 768,2560.")
    return widths
