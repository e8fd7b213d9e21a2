"""Where Triton keeps what it compiles: shared objects, loaded from there. No torch here."""

from __future__ import annotations

import os
from pathlib import Path

from featuremill.base import environment


def beside_weights() -> str:
    """Return the folder beside the weights, where one is named for these; else nothing.

    A container's home is gone with it, and each would compile anew.
    """
    cache = environment.CACHE.value()
    return str(Path(cache, "triton")) if cache and os.access(cache, os.W_OK) else ""


def folder() -> Path:
    """Return the folder of a job with this environment; what is not named is Triton's own rule."""
    if (named := environment.TRITON_CACHE_DIR.text()) is not None:
        return Path(named)
    home = environment.TRITON_HOME.text()
    if home is None:
        home = os.path.expanduser("~/")  # noqa: PTH111  (may be none)
    return Path(beside_weights() or Path(home, ".triton", "cache"))
