"""The audit for people: what was compared, the table, what its columns mean, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from featuremill.base.text import wrapped
from featuremill.base.words import counted
from featuremill.doctor.audit.figures import MIN_PROTEINS_FOR_TEN
from featuremill.doctor.audit.report import BOUNDS, Report

WIDTH = 100
SHOWN_NAMES = 60
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
NO_POOL = {"pool": "none", "cosine": None, "neighbours": None}
Cells = Sequence[str]

MEANINGS = {
    "residue cosine": "of a residue's vector with the same one in fp32; 1 is the same direction",
    "relative L2": "norm of the difference over norm in fp32, a protein's residues together",
    "pooled cosine": "the cosine again, of the one vector a protein that `pool` makes",
    "neighbours": "how many proteins have the same nearest one in the sample as in fp32, by cosine "
    "of pooled vectors, and how many of their ten nearest are the same (no bound)",
    "not finite": "values that are NaN or infinite; a run would fail their proteins",
    NONE: "nothing to compare: a nearest protein takes two in the sample, ten of them take "
    f"{MIN_PROTEINS_FOR_TEN}, a pooled vector takes a pool, and all of them take finite values",
}
_wrapped = partial(wrapped, width=WIDTH)


def lines(report: Report) -> Iterator[str]:
    """Yield the lines of the page."""
    names = [found["dtype"] for found in report["dtypes"]]
    yield f"Precision audit: {' and '.join(names)} against fp32, on the same device"
    yield ""
    for label, text in _facts(report):
        yield from _labelled(label, text, 10)
    yield ""
    shown = list(_table(report))
    yield from shown
    yield ""
    for label, text in MEANINGS.items():
        if label != NONE or any(NONE in line.split() for line in shown):
            yield from _labelled(label, text)
    yield ""
    for found in report["dtypes"]:
        yield f"Farthest from fp32 in {found['dtype']}"
        worst = list(_worst(found["layers"]))
        for label, text in worst:
            yield from _labelled(label, text)
        if not worst:
            yield "  nothing could be compared"
    yield ""
    for found in report["dtypes"]:
        yield from _verdict(found)
    yield from _stored(report["output_float16"])


def _labelled(label: str, text: str, width: int = 16) -> list[str]:
    """Return a text beside its label, which gets `width` letters."""
    return _wrapped(text, f"  {label:{width}}", " " * (width + 2))


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    asked, sample, options = report["input"], report["sample"], report["options"]
    refused = f", {asked['refused']:,} refused" if asked["refused"] else ""
    yield "input", f"{', '.join(asked['paths'])}: {counted(asked['records'], 'record')}{refused}"
    for refusal in asked["refusals"]:
        first, records = refusal["first"], refusal["records"]
        yield "", f"{records:,} refused: {refusal['reason']} (first: {first})"
    yield "sample", _sample(sample)
    pools = " and ".join(options["pool"])
    layers = ", ".join(str(layer) for layer in options["layers"])
    plural = "s" if len(options["layers"]) > 1 else ""
    yield "model", f"{report['model']['name']}, layer{plural} {layers}, pool {pools}"
    yield "long", _long(options, sample["truncated"])
    dtypes_of: dict[str, list[str]] = {}
    for found in (report["reference"], *report["dtypes"]):
        dtypes_of.setdefault(found["backend"], []).append(found["dtype"])
    yield "device", f"{report['device']['name']}; a run's dtype here: {options['dtype']}"
    for backend, dtypes in dtypes_of.items():
        yield "kernels", f"{' and '.join(dtypes)}: {backend}"
    yield "versions", ", ".join(f"{name} {text}" for name, text in report["versions"].items())


def _sample(sample: Report) -> str:
    drawn = sample["proteins"] - sample["longest_taken"]
    how = f"the {sample['longest_taken']:,} longest and {drawn:,} drawn by hash"
    if sample["longest_taken"] == 1:
        how = f"the longest and {drawn:,} drawn by hash"
    if sample["is_everything"]:
        how = "all there are, equal ones once"
    text = f"{counted(sample['proteins'], 'protein')}, {counted(sample['residues'], 'residue')}"
    if sample["proteins"] > 1:
        text += f": {how}; {sample['shortest']:,} to {sample['longest']:,} residues long, "
        text += f"median {sample['median']:,}"
    return text


def _long(options: Report, num_truncated: int) -> str:
    if options["long"] == "full":
        return "full: computed whole"
    limit = f"{options['max_residues']:,} residues"
    if options["long"] == "chunk":
        return f"chunk: in windows of {limit}"
    return f"truncate: the first {limit}; {counted(num_truncated, 'protein')} of the sample cut"


def _worst(layers: Sequence[Report]) -> Iterator[tuple[str, str]]:
    """Yield what is farthest from fp32 over all layers, and where that stands."""
    layers = [layer for layer in layers if layer["residue_cosine"]]
    if not layers:
        return
    layer = min(layers, key=lambda layer: float(layer["residue_cosine"]["min"]))
    worst = layer["residue_cosine"]["worst"]
    where = f"{_place(worst)}, residue {worst['residue']:,} ({worst['letter']})"
    yield "residue", f"layer {layer['layer']}, {where}"
    layer = max(layers, key=lambda layer: float(layer["relative_l2"]["max"]))
    yield "relative L2", f"layer {layer['layer']}, {_place(layer['relative_l2']['worst'])}"
    pooled = [(layer["layer"], one) for layer in layers for one in layer["pooled"] if one["cosine"]]
    if not pooled:
        return
    number, one = min(pooled, key=lambda told: float(told[1]["cosine"]["min"]))
    yield "pooled", f"layer {number}, {one['pool']}, {_place(one['cosine']['worst'])}"
    known = [one["neighbours"] for _, one in pooled if one["neighbours"]]
    if any(one["nearest_same"] < 1 for one in known):  # mostly these are as good as equal
        most = max(float(one["cosine_given_up"]) for one in known)
        text = f"where the nearest one is another, it is at most {most:.1e} of cosine farther"
        yield "neighbours", f"{text} in fp32"


def _verdict(found: Report) -> Iterator[str]:
    if found["within"]:
        yield f"{found['dtype']}: within the bounds."
        return
    yield f"{found['dtype']}: outside the bounds; {found['remedy']}."
    for phrase in found["beyond"]:
        yield from _wrapped(f"{phrase}.", "  ", "    ")


def _stored(stored: Report | None) -> Iterator[str]:
    """Say what storing as float16 costs, whichever dtype it was computed in."""
    if not stored:
        return
    if not stored["overflows"]:
        worst = max(layer["relative_l2_max"] for layer in stored["layers"])
        text = f"rounding adds a relative L2 of at most {worst:.1e}; nothing overflows."
        yield from _wrapped(f"output_dtype: float16: {text}", "", "  ")
    for layer in stored["layers"]:
        if layer["overflows"]:
            text = (
                f"output_dtype: float16: layer {layer['layer']} has "
                f"{counted(layer['overflows'], 'value')} beyond 65,504, such as in "
                f"{_place(layer['such_as'])}, so a run would fail; set output_dtype: float32."
            )
            yield from _wrapped(text, "", "  ")


def _place(named: Report) -> str:
    return f"{named['id']:.{SHOWN_NAMES}} ({named['source']}:{named['line']})"


def _table(report: Report) -> Iterator[str]:
    """Yield the table: a row for each dtype, layer and pool, and one for the bounds."""
    rows: list[Cells] = [HEADINGS]
    for found in report["dtypes"]:
        for layer in found["layers"]:
            rows += _figures(found["dtype"], layer)
        rows += _bounds(found["dtype"], report["options"]["pool"])
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


def _figures(dtype: str, layer: Report) -> Iterator[Cells]:
    cosine, l2 = layer["residue_cosine"], layer["relative_l2"]
    residues = [_cosine(cosine, "mean"), _cosine(cosine, "min")]
    residues += [_number(l2, "mean", ".1e"), _number(l2, "max", ".1e")]
    pools = [
        [
            one["pool"],
            _cosine(one["cosine"], "mean"),
            _cosine(one["cosine"], "min"),
            _number(one["neighbours"], "nearest_same", ".1%"),
            _number(one["neighbours"], "ten_overlap", ".1%"),
        ]
        for one in layer["pooled"] or [NO_POOL]
    ]
    return _rows([dtype, str(layer["layer"])], residues, pools, f"{layer['not_finite']:,}")


def _bounds(dtype: str, pools: Sequence[str]) -> Iterator[Cells]:
    bounds = BOUNDS[dtype]
    residues = [f"≥{bounds.residue_cosine_mean}", f"≥{bounds.residue_cosine_min}"]
    residues += [f"≤{bounds.relative_l2_mean:g}", ""]
    pooled = ["" if pool == "none" else f"≥{bounds.pooled_cosine_min(pool)}" for pool in pools]
    cells = [[pool, "", bound, "", ""] for pool, bound in zip(pools, pooled, strict=True)]
    return _rows(["", "bound"], residues, cells, "0")


def _rows(
    names: Cells, residues: Cells, pools: Sequence[Cells], not_finite: str
) -> Iterator[Cells]:
    """Yield a row for each pool; what is of residues stands in the first of them."""
    for pool, *pooled in pools:
        yield [*names, pool, *residues, *pooled, not_finite]
        names, residues, not_finite = [""] * len(names), [""] * len(residues), ""


def _cosine(figures: Report | None, name: str) -> str:
    """Return a cosine rounded down: only the same direction is printed as 1."""
    return f"{math.floor(figures[name] * 1e6) / 1e6:.6f}" if figures else NONE


def _number(figures: Report | None, name: str, form: str) -> str:
    return f"{figures[name]:{form}}" if figures and figures[name] is not None else NONE
