"""The page of verdicts: what the contigs are, and the scores along those with most fragments."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from featuremill.base import words
from featuremill.base.text import clipped
from featuremill.report.brief import brief
from featuremill.report.chart import Figure, drawn, values
from featuremill.report.page import write_of
from featuremill.store import command_line
from featuremill.verdict.command import RULES
from featuremill.verdict.contigs import STATUSES, Counts
from featuremill.verdict.predictions import Scored

TEMPLATE = Path(__file__).parent / "assets" / "verdict.html"
MOST_POINTS = 200
"""Of one contig: more lie on each other."""
MOST_TEXT = 30
ROW_PIXELS = 34


class Track(NamedTuple):
    """The scores along one contig."""

    contig: str
    points: Sequence[tuple[int, float]]
    """Middle of a fragment in nucleotides, and its score."""


def tracks_of(ids: Sequence[str], blocks: Iterable[Scored], preferred: int) -> list[Track]:
    """Return the scores of the class `preferred` along the contigs `ids`, in their order."""
    found: dict[str, list[tuple[int, float]]] = {id: [] for id in ids}
    for block in blocks:
        names = block.fragments["contig"].to_pylist()
        middles = (block.fragments["start"].to_numpy() + block.fragments["end"].to_numpy()) // 2
        for row in np.flatnonzero([name in found for name in names]).tolist():
            score = float(block.scores_NC[row, preferred])
            if not np.isnan(score):
                found[names[row]].append((int(middles[row]), score))
    return [Track(id, _some(points)) for id, points in found.items()]


def _some(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return at most so many points as can be told apart, evenly spread."""
    step = max(1, -(-len(points) // MOST_POINTS))
    return points[::step]


def write_page(
    table: Path,
    preferred: str,
    counts: Counts,
    tracks: Sequence[Track],
    by: str,
    runs: Sequence[Path],
) -> None:
    """Write the page of the verdicts in `table` beside it."""
    found = [brief(folder, table.parent) for folder in runs]
    failing = [run.folder for run in found if run.counts.failed]
    retries = [f"featuremill retry {shlex.quote(folder)}" for folder in failing]
    write_of(
        table.with_suffix(".html"),
        TEMPLATE.read_text("utf-8"),
        title=table.stem,
        runs=found,
        next=[*retries, command_line.again(Path(failing[0]))] if failing else [],
        lead=f"A contig's class is the one that is highest by {RULES[by]}.",
        counts=counts,
        statuses=[(key, told, counts.without.get(key, 0)) for key, told in STATUSES.items()],
        figures=[_verdicts(counts), _tracks(tracks, preferred)],
    )


def _verdicts(counts: Counts) -> Figure:
    told = [*counts.verdicts.most_common(), *sorted(counts.without.items())]
    rows: list[dict[str, Any]] = [
        {"what": clipped(name, MOST_TEXT), "contigs": number, "has": name in counts.verdicts}
        for name, number in told
    ]
    sentence = (
        f"Of {words.counted(counts.contigs, 'contig')}, "
        + words.listed(f"{number:,} {name}" for name, number in told)
        + f"; {words.count(counts.failed)} of {words.counted(counts.fragments, 'fragment')} "
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
        {"contig": clipped(track.contig, MOST_TEXT), "place": place, "score": score}
        for track in tracks
        for place, score in track.points
    ]
    if not rows:
        return Figure("tracks", title, "No fragment has a score, so there is nothing to show.")
    sentence = (
        f"Each line is one of the {len(tracks)} contigs with most fragments, each mark a fragment "
        f"where it stands: the darker, the higher its score for {preferred}."
    )
    chart = (
        alt.Chart(values(rows))
        .mark_tick(thickness=3)
        .encode(
            y=alt.Y("contig:N", title=None, sort=None),
            x=alt.X("place:Q", title="nucleotides from the contig's start"),
            color=alt.Color("score:Q", scale=alt.Scale(range="ramp", domain=[0, 1]), title="score"),
            tooltip=["contig:N", "place:Q", alt.Tooltip("score:Q", format=".3f")],
        )
        .properties(width="container", height=ROW_PIXELS * len(tracks))
    )
    return drawn("tracks", title, sentence, chart)
