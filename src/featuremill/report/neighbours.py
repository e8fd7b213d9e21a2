"""Records whose vectors are nearly equal: copies, fragments and close relatives, or a mistake."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from featuremill.base import words
from featuremill.base.text import clipped
from featuremill.features.shown import Shown

NEAR = 0.999
"""From this cosine on two vectors count as nearly equal."""
MOST_PAIRS = 20
ROWS_AT_ONCE = 512


class Pair(NamedTuple):
    """Two records, the shorter one second, and the cosine of their vectors."""

    ids: tuple[str, str]
    lengths: tuple[int, int]
    cosine: str


def nearest(projection: Shown) -> tuple[str, list[Pair]]:
    """Return a sentence about the records of the map, and their nearest pairs that are near."""
    norms = np.linalg.norm(projection.vectors, axis=1, keepdims=True)
    units = projection.vectors / np.where(norms, norms, 1)
    num_near, best, least = 0, list[tuple[float, int, int]](), -np.inf
    for first in range(0, len(units), ROWS_AT_ONCE):
        cosines = np.triu(units[first : first + ROWS_AT_ONCE] @ units[first:].T, 1)
        num_near += int((cosines >= NEAR).sum())
        nearer = np.flatnonzero(cosines > least)  # few of them, once some rows were compared
        if len(nearer) > MOST_PAIRS:
            closeness = cosines.ravel()[nearer]
            nearer = nearer[np.argpartition(closeness, -MOST_PAIRS)[-MOST_PAIRS:]]
        rows, others = np.unravel_index(nearer, cosines.shape)
        found = zip(cosines[rows, others], first + rows, first + others, strict=True)
        best = sorted([*best, *found], key=lambda pair: (-pair[0], *pair[1:]))[:MOST_PAIRS]
        least = best[-1][0] if len(best) == MOST_PAIRS else -np.inf
    pairs = [_pair(projection, *pair) for pair in best if pair[1] < pair[2]]
    num_shown = min(num_near, len(pairs))
    return _sentence(projection, num_near, num_shown, pairs), pairs[:num_shown]


def _pair(projection: Shown, cosine: float, *rows: int) -> Pair:
    one, other = sorted(rows, key=lambda row: (-projection.lengths[row], row))
    is_equal = np.array_equal(projection.vectors[one], projection.vectors[other])
    told = "equal" if is_equal else f"{min(cosine, 0.99999):.5f}"
    lengths = projection.lengths[one], projection.lengths[other]
    return Pair((_id(projection, one), _id(projection, other)), lengths, told)


def _id(projection: Shown, row: int) -> str:
    return clipped(projection.ids[row])


def _sentence(projection: Shown, num_near: int, num_shown: int, pairs: list[Pair]) -> str:
    num = len(projection.ids)
    of = "the records" if num == projection.total else f"the {num:,} records on the map"
    if not num_near:
        text = f"No two of {of} have vectors with a cosine of {NEAR} or more"
        (one, other), _, cosine = pairs[0]
        return f"{text}. The nearest are {one} and {other}, with {cosine}."
    pairs_told = words.counted(num_near, "pair")
    have = "has a cosine" if num_near == 1 else "have cosines"
    more = f" The {num_shown} nearest are here." if num_shown < num_near else ""
    return (
        f"{pairs_told} of {of} {have} of {NEAR} or more.{more} Such records are copies, "
        "fragments or close relatives of each other. Keep them on one side when you split data "
        "for training."
    )
