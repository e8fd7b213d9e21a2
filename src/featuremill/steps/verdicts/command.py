"""`featuremill verdict`: classify contigs by the scores of their fragments.

Joins the folder of `featuremill translate` and the predictions of `featuremill head predict` by the
ids of fragments. Writes a table with one row per contig, and a page.
"""

from __future__ import annotations

import argparse
import heapq
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from featuremill.kit.errors import IntegrityError, UserError
from featuremill.kit.files import delivering
from featuremill.kit.tables import add_options
from featuremill.kit.text import Progress, counted, listed, one_line
from featuremill.kit.tsv import TsvWriter
from featuremill.steps.heads.card import IS_SEEN, NO, UNKNOWN, YES
from featuremill.steps.translate.folder import untranslated, whole
from featuremill.steps.translate.options import SUMMARY
from featuremill.steps.verdicts import SECTION
from featuremill.steps.verdicts.contigs import (
    Counts,
    Label,
    class_of,
    contigs,
    index_of_preferred,
    judged,
    trained_on,
)
from featuremill.steps.verdicts.predictions import SEEN, open_predictions, scored

MOST_DRAWN = 24
COUNTED = ("fragments", "failed", "status", IS_SEEN)
NONE = "-"
"""The verdict of a contig without a score."""
log = logging.getLogger("featuremill.verdict")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("translated", type=Path, metavar="FOLDER", help="output folder of featuremill translate")
    add(
        "predictions",
        type=Path,
        metavar="PREDICTIONS",
        help="output of featuremill head predict, .tsv or .parquet",
    )
    add(
        "--output",
        type=Path,
        required=True,
        metavar="FILE.tsv",
        help="table of verdicts to write; the page is FILE.html",
    )
    add_options(parser, SECTION, "by", "prefer")
    add(
        "--head",
        type=Path,
        metavar="HEAD",
        help="head of the predictions, whose metrics the page shows",
    )
    add(
        "--runs",
        nargs="+",
        type=Path,
        default=[],
        metavar="results/RUN",
        help="runs of the predictions, which the page shows",
    )


def run(arguments: argparse.Namespace) -> None:
    write(
        arguments.translated,
        arguments.predictions,
        arguments.output,
        arguments.by,
        arguments.prefer,
        arguments.runs,
        arguments.head,
    )


def write(
    folder: Path,
    predicted: Path,
    output: Path,
    by: str = "max",
    prefer: str | None = None,
    runs: Sequence[Path] = (),
    head: Path | None = None,
) -> Counts:
    """Write the verdicts on the contigs of the translation in `folder` to `output`, and their page
    with summaries of `runs` and `head`.

    Raises:
        UserError: the translation or the predictions are incomplete, or do not match.
    """
    from featuremill.steps.verdicts import page  # here: it imports altair, which --help needs not

    if output.suffix != ".tsv":
        raise UserError(f"{output}: verdicts are a .tsv; give --output a name that ends so.")
    translation = whole(folder)
    predictions = open_predictions(predicted)
    preferred = index_of_preferred(prefer, predictions.classes, str(predictions.path))
    trained = trained_on(folder, head, len(predictions.classes)) if head else None
    shown = page.Shown()
    id_columns = translation.id_columns
    by_sample = {sample: Counter[str]() for sample, _ in translation.places}

    def cells_of(contig: str) -> list[str]:
        return [*map(one_line, id_columns.cells(contig))]

    verdicts: Counter[str] = Counter()
    without: Counter[str] = Counter()
    seen_by: Counter[str] = Counter()
    largest: list[tuple[int, int, str]] = []
    pairs: list[tuple[Label, int]] = []
    num_fragments = num_failed = 0
    progress = Progress(log, "judging", "contigs")
    with delivering(output, is_named=True) as temporary:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            names = [one_line(name) for name in predictions.classes]
            scores = [f"score_{name}" for name in names]
            first = [*id_columns.keys, "contig"]
            table = TsvWriter(file, [*first, "verdict", *scores, *COUNTED])
            for number, contig in enumerate(contigs(scored(folder, predictions))):
                scores_C = contig.scores_C(by)
                is_scored = contig.failed < contig.fragments
                class_number = class_of(scores_C, preferred) if is_scored else None
                verdict = NONE if class_number is None else names[class_number]
                seen = SEEN[contig.seen]
                seen_by[seen] += 1
                texts = [f"{score:.9g}" for score in scores_C] if is_scored else [""] * len(scores)
                facts = (contig.fragments, contig.failed, contig.status, seen)
                row = [*cells_of(contig.id), *map(one_line, map(str, (verdict, *texts, *facts)))]
                table.row(row)
                by_sample[id_columns.owner(contig.id)][verdict if is_scored else ""] += 1
                shown.add(row, float(scores_C[preferred]) if is_scored else -1.0)
                label = trained.labels.get(contig.id) if trained and seen == YES else None
                if label and class_number is not None:
                    pairs.append((label, class_number))
                if is_scored:
                    verdicts[verdict] += 1
                else:
                    without[contig.status] += 1
                num_fragments += contig.fragments
                num_failed += contig.failed
                entry = (contig.fragments, -number, contig.id)
                (heapq.heappush if len(largest) < MOST_DRAWN else heapq.heappushpop)(largest, entry)
                progress.at(number + 1, translation.contigs.with_fragments)
            for line in untranslated(folder):
                empty = [""] * len(scores)
                row = [*cells_of(line["contig"]), NONE, *empty, "0", "0", line["status"], NO]
                table.row(row)
                by_sample[id_columns.owner(line["contig"])][""] += 1
                shown.add(row, -1.0)
                without[line["status"]] += 1
        num_rows = verdicts.total() + without.total()
        if num_rows != translation.contigs.read or num_fragments != translation.fragments:
            raise IntegrityError(
                f"{folder}: {SUMMARY} counts {translation.contigs.read:,} contigs and "
                f"{translation.fragments:,} fragments, and its tables hold {num_rows:,} and "
                f"{num_fragments:,}; translate again."
            )
    counts = Counts(
        num_rows,
        num_fragments,
        num_failed,
        verdicts,
        without,
        seen_by[YES],
        seen_by[UNKNOWN],
        {sample: counts for sample, counts in by_sample.items() if sample},
    )
    drawn_ids = [id for _, _, id in sorted(largest, reverse=True)]
    tracks = page.tracks_of(drawn_ids, scored(folder, predictions), preferred)
    about = page.About(trained, judged(pairs, len(names)), shown)
    page.write_page(output, names, preferred, counts, tracks, by, runs, about)
    _log_counts(output, counts)
    return counts


def _log_counts(output: Path, counts: Counts) -> None:
    counted_classes = [f"{number:,} {name}" for name, number in counts.verdicts.most_common()]
    log.info(
        "%s: %s: %s",
        output,
        counted(counts.contigs, "contig"),
        listed(counted_classes or ["no verdict"]),
    )
    if counts.without:
        words = {"without": "without a fragment"}
        reasons = listed(
            f"{number:,} {words.get(name, name)}" for name, number in sorted(counts.without.items())
        )
        num = counted(counts.without.total(), "contig has", "contigs have")
        log.warning("%s no verdict: %s.", num, reasons)
    if counts.failed:
        log.warning(
            "%s no prediction, of %d in all.",
            counted(counts.failed, "fragment has", "fragments have"),
            counts.fragments,
        )
