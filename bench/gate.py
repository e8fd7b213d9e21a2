"""Nothing is timed before it is right: every engine's files against those of fair-esm in fp32."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bench.engines import Dtype, Features
from bench.peers import cosines, relative_l2

BOUNDS: dict[Dtype, dict[str, float]] = {
    "fp32": {"residue_l2": 1e-5, "pooled_l2": 1e-5},
    "bf16": {
        "residue_l2": 2e-2,
        "residue_cosine_mean": 0.9995,
        "residue_cosine_min": 0.99,
        "pooled_cosine_min": 0.9999,
    },
    "fp16": {
        "residue_l2": 5e-3,
        "residue_cosine_mean": 0.9995,
        "residue_cosine_min": 0.99,
        "pooled_cosine_min": 0.9999,
    },
}
"""Relative L2 may be at most this, a cosine must be at least this."""


class Verdict(NamedTuple):
    """How far an engine's values are from the reference's."""

    engine: str
    dtype: Dtype
    residue_l2: float
    """Relative L2 of all residues together."""
    residue_l2_worst: float
    """The same of the worst protein."""
    residue_cosine_mean: float
    residue_cosine_min: float
    pooled_l2: float
    pooled_cosine_min: float

    def failures(self) -> list[str]:
        """Return the bounds of its dtype that it misses, in words."""
        missed = []
        for measure, bound in BOUNDS[self.dtype].items():
            value = getattr(self, measure)
            is_met = value <= bound if measure.endswith("l2") else value >= bound
            if not is_met:  # NaN misses as well
                missed.append(f"{measure} {value:.3g}, bound {bound:g}")
        return missed


def judge(
    engine: str,
    dtype: Dtype,
    exact: Features,
    pooled: Features,
    reference: tuple[Features, Features],
) -> Verdict:
    """Compare an engine's residues and pooled vectors with the reference's (residues, pooled)."""
    residues, expected_residues = _joined(exact), _joined(reference[0])
    vectors, expected_vectors = _joined(pooled), _joined(reference[1])
    cosine = cosines(residues, expected_residues)
    return Verdict(
        engine,
        dtype,
        float(relative_l2(residues, expected_residues)),
        float(max(relative_l2(exact[name], reference[0][name]) for name in exact)),
        float(cosine.mean()),
        float(cosine.min()),
        float(relative_l2(vectors, expected_vectors)),
        float(cosines(vectors, expected_vectors).min()),
    )


def _joined(features: Features) -> npt.NDArray[np.float32]:
    return np.concatenate([np.atleast_2d(features[name]) for name in sorted(features)])
