"""The folder of Triton's compiled kernels: shared objects, loaded from there. Imports no torch."""

from __future__ import annotations

import os
from pathlib import Path

from featuremill.base import environment


def beside_weights() -> str:
    """Return the folder beside the weights, if FEATUREMILL_CACHE is set; else nothing.

    A container's home is lost with it, so each container would compile again.
    """
    cache = environment.CACHE.value()
    return str(Path(cache, "triton")) if cache and os.access(cache, os.W_OK) else ""


def folder() -> Path:
    """Return the folder of a job with this environment; otherwise Triton's own rule applies."""
    if (named := environment.TRITON_CACHE_DIR.text()) is not None:
        return Path(named)
    home = environment.TRITON_HOME.text()
    if home is None:
        home = os.path.expanduser("~/")  # noqa: PTH111  (may be none)
    return Path(beside_weights() or Path(home, ".triton", "cache"))
