"""The whole audit as one JSON object, from which people's page comes too: the figures, what counts
as near enough to fp32, what is beyond it, and what to do then."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from featuremill.base import this_process
from featuremill.base.words import counted
from featuremill.doctor.audit.figures import Float16Figures, Matrix, agreement, cosines_of_rows
from featuremill.doctor.audit.measure import REFERENCE, Found, Pooled, Task
from featuremill.doctor.audit.sample import Protein, Sample
from featuremill.plan.survey import Survey

VERSION = 1
Report = dict[str, Any]


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


def _beyond(bounds: Bounds, layer: Report) -> Iterator[str]:
    """Yield a phrase for each bound that the figures of a layer exceed."""
    where = f"layer {layer['layer']}:"
    if layer["not_finite"]:
        proteins = counted(layer["proteins_not_finite"], "protein")
        what = f"{layer['not_finite']:,} values of {proteins} are not finite"
        yield f"{where} {what}, so a run would fail them"
    if not layer["residue_cosine"]:
        return  # and nothing else is there
    cosine, l2 = layer["residue_cosine"], layer["relative_l2"]
    if cosine["mean"] < (bound := bounds.residue_cosine_mean):
        what = f"the residue cosine is {_digits(cosine['mean'])} on average"
        yield f"{where} {what}, below {bound}"
    if cosine["min"] < (bound := bounds.residue_cosine_min):
        worst = f"{cosine['worst']['id']}, residue {cosine['worst']['residue']:,}"
        what = f"the residue cosine falls to {_digits(cosine['min'])} ({worst})"
        yield f"{where} {what}, below {bound}"
    if l2["mean"] > (bound := bounds.relative_l2_mean):
        yield f"{where} the relative L2 is {l2['mean']:.1e} on average, above {bound:.0e}"
    for pooled in layer["pooled"]:
        cosine = pooled["cosine"]
        if cosine and cosine["min"] < (bound := bounds.pooled_cosine_min(pooled["pool"])):
            falls = f"falls to {_digits(cosine['min'])} ({cosine['worst']['id']})"
            yield f"{where} the cosine of {pooled['pool']} vectors {falls}, below {bound}"


def _digits(cosine: float) -> str:
    """Return a cosine with as many digits as tell it from a bound just beside it."""
    return f"{cosine:.4f}" if cosine < 0.999 else f"{cosine:.6f}"


def remedy(dtype: str, within: Mapping[str, bool], kind: str) -> str | None:
    """Return what to take in place of `dtype`; `within` tells of every dtype that was audited."""
    if within[dtype]:
        return None
    other = "fp16" if dtype == "bf16" else "bf16"
    # On most CPUs fp16 is slower than fp32, so there is nothing to win with it.
    if within.get(other) and not (kind == "cpu" and other == "fp16"):
        return f"set dtype: {other}, which is within the bounds here"
    return "set dtype: fp32"


def as_json(paths: Sequence[Path], task: Task, sample: Sample, measured: Sequence[Found]) -> Report:
    """Return everything that was asked and found."""
    reference, *others = measured
    proteins = sample.proteins
    layers_of = {
        found.dtype: [_layer(found, reference.pooled, layer, proteins) for layer in found.layers]
        for found in others
    }
    beyond = {
        dtype: [phrase for layer in layers for phrase in _beyond(BOUNDS[dtype], layer)]
        for dtype, layers in layers_of.items()
    }
    within = {dtype: not phrases for dtype, phrases in beyond.items()}
    stored = _stored(task, reference.float16, proteins)
    return {
        "version": VERSION,
        "within": all(within.values()) and not (stored and stored["overflows"]),
        "input": _input(paths, sample.survey),
        "sample": _sample(task, sample),
        "model": {"name": task.weights.name, "weights_sha256": task.weights.sha256},
        "options": task.options.model_dump(mode="json"),
        "batch_tokens": task.budget,
        "device": {"kind": task.device.kind, "name": task.device.name},
        "versions": this_process.versions(),
        "reference": {
            "dtype": REFERENCE,
            "backend": reference.backend,
            "matmul_precision": matmul_precision(),
        },
        "bounds": {dtype: BOUNDS[dtype]._asdict() for dtype in task.dtypes},
        "dtypes": [
            {
                "dtype": found.dtype,
                "backend": found.backend,
                "layers": layers_of[found.dtype],
                "beyond": beyond[found.dtype],
                "within": within[found.dtype],
                "remedy": remedy(found.dtype, within, task.device.kind),
            }
            for found in others
        ],
        "output_float16": stored,
    }


def matmul_precision() -> str:
    """Return torch's own word for how fp32 products are computed; "highest" is fp32."""
    import torch

    return torch.get_float32_matmul_precision()


def _input(paths: Sequence[Path], survey: Survey) -> Report:
    tally = survey.tally
    return {
        "paths": [str(path) for path in paths],
        "records": tally.records,
        "refused": tally.refused,
        "refusals": [
            {"reason": reason, "records": count, "first": survey.first_refused[reason]}
            for reason, count in tally.refusals.most_common()
        ],
        "notes": dict(sorted(tally.notes.items())),
    }


def _sample(task: Task, sample: Sample) -> Report:
    lengths = [len(protein.payload) for protein in sample.proteins]
    computed = list(map(task.num_residues, sample.proteins))
    return {
        "proteins": len(lengths),
        "is_everything": sample.is_everything,
        "longest_taken": sample.num_longest,
        "residues": sum(computed),
        "truncated": sum(whole > part for whole, part in zip(lengths, computed, strict=True)),
        "shortest": min(lengths),
        "median": statistics.median_low(lengths),
        "longest": max(lengths),
    }


def _layer(found: Found, expected: Pooled, layer: int, proteins: Sequence[Protein]) -> Report:
    compared, pools = found.layers[layer], [pool for at, pool in found.pooled if at == layer]
    bad = {one.row for one in compared if one.not_finite}
    for pool in pools:
        bad |= set(np.flatnonzero(~np.isfinite(found.pooled[layer, pool]).all(1)).tolist())
    # A record with a bad value fails as a whole in a run, so its pooled vector does not count.
    finite = [row for row in range(len(proteins)) if row not in bad]
    cosine = relative_l2 = None
    num_residues = sum(one.num_residues for one in compared)
    if told := [one for one in compared if not one.not_finite]:
        worst = min(told, key=lambda one: (one.lowest_cosine, one.row))
        letter = chr(proteins[worst.row].payload[worst.lowest_residue])
        cosine = {
            "mean": sum(one.cosine_sum for one in told) / num_residues,
            "min": worst.lowest_cosine,
            "worst": _named(proteins[worst.row])
            | {"residue": worst.lowest_residue + 1, "letter": letter},
        }
        worst = max(told, key=lambda one: (one.relative_l2, one.row))
        relative_l2 = {
            "mean": statistics.fmean(one.relative_l2 for one in told),
            "max": worst.relative_l2,
            "worst": _named(proteins[worst.row]),
        }
    return {
        "layer": layer,
        "residues": num_residues,
        "not_finite": sum(one.not_finite for one in compared) or len(bad),
        "proteins_not_finite": len(bad),
        "residue_cosine": cosine,
        "relative_l2": relative_l2,
        "pooled": [
            _pooled(pool, found.pooled[layer, pool], expected[layer, pool], finite, proteins)
            for pool in pools
        ],
    }


def _pooled(
    pool: str, found_ND: Matrix, expected_ND: Matrix, finite: list[int], proteins: Sequence[Protein]
) -> Report:
    cosine = neighbours = None
    if finite:
        mine_ND, theirs_ND = found_ND[finite], expected_ND[finite]
        cosines = cosines_of_rows(mine_ND, theirs_ND)
        lowest = int(np.argmin(cosines))
        cosine = {
            "mean": float(cosines.mean()),
            "min": float(cosines[lowest]),
            "worst": _named(proteins[finite[lowest]]),
        }
        agreed = agreement(mine_ND, theirs_ND)
        neighbours = agreed._asdict() if agreed else None
    return {"pool": pool, "cosine": cosine, "neighbours": neighbours}


def _stored(
    task: Task, float16: dict[int, Float16Figures], proteins: Sequence[Protein]
) -> Report | None:
    """Return what `output_dtype: float16` does; None where no residues are delivered in it."""
    if not task.is_stored_narrow:
        return None
    layers = [
        {
            "layer": layer,
            "relative_l2_mean": statistics.fmean(figures.relative_l2 or [0.0]),
            "relative_l2_max": max(figures.relative_l2, default=0.0),
            "overflows": figures.overflows,
            "such_as": _named(proteins[min(figures.rows)]) if figures.rows else None,
        }
        for layer, figures in float16.items()
    ]
    return {"overflows": sum(figures.overflows for figures in float16.values()), "layers": layers}


def _named(protein: Protein) -> Report:
    return {"id": protein.id, "source": protein.source, "line": protein.line}
