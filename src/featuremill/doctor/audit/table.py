"""The audit's table: a row for each dtype, layer and pool, and one for the bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from featuremill.doctor.audit.bounds import BOUNDS

NONE = "–"
GAP = "  "
HEADINGS = (
    *("dtype", "layer", "pool", "mean", "min", "mean", "max"),
    *("mean", "min", "top 1", "top 10", "finite"),
)
NUM_NAMES = 3
"""Columns at the left that hold names, not numbers."""
GROUPS = {
    (3, 4): "residue cosine",
    (5, 6): "relative L2",
    (7, 8): "pooled cosine",
    (9, 10): "neighbours",
    (11, 11): "not",
}
"""What stands above the headings, from one column to another; never wider than they are."""
Report = dict[str, Any]
Cells = Sequence[str]


def lines(report: Report) -> Iterator[str]:
    """Yield the table's lines."""
    pools = report["options"]["pool"]
    rows: list[Cells] = [HEADINGS]
    for found in report["dtypes"]:
        rows += [*_figures(found), *_bounds(found["dtype"], pools)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    names = [" " * width for width in widths[:NUM_NAMES]]
    groups = [
        f"{text:>{sum(widths[first : last + 1]) + len(GAP) * (last - first)}}"
        for (first, last), text in GROUPS.items()
    ]
    yield GAP.join([*names, *groups])
    for row in rows:
        sides = "<" * NUM_NAMES + ">" * (len(row) - NUM_NAMES)
        cells = zip(row, sides, widths, strict=True)
        yield GAP.join(f"{text:{side}{width}}" for text, side, width in cells).rstrip()


def _figures(found: Report) -> Iterator[Cells]:
    """Yield a row for each layer and pool; what is of residues stands in the first of a layer."""
    for layer in found["layers"]:
        cosine, l2 = layer["residue_cosine"], layer["relative_l2"]
        residues = [
            _cosine(cosine, "mean"),
            _cosine(cosine, "min"),
            _l2(l2, "mean"),
            _l2(l2, "max"),
        ]
        names, not_finite = [found["dtype"], str(layer["layer"])], f"{layer['not_finite']:,}"
        for pooled in layer["pooled"] or [{"pool": "none", "cosine": None, "neighbours": None}]:
            cosine, neighbours = pooled["cosine"], pooled["neighbours"]
            yield [
                *names,
                pooled["pool"],
                *residues,
                _cosine(cosine, "mean"),
                _cosine(cosine, "min"),
                _share(neighbours, "nearest_same"),
                _share(neighbours, "ten_overlap"),
                not_finite,
            ]
            names, residues, not_finite = ["", ""], [""] * 4, ""


def _bounds(dtype: str, pools: Sequence[str]) -> Iterator[Cells]:
    bounds = BOUNDS[dtype]
    name, not_finite = "bound", "0"
    residues = [f"≥{bounds.residue_cosine_mean}", f"≥{bounds.residue_cosine_min}"]
    residues += [f"≤{bounds.relative_l2_mean:g}", ""]
    for pool in pools:
        pooled = "" if pool == "none" else f"≥{bounds.pooled_cosine_min(pool)}"
        yield ["", name, pool, *residues, "", pooled, "", "", not_finite]
        name, residues, not_finite = "", [""] * 4, ""


def _cosine(figures: Report | None, name: str) -> str:
    """Return a cosine rounded down: only the same direction is printed as 1."""
    return f"{math.floor(figures[name] * 1e6) / 1e6:.6f}" if figures else NONE


def _l2(figures: Report | None, name: str) -> str:
    return f"{figures[name]:.1e}" if figures else NONE


def _share(figures: Report | None, name: str) -> str:
    return f"{figures[name]:.1%}" if figures and figures[name] is not None else NONE
