"""Tokens per second of the GPU alone: batches lie ready, outputs stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.lengths import Protein, tokens_of
from bench.place import Place, Stopwatch
from featuremill.workload.batches import make_batches
from featuremill.workloads import esm2


def prepare(model: Any, proteins: Sequence[Protein], budget: int) -> list[Any]:
    """Return the host side of all batches of `proteins`, as the worker would make them."""
    payloads = [sequence.encode() for _, sequence in proteins]
    return [
        esm2.prepare(model, [payloads[row] for row in rows], budget)
        for rows in make_batches(tokens_of(proteins), budget)
    ]


def seconds(place: Place, model: Any, batches: Sequence[Any]) -> float:
    """Return the time that the device needs for `batches`."""
    with Stopwatch(place) as watch:
        for batch in batches:
            list(esm2.on_device(model, batch))
    return watch.seconds
