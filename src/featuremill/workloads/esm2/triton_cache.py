"""The folder and the key of Triton's compiled kernels. Does not import torch."""

from __future__ import annotations

import os
from pathlib import Path

from featuremill.kit import environment
from featuremill.workload import loading


def beside_weights() -> str:
    """Return the folder beside the weights, if FEATUREMILL_CACHE is set; else "".

    The home of a container is lost with it, so each container would compile again.
    """
    cache = environment.CACHE.value()
    return str(Path(cache, "triton")) if cache and os.access(cache, os.W_OK) else ""


def keep_compiled() -> None:
    """Make Triton keep its compiled kernels beside the weights, if FEATUREMILL_CACHE is set."""
    if folder := beside_weights():
        environment.TRITON_CACHE_DIR.set_default(folder)


def start_ahead() -> None:
    """Start a thread that computes the digest of Triton's library, which Triton needs once for the
    keys of kernels (400 MB, half a second to a second)."""
    keep_compiled()
    loading.beside("triton", _compute_key)


def wait_for_key() -> None:
    """Wait for the thread of `start_ahead`; the first kernel would otherwise do the same work."""
    with loading.part("waiting for triton"):
        loading.wait_for("triton")


def _compute_key() -> None:
    from triton.runtime.cache import triton_key

    triton_key()


def folder() -> Path:
    """Return Triton's folder in this environment, by Triton's own rule."""
    if (named := environment.TRITON_CACHE_DIR.text()) is not None:
        return Path(named)
    home = environment.TRITON_HOME.text()
    if home is None:
        home = os.path.expanduser("~/")  # noqa: PTH111  (may be none)
    return Path(beside_weights() or Path(home, ".triton", "cache"))
