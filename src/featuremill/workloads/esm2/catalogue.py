"""The ESM-2 models that Meta has published, with their sizes."""

from typing import NamedTuple


class Published(NamedTuple):
    """A model on Meta's server."""

    num_layers: int
    width: int
    num_heads: int
    dtype: str
    """The dtype of its checkpoint."""
    gigabytes: float
    """The approximate size of its checkpoint in GB."""


PUBLISHED = {
    "esm2_t6_8M_UR50D": Published(6, 320, 20, "float32", 0.03),
    "esm2_t12_35M_UR50D": Published(12, 480, 20, "float32", 0.14),
    "esm2_t30_150M_UR50D": Published(30, 640, 20, "float32", 0.6),
    "esm2_t33_650M_UR50D": Published(33, 1280, 20, "float32", 2.6),
    "esm2_t36_3B_UR50D": Published(36, 2560, 40, "float16", 5.7),
    "esm2_t48_15B_UR50D": Published(48, 5120, 40, "float16", 30.3),
}
SUGGESTED = (
    *("esm2_t33_650M_UR50D", "esm2_t30_150M_UR50D", "esm2_t12_35M_UR50D", "esm2_t6_8M_UR50D"),
    *("esm2_t36_3B_UR50D", "esm2_t48_15B_UR50D"),
)
"""The default model, then one for any machine."""
