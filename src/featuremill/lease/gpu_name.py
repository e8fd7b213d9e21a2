"""The name of a GPU for all messages, logs and pages."""

from __future__ import annotations

from .text import one_line, plain


def gpu(uuid: str, number: float | None = None) -> str:
    """Return "GPU 0 (3a9f)": the number of nvidia-smi and the beginning of the UUID; for a slice
    "GPU 0 (MIG 3a9f)". Unknown values are left out."""
    part = "MIG " if uuid.startswith("MIG-") else ""
    head = _safe(uuid).removeprefix("GPU-").removeprefix("MIG-")[:4]
    return ("GPU" if number is None else f"GPU {number}") + (f" ({part}{head})" if head else "")


def device(kind: str, uuid: str, name: str, number: float | None = None) -> str:
    """Return the name of a GPU with its model, "GPU 0 (3a9f) NVIDIA L4"; for a CPU, its model."""
    return f"{gpu(uuid, number)} {_safe(name)}" if kind == "cuda" else _safe(name)


def _safe(text: str) -> str:
    return one_line(plain(text))
