"""Arrow columns of vectors as NumPy arrays, and the refusal of vectors that are not finite."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from featuremill.base.arrays import digests, matrices, matrix, side_by_side
from featuremill.base.errors import UserError
from featuremill.base.text import clipped

__all__ = ["digests", "matrices", "matrix", "refuse_not_finite", "side_by_side"]


def refuse_not_finite(
    vectors: npt.NDArray[Any], ids: Sequence[str], run: str, column: str, why: str
) -> None:
    """Raise UserError for the first of `ids` whose vector has a number that is not finite; `why`
    ends the message."""
    is_finite = np.isfinite(vectors).all(1)
    if not is_finite.all():
        raise UserError(
            f"{run}: the vector of record {clipped(ids[int(is_finite.argmin())])!r} in {column} "
            f"has a number that is not finite, {why}"
        )
