"""Write the page of verdicts: counts, warnings, and scores along the largest contigs."""

from __future__ import annotations

import heapq
import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from featuremill.kit import text
from featuremill.kit.pages import Figure, drawn, values, write_of
from featuremill.kit.processes import command_again
from featuremill.kit.runs import Accounts, FailedGroup, Results, failed_groups
from featuremill.kit.text import clipped, count, counted, listed, one_line
from featuremill.steps.heads import charts, page
from featuremill.steps.verdicts.contigs import RULES, STATUSES, Counts, Judged, Trained
from featuremill.steps.verdicts.predictions import Scored

TEMPLATE = Path(__file__).parent / "assets" / "verdict.html"
MOST_POINTS = 200
"""The most fragments of a contig that are drawn; more would overlap."""
MOST_ROWS = 10_000
"""The most contigs in the page's table; verdicts.tsv has all."""
MEANING = {
    "max": "A contig's score is the highest of its fragments', and the highest of many is high by "
    "chance alone. So it is no probability for the contig, and a long contig gets a higher one "
    "than a short one.",
    "mean": "A contig's score is the mean of its fragments'. It is no probability for the contig: "
    "its fragments are not independent of each other.",
}
"""A caution about the scores of contigs, by rule."""
MOST_TEXT = 30
MOST_PIXELS = 300
"""The largest width of a contig's name, in pixels."""
ROW_PIXELS = 34


class Brief(NamedTuple):
    """The summary of a finished run."""

    folder: str
    report: str
    counts: Accounts
    devices: str
    duration: str
    """The working time of the devices."""
    groups: Sequence[FailedGroup]


def brief(folder: Path, page_folder: Path) -> Brief:
    """Return the summary of the run in `folder` for a page in `page_folder`.

    Raises:
        UserError: the run is not finished.
    """
    delivery = Results(folder).read_delivery()
    names = {device.name for receipt in delivery.receipts for device in receipt.devices}
    seconds = sum(receipt.seconds.get("run", 0) for receipt in delivery.receipts)
    listed = folder / "failed.tsv"
    return Brief(
        str(folder),
        os.path.relpath(folder / "report.html", page_folder),
        delivery.counts,
        text.listed(sorted(names)),
        text.duration(seconds),
        failed_groups(listed).groups if listed.exists() else (),
    )


class Span(NamedTuple):
    """A fragment, with its position in nucleotides of the contig."""

    start: int
    end: int
    score: float


class Track(NamedTuple):
    """The scores along a contig."""

    contig: str
    spans: Sequence[Span]


class Shown:
    """The rows of the page's table: the `MOST_ROWS` rows with the highest scores."""

    def __init__(self) -> None:
        self._kept: list[tuple[float, int, list[str]]] = []
        self.num_all = 0

    def add(self, row: list[str], score: float) -> None:
        """Add a row of verdicts.tsv, with its score for the preferred class."""
        entry = (score, -self.num_all, row)
        self.num_all += 1
        (heapq.heappush if self.num_all <= MOST_ROWS else heapq.heappushpop)(self._kept, entry)

    def rows(self) -> list[list[str]]:
        """Return the rows with the highest scores, in the order of verdicts.tsv."""
        return [row for _, _, row in sorted(self._kept, key=lambda entry: -entry[1])]


class About(NamedTuple):
    """The head, its accuracy and the rows of the page."""

    trained: Trained | None
    judged: Judged | None
    shown: Shown


def tracks_of(ids: Sequence[str], blocks: Iterable[Scored], preferred: int) -> list[Track]:
    """Return the scores of the class `preferred` along the contigs `ids`."""
    spans_of: dict[str, list[Span]] = {id: [] for id in ids}
    for block in blocks:
        names = block.fragments["contig"].to_pylist()
        starts, ends = (block.fragments[key].to_numpy() for key in ("start", "end"))
        for row in np.flatnonzero([name in spans_of for name in names]).tolist():
            score = float(block.scores_NC[row, preferred])
            if not np.isnan(score):
                spans_of[names[row]].append(Span(int(starts[row]), int(ends[row]), score))
    return [Track(id, _thinned(spans)) for id, spans in spans_of.items()]


def _thinned(spans: list[Span]) -> list[Span]:
    """Return up to `MOST_POINTS` fragments, the highest in each of equal ranges of the contig,
    sorted by score so that the highest is drawn on top."""
    if len(spans) > MOST_POINTS:
        stretch = max(span.end for span in spans) // MOST_POINTS + 1
        best: dict[int, Span] = {}
        for span in spans:
            number = (span.start + span.end) // 2 // stretch
            best[number] = max(best.get(number, span), span, key=lambda each: each.score)
        spans = [*best.values()]
    return sorted(spans, key=lambda span: span.score)


def write_page(
    table: Path,
    classes: Sequence[str],
    preferred: int,
    counts: Counts,
    tracks: Sequence[Track],
    by: str,
    runs: Sequence[Path],
    about: About,
) -> None:
    """Write the page of the verdicts in `table` to the same folder."""
    briefs = [brief(folder, table.parent) for folder in runs]
    failing = [run.folder for run in briefs if run.counts.failed]
    retries = [f"featuremill retry {shlex.quote(folder)}" for folder in failing]
    figures = [_verdicts(counts), _tracks(tracks, classes[preferred])]
    if about.judged:
        num = sum(map(sum, about.judged.counts_CC))
        caption = f"{counted(num, 'labelled contig')} have the verdict that is their label"
        figures.append(charts.confusion(classes, about.judged.counts_CC, caption))
    samples = sorted(counts.samples.items(), key=lambda item: -item[1][classes[preferred]])
    write_of(
        table.with_suffix(".html"),
        TEMPLATE.read_text("utf-8"),
        verb="verdict",
        title=table.stem,
        runs=briefs,
        next=[*retries, command_again(Path(failing[0]))] if failing else [],
        lead=f"A contig's class is the one that is highest by {RULES[by]}.",
        meaning=MEANING[by],
        counts=counts,
        statuses=[(key, words, counts.without.get(key, 0)) for key, words in STATUSES.items()],
        figures=figures,
        warnings=_warnings(counts, about),
        head=_head(about.trained) if about.trained else None,
        file=table.name,
        num_all=about.shown.num_all,
        num_scores=len(classes),
        columns=[
            *(["sample"] if counts.samples else []),
            *["contig", "verdict", *classes, "fragments", "failed", "status", "seen"],
        ],
        classes=[*classes],
        samples=sorted(samples[: page.MOST_SAMPLES]),
        rows=about.shown.rows(),
    )


def _warnings(counts: Counts, about: About) -> list[str]:
    warnings = []
    if counts.seen:
        sentence = (
            f"The head was trained on {count(counts.seen)} of these "
            f"{counted(counts.contigs, 'contig')}. Their scores here are held out: each by a "
            "head that did not see the contig's group."
        )
        if about.judged:
            value, low, high = about.judged.accuracy
            sentence += (
                f" Of the labelled ones, {value:.1%} ({low:.1%}–{high:.1%}) have the right verdict."
            )
        warnings.append(sentence)
    if counts.unknown:
        warnings.append(
            "It is not known which records this head was trained on: it was imported. Verdicts on "
            "such records are better than on others."
        )
    if about.trained:
        known = about.trained.card
        if known.scores:
            warnings += page.warnings_of(known)
        if known.calibration is None:
            warnings.append("This head's scores are not calibrated: they are no probabilities.")
    return warnings


def _head(trained: Trained) -> dict[str, Any]:
    known = trained.card
    return {
        "folder": str(trained.folder),
        "group": known.labels.group if known.labels else None,
        "source": known.source,
        "figures": [
            (
                charts.NAMES[key],
                f"{value:.3f}",
                f"{low:.3f}–{high:.3f}",
                f"{known.guesses[key]:.3f}" if key in known.guesses else "",
            )
            for key, (value, low, high) in known.scores.items()
        ],
    }


def _verdicts(counts: Counts) -> Figure:
    classes = [*counts.verdicts.most_common(), *sorted(counts.without.items())]
    rows: list[dict[str, Any]] = [
        {"what": clipped(name, MOST_TEXT), "contigs": number, "has": name in counts.verdicts}
        for name, number in classes
    ]
    sentence = (
        f"Of {counted(counts.contigs, 'contig')}, "
        + listed(f"{number:,} {name}" for name, number in classes)
        + f"; {count(counts.failed)} of {counted(counts.fragments, 'fragment')} "
        "have no prediction."
    )
    chart = (
        alt.Chart(values(rows))
        .mark_bar()
        .encode(
            y=alt.Y("what:N", title=None, sort=None),
            x=alt.X("contigs:Q", title="contigs"),
            color=alt.Color(
                "has:N",
                legend=None,
                scale=alt.Scale(domain=[True, False], range=["--first", "--rest"]),
            ),
            tooltip=["what:N", "contigs:Q"],
        )
        .properties(width="container", height=ROW_PIXELS * max(1, len(rows)))
    )
    return drawn("verdicts", "What the contigs are", sentence, chart)


def _tracks(tracks: Sequence[Track], preferred: str) -> Figure:
    title = f"Scores for {preferred} along the largest contigs"
    rows = [
        # Not clipped, as names may only differ at the end; the browser clips what is too wide.
        {"contig": one_line(track.contig), **span._asdict()}
        for track in tracks
        for span in track.spans
    ]
    if not rows:
        return Figure("tracks", title, "No fragment has a score, so there is nothing to show.")
    sentence = (
        f"Each line is one of the {len(tracks)} contigs with most fragments, each bar a fragment "
        f"from its start to its end. A fuller colour is a higher score for {preferred}. Where "
        "fragments overlap, the highest score is on top."
    )
    chart = (
        alt.Chart(values(rows))
        .mark_bar(style="shard", height=ROW_PIXELS // 2)
        .encode(
            y=alt.Y("contig:N", title=None, sort=None, axis=alt.Axis(labelLimit=MOST_PIXELS)),
            x=alt.X("start:Q", title="nucleotides"),
            x2="end:Q",
            color=alt.Color(
                "score:Q",
                scale=alt.Scale(range="heatmap", domain=[0, 1]),
                legend=alt.Legend(title="score", gradientLength=110),
            ),
            tooltip=["contig:N", "start:Q", "end:Q", alt.Tooltip("score:Q", format=".3f")],
        )
        .properties(width="container", height=ROW_PIXELS * len(tracks))
    )
    return drawn("tracks", title, sentence, chart)
