"""Arrow columns of vectors as NumPy arrays."""

from featuremill.base.arrays import digests, matrices, matrix, side_by_side

__all__ = ["digests", "matrices", "matrix", "side_by_side"]
