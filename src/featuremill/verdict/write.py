"""The verdicts' table: a row for each contig that was read."""

from __future__ import annotations

import csv
import heapq
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.progress import Progress
from featuremill.base.text import one_line
from featuremill.base.words import counted, listed
from featuremill.store.files import replacing
from featuremill.translate.folder import SUMMARY, UNTRANSLATED, whole
from featuremill.verdict import page
from featuremill.verdict.contigs import Counts, class_of, contigs
from featuremill.verdict.predictions import Predictions, open_predictions, scored

MOST_DRAWN = 24
NONE = "-"
"""The verdict on a contig that has no score."""
log = logging.getLogger("featuremill.verdict")


def write(
    folder: Path,
    predicted: Path,
    output: Path,
    by: str = "max",
    prefer: str | None = None,
    runs: Sequence[Path] = (),
) -> Counts:
    """Write the verdicts on the contigs of the translation in `folder` to `output`, and a page
    beside it that tells of the `runs`, too.

    Raises:
        UserError: when the translation or the predictions are not whole, or not of each other.
    """
    if output.suffix != ".tsv":
        raise UserError(f"{output}: verdicts are a .tsv; give such a name with --output.")
    translation = whole(folder)
    predictions = open_predictions(predicted)
    preferred = _preferred(predictions, prefer)
    verdicts: Counter[str] = Counter()
    without: Counter[str] = Counter()
    largest: list[tuple[int, int, str]] = []
    num_fragments = num_failed = 0
    progress = Progress(log, "judging", "contigs")
    with replacing(output) as temporary:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, delimiter="\t", lineterminator="\n")
            names = [one_line(name) for name in predictions.classes]
            scores = [f"score_{name}" for name in names]
            table.writerow(["contig", "verdict", *scores, "fragments", "failed", "status"])
            for number, contig in enumerate(contigs(scored(folder, predictions))):
                found = contig.scores_C(by)
                is_scored = contig.failed < contig.fragments
                verdict = names[class_of(found, preferred)] if is_scored else NONE
                texts = [f"{score:.9g}" for score in found] if is_scored else [""] * len(scores)
                row = (contig.id, verdict, *texts, contig.fragments, contig.failed, contig.status)
                table.writerow([one_line(str(cell)) for cell in row])
                if is_scored:
                    verdicts[verdict] += 1
                else:
                    without[contig.status] += 1
                num_fragments += contig.fragments
                num_failed += contig.failed
                entry = (contig.fragments, -number, contig.id)
                (heapq.heappush if len(largest) < MOST_DRAWN else heapq.heappushpop)(largest, entry)
                progress.at(number + 1, translation.contigs.with_fragments)
            with (folder / UNTRANSLATED).open(encoding="utf-8", newline="") as listed_file:
                for line in csv.DictReader(listed_file, delimiter="\t"):
                    empty = [""] * len(scores)
                    table.writerow([line["contig"], NONE, *empty, 0, 0, line["status"]])
                    without[line["status"]] += 1
        num_rows = verdicts.total() + without.total()
        if num_rows != translation.contigs.read or num_fragments != translation.fragments:
            raise IntegrityError(
                f"{folder}: {SUMMARY} counts {translation.contigs.read:,} contigs and "
                f"{translation.fragments:,} fragments, and its tables hold {num_rows:,} and "
                f"{num_fragments:,}; translate again."
            )
    counts = Counts(num_rows, num_fragments, num_failed, verdicts, without)
    drawn = [id for _, _, id in sorted(largest, reverse=True)]
    tracks = page.tracks_of(drawn, scored(folder, predictions), preferred)
    page.write_page(output, names[preferred], counts, tracks, by, runs)
    _say(output, counts)
    return counts


def _preferred(predictions: Predictions, prefer: str | None) -> int:
    classes = predictions.classes
    if prefer is None:
        return len(classes) - 1
    if prefer not in classes:
        raise UserError(f"--prefer {prefer}: {predictions.path} has {listed(classes)}; name one.")
    return classes.index(prefer)


def _say(output: Path, counts: Counts) -> None:
    told = [f"{number:,} {name}" for name, number in counts.verdicts.most_common()]
    log.info(
        "%s: %s: %s", output, counted(counts.contigs, "contig"), listed(told or ["no verdict"])
    )
    if counts.without:
        reasons = listed(f"{number:,} {name}" for name, number in sorted(counts.without.items()))
        num = counted(counts.without.total(), "contig has", "contigs have")
        log.warning("%s no verdict: %s.", num, reasons)
    if counts.failed:
        log.warning(
            "%s no prediction, of %d in all.",
            counted(counts.failed, "fragment has", "fragments have"),
            counts.fragments,
        )
