"""The figures of a report, in the order of the page: the records first, then the devices."""

from __future__ import annotations

from featuremill.report import curves, embedding, gantt, lengths, stages, throughput
from featuremill.report.chart import Figure, clock_of
from featuremill.report.facts import Facts
from featuremill.report.timeline import lay_out


def draw(facts: Facts) -> dict[str, Figure]:
    """Return the figures by name."""
    pieces = facts.pieces
    layout = lay_out([p.working for p in pieces], [p.lane for p in pieces]) if pieces else None
    clock = clock_of(layout) if layout else None
    figures = (
        embedding.figure(facts),
        lengths.figure(facts),
        gantt.figure(facts, clock),
        curves.figure(facts, clock),
        throughput.figure(facts, clock),
        stages.figure(facts),
    )
    return {figure.name: figure for figure in figures}
