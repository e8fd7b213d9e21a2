"""What counts as near enough to fp32, what is beyond it, and what to do then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Figures = dict[str, Any]
"""A dtype's or a layer's part of the report."""


class Bounds(NamedTuple):
    """Each layer of a dtype has to keep them; values that are not finite are never within."""

    residue_cosine_mean: float
    residue_cosine_min: float
    relative_l2_mean: float
    mean_cosine_min: float
    """Of vectors pooled by mean; an average has less error than what goes into it."""
    bos_cosine_min: float
    """Of vectors of BOS: that is one token, so its bound is a residue's."""

    def pooled_cosine_min(self, pool: str) -> float:
        """Return the bound of a pool's vectors."""
        return self.bos_cosine_min if pool == "bos" else self.mean_cosine_min


BOUNDS = {
    "bf16": Bounds(0.9995, 0.99, 2e-2, 0.9999, 0.99),
    "fp16": Bounds(0.9995, 0.99, 5e-3, 0.9999, 0.99),
}
"""featuremill's own tests hold the encoder against fair-esm's within the same bounds."""


def beyond(dtype: str, layers: Sequence[Figures]) -> list[str]:
    """Return a phrase for each bound that the figures of `dtype` exceed; none when all is well."""
    return [phrase for layer in layers for phrase in _beyond(BOUNDS[dtype], layer)]


def _beyond(bounds: Bounds, layer: Figures) -> Iterator[str]:
    where = f"layer {layer['layer']}:"
    if layer["not_finite"]:
        count, records = layer["not_finite"], layer["proteins_not_finite"]
        yield (
            f"{where} {count:,} values of {records:,} {'protein' if records == 1 else 'proteins'} "
            "are not finite, so a run would fail them"
        )
    cosine, l2 = layer["residue_cosine"], layer["relative_l2"]
    if cosine and cosine["mean"] < bounds.residue_cosine_mean:
        yield (
            f"{where} the residue cosine is {_digits(cosine['mean'])} on average, "
            f"below {bounds.residue_cosine_mean}"
        )
    if cosine and cosine["min"] < bounds.residue_cosine_min:
        worst = cosine["worst"]
        yield (
            f"{where} the residue cosine falls to {_digits(cosine['min'])} "
            f"({worst['id']}, residue {worst['residue']:,}), below {bounds.residue_cosine_min}"
        )
    if l2 and l2["mean"] > bounds.relative_l2_mean:
        yield (
            f"{where} the relative L2 is {l2['mean']:.1e} on average, "
            f"above {bounds.relative_l2_mean:.0e}"
        )
    for pooled in layer["pooled"]:
        cosine, bound = pooled["cosine"], bounds.pooled_cosine_min(pooled["pool"])
        if cosine and cosine["min"] < bound:
            yield (
                f"{where} the cosine of {pooled['pool']} vectors falls to "
                f"{_digits(cosine['min'])} ({cosine['worst']['id']}), "
                f"below {bound}"
            )


def _digits(cosine: float) -> str:
    """Return a cosine with as many digits as tell it from a bound just beside it."""
    return f"{cosine:.4f}" if cosine < 0.999 else f"{cosine:.6f}"


def remedy(dtype: str, within: Mapping[str, bool], kind: str) -> str:
    """Return what to take in place of `dtype`; `within` tells of every dtype that was audited."""
    other = "fp16" if dtype == "bf16" else "bf16"
    # On most CPUs fp16 is slower than fp32, so there is nothing to win with it.
    if within.get(other) and not (kind == "cpu" and other == "fp16"):
        return f"set dtype: {other}, which is within the bounds here"
    return "set dtype: fp32"
