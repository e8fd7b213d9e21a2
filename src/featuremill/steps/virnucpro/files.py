"""`featuremill virnucpro-files`: write VirNucPro's files from a translation, its features and
predictions.

    <name>_nucleotide/   output_{i}.fa, output_{i}_DNABERT_S.pt
    <name>_protein/      output_{i}.fa, output_{i}_ESM.pt
    <name>_merged/       output_{i}_merged.pt, prediction_results.txt,
                         prediction_results_highestscore.csv
    failed_files.txt     file|stage|error, for each fragment without a prediction and each refused
                         contig

`i` starts at 1, and a file has 10,000 fragments. Fragments, features, scores and failures are
joined by id. Each file is replaced as a whole. prediction_results_highestscore.csv is removed first
and written last: if it exists, all files belong together.
"""

from __future__ import annotations

import argparse
import gzip
import io
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import compress, count, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from featuremill import features
from featuremill.features import NOWHERE, Index, Matrix
from featuremill.kit.errors import IntegrityError, UserError
from featuremill.kit.files import delivering, discard, is_temporary, vacate
from featuremill.kit.text import Progress, counted, listed, one_line
from featuremill.kit.tsv import read_tsv
from featuremill.steps.heads.card import CARD, Card, require
from featuremill.steps.heads.computed import LAYOUTS, Layout
from featuremill.steps.heads.joined import CHOOSING
from featuremill.steps.heads.predict import missing_of
from featuremill.steps.translate.folder import untranslated, whole
from featuremill.steps.translate.options import FRAGMENTS, NUCLEOTIDES, PROTEINS
from featuremill.steps.verdicts.predictions import Predictions, open_predictions, scored
from featuremill.steps.virnucpro import CUTS, FAILED, HIGHEST, RESULTS

FRAGMENTS_A_FILE = 10_000
VIRUS = "virus"
FRAME = re.compile("[FR][123]$")
"""The end of a fragment's id; the rest is the id of its window."""
NUMBERED = re.compile(r"output_([1-9]\d*)(\.fa|_(DNABERT_S|ESM|merged)\.pt)")
BEGUN = re.compile(r"\.(output_|prediction_results)")
DNABERT_S, ESM, MERGED = LAYOUTS
log = logging.getLogger("featuremill.virnucpro-files")


class Row(NamedTuple):
    """A fragment with its prediction."""

    id: str
    label: str
    others: float
    virus: float

    @property
    def is_predicted(self) -> bool:
        """Whether the fragment has scores."""
        return not math.isnan(self.virus)

    def window(self) -> str:
        """Return the id of the fragment's window, which is common to its frames."""
        return FRAME.sub("", self.id)


Rows = Callable[[], Iterator[Row]]
"""Returns an iterator that starts at the first fragment."""


class FeatureFile(NamedTuple):
    """The files of nucleotides or proteins of the fragments."""

    folder: str
    sequences: str
    """The file of sequences in the translation."""
    stage: str
    """The name of the stage that computes their features."""
    layout: Layout


KINDS = {
    "nucleotides": FeatureFile("nucleotide", NUCLEOTIDES, "DNABERT-S", DNABERT_S),
    "proteins": FeatureFile("protein", PROTEINS, "ESM-2", ESM),
}
"""The files by kind, in the order of a head's features."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("translated", type=Path, metavar="FOLDER", help="output folder of featuremill translate")
    add(
        "predictions",
        type=Path,
        metavar="PREDICTIONS",
        help="output of featuremill head predict, with its .missing.tsv in the same folder",
    )
    add("--head", type=Path, required=True, help="folder of the head of the predictions")
    for kind in KINDS:
        add(f"--{kind}", type=Path, metavar="RUN", help=f"results/<run> over the {kind}")
    add(
        "--output",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="output folder; the names of its folders begin with --name",
    )
    add("--name", help="name of the sequences (default: that of the translation's folder)")
    add(
        "--predictions-only",
        action="store_true",
        help="write no sequences and features, and remove those of earlier calls",
    )


def run(args: argparse.Namespace) -> None:
    runs = {kind: getattr(args, kind) for kind in KINDS if getattr(args, kind)}
    writes_features = not args.predictions_only
    name = args.name or args.translated.resolve().name
    write(args.translated, args.predictions, args.head, runs, args.output, name, writes_features)


def write(
    translated: Path,
    predicted: Path,
    head: Path,
    runs: Mapping[str, Path],
    output: Path,
    name: str,
    keeps_features: bool = True,
) -> int:
    """Write VirNucPro's files to `output`; return the number of fragments without a prediction.

    `runs` are results/<run> by kind, in the order of KINDS; `name` is the name of the sequences.

    Raises:
        UserError: an input is wrong, or VirNucPro has no such files.
        IntegrityError: the translation's sequences are not those of its fragments.
    """
    translation = whole(translated)
    if translation.samples:
        raise UserError(
            f"{translated}: its contigs are of samples, and VirNucPro's files are of one; name the "
            "files of one sample with inputs, or leave VirNucPro's out."
        )
    if translation.by not in CUTS:
        raise UserError(
            f"{translated}: it was cut --by {translation.by}, and VirNucPro's files are of "
            "windows; translate --by virnucpro, or leave these files out."
        )
    predictions = open_predictions(predicted)
    if len(predictions.classes) != len(("score1", "score2")):
        raise UserError(
            f"{predicted}: this head has the classes {listed(predictions.classes)}, and "
            "VirNucPro's files have the scores of two classes; leave these files out: verdicts "
            "have all."
        )
    failures = _failures(missing_of(predicted), runs)
    parts = _opened(head, runs) if keeps_features else {}
    merged = output / f"{name}_merged"
    folders = {kind: output / f"{name}_{KINDS[kind].folder}" for kind in KINDS}
    vacate(merged / HIGHEST)

    def rows() -> Iterator[Row]:
        return _rows(translated, predictions)

    num_files = -(-translation.fragments // FRAGMENTS_A_FILE) if parts else 0
    _remove_others(merged, num_files)
    for kind, folder in folders.items():
        _remove_others(folder, num_files if kind in parts else 0)
    if parts:
        _write_features(translated, parts, rows, translation.fragments, merged, folders)
    num_predicted = _write_results(merged / RESULTS, rows())
    num_failed = _write_failed(output / FAILED, rows(), failures, folders, translated)
    _write_highest(merged / HIGHEST, rows())
    log.info("%s: %s", merged / RESULTS, counted(num_predicted, "fragment"))
    if num_failed:
        fragments = counted(num_failed, "fragment has", "fragments have")
        log.warning("%s no prediction: %s has the reasons.", fragments, output / FAILED)
    return num_failed


def _rows(translated: Path, predictions: Predictions) -> Iterator[Row]:
    """Yield all fragments, in the order of the translation."""
    # The virus is the second class in VirNucPro, but may be the first class of a head.
    virus = predictions.classes.index(VIRUS) if VIRUS in predictions.classes else 1
    for block in scored(translated, predictions):
        labels = [predictions.classes[column] for column in block.scores_NC.argmax(1)]
        scores = (block.scores_NC[:, column].tolist() for column in (1 - virus, virus))
        yield from map(Row, block.fragments["id"].to_pylist(), labels, *scores)


def _failures(path: Path, runs: Mapping[str, Path]) -> dict[str, list[tuple[str, str]]]:
    """Return the missing kinds of features of each id, with the reasons."""
    kinds = {run: kind for kind, run in runs.items()}
    reasons_of: dict[str, list[tuple[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in read_tsv(file):
            if (kind := kinds.get(Path(row["run"]))) is None:
                raise UserError(
                    f"{path}: it names the run {row['run']}, which is not given; name with "
                    f"--{' and --'.join(KINDS)} the runs that were predicted from."
                )
            reasons_of.setdefault(row["id"], []).append((kind, row["reason"]))
    return reasons_of


def _write_results(path: Path, rows: Iterator[Row]) -> int:
    """Write a line for each predicted fragment; return their number."""
    num = 0
    with _text(path) as file:
        file.write("Sequence_ID\tPrediction\tscore1\tscore2\n")
        for row in (row for row in rows if row.is_predicted):
            num += 1
            file.write(f"{row.id}\t{row.label}\t{row.others:.9g}\t{row.virus:.9g}\n")
    return num


def _write_highest(path: Path, rows: Iterator[Row]) -> None:
    """Write a line for each window: whether the virus scores highest, and both scores."""
    with _text(path) as file:
        file.write("Modified_ID\tIs_Virus\tmax_score_0\tmax_score_1\n")
        for window, frames in groupby((row for row in rows if row.is_predicted), Row.window):
            scores = zip(*((row.others, row.virus) for row in frames), strict=True)
            others, virus = map(max, scores)
            file.write(f"{window}\t{virus >= others}\t{others:.9g}\t{virus:.9g}\n")


def _write_failed(
    path: Path,
    rows: Iterator[Row],
    failures: Mapping[str, Sequence[tuple[str, str]]],
    folders: Mapping[str, Path],
    translated: Path,
) -> int:
    """Write a line for each refused contig, and for each missing kind of features of a fragment.
    Return the number of fragments without a prediction."""
    num_failed = 0
    with _text(path) as file:
        for contig in untranslated(translated):
            if contig["status"] == "refused":
                name, reason = one_line(contig["contig"]), one_line(contig["reason"])
                file.write(f"{contig['file']}|translate|{name}: {reason}\n")
        for number, row in enumerate(rows):
            if row.is_predicted:
                continue
            num_failed += 1
            id = one_line(row.id)
            if id not in failures:
                raise UserError(
                    f"{path}: {id} has no prediction, and no .missing.tsv has a reason; predict "
                    "again."
                )
            for kind, reason in failures[id]:
                fasta = folders[kind] / f"output_{number // FRAGMENTS_A_FILE + 1}.fa"
                file.write(f"{fasta}|{KINDS[kind].stage}|{id}: {one_line(reason)}\n")
    return num_failed


class Part:
    """The features of one kind."""

    def __init__(self, run: Path, column: str | None) -> None:
        self._features = features.open(run, column, choosing=CHOOSING)
        self._index = Index(self._features)

    def take(self, ids: Sequence[str]) -> tuple[npt.NDArray[np.bool_], Matrix]:
        """Return a mask (N) of the `ids` that have a vector, and these vectors (rows, width)."""
        rows = self._index.rows_of(ids)
        has = rows != NOWHERE
        return has, self._features.take(rows[has]).astype(np.float32, copy=False)


def _opened(head: Path, runs: Mapping[str, Path]) -> dict[str, Part]:
    """Open the features of the runs that the head uses; UserError if their number is another."""
    require("safetensors", "torch")
    columns = [part.column for part in Card.read(head / CARD).features]
    if len(columns) != len(runs):
        raise UserError(
            f"{head}: this head takes features of {counted(len(columns), 'run')}, and "
            f"{listed(map(str, runs.values() or ['none']))} given; name with "
            f"--{' and --'.join(KINDS)} the runs that were predicted from."
        )
    opened = zip(runs.items(), columns, strict=True)
    return {kind: Part(run, column) for (kind, run), column in opened}


def _write_features(
    translated: Path,
    parts: Mapping[str, Part],
    rows: Rows,
    num_fragments: int,
    merged: Path,
    folders: Mapping[str, Path],
) -> None:
    """Write the numbered files: sequences of all fragments, and their vectors where they exist."""
    import torch

    fragments = rows()
    progress = Progress(log, "writing features", "fragments")
    num_written = 0
    with ExitStack() as stack:
        sequences = {
            kind: stack.enter_context(gzip.open(translated / KINDS[kind].sequences))
            for kind in parts
        }
        for number in count(1):
            ids = [row.id for row in islice(fragments, FRAGMENTS_A_FILE)]
            if not ids:
                break
            vectors_of = {kind: part.take(ids) for kind, part in parts.items()}
            for kind, (has, vectors) in vectors_of.items():
                present = list(compress(ids, has))
                _copy(sequences[kind], ids, folders[kind] / f"output_{number}.fa")
                if kind == "nucleotides":
                    data: Any = [
                        {"label": id, "mean_representation": mean}
                        for id, mean in zip(present, vectors.tolist(), strict=True)
                    ]
                else:  # each tensor has a storage of its own
                    data = [row.clone() for row in torch.from_numpy(vectors)]
                _save(folders[kind], number, KINDS[kind].layout, present, data)
                del data
            has_all = np.logical_and.reduce([has for has, _ in vectors_of.values()])
            both = [vectors[has_all[has]] for has, vectors in vectors_of.values()]
            data = torch.from_numpy(np.concatenate(both, axis=1))
            _save(merged, number, MERGED, list(compress(ids, has_all)), data)
            num_written += len(ids)
            progress.at(num_written, num_fragments)


def _copy(sequences: gzip.GzipFile, ids: Sequence[str], path: Path) -> None:
    """Write the next `sequences` of a translation to `path`, after a check of their ids."""
    lines = list(islice(sequences, 2 * len(ids)))
    if [line[1:-1].decode() for line in lines[::2]] != ids:
        raise IntegrityError(
            f"{sequences.name}: it has other sequences than {FRAGMENTS}; translate again."
        )
    with delivering(path) as temporary:
        temporary.write_bytes(b"".join(lines))


def _save(folder: Path, number: int, layout: Layout, ids: Sequence[str], data: Any) -> None:
    import torch

    content = io.BytesIO()  # torch.save writes the name of a path into the file
    torch.save({layout.ids: ids, "data": data}, content)
    with delivering(folder / f"output_{number}_{layout.name}.pt") as temporary:
        temporary.write_bytes(content.getbuffer())


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    with delivering(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        yield file


def _remove_others(folder: Path, num_files: int) -> None:
    """Remove numbered files beyond `num_files`, and temporary files of killed processes."""
    for path in folder.glob("*") if folder.is_dir() else ():
        match = NUMBERED.fullmatch(path.name)
        if BEGUN.match(path.name) and is_temporary(path):
            path.unlink()
        elif match and int(match[1]) > num_files:
            discard(path)
    with suppress(OSError):  # not empty, or missing
        folder.rmdir()
