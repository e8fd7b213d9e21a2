"""The commands in messages, as this source is built into two programs."""

from __future__ import annotations

_IS_FEATUREMILL = __name__.startswith("featuremill.")
EXEC = "featuremill lease" if _IS_FEATUREMILL else "gpu-lease exec"
"""The command that takes GPUs and becomes another command."""
LIST = "featuremill lease --list" if _IS_FEATUREMILL else "gpu-lease list"
"""The command that lists all GPUs."""
DOCTOR = "featuremill doctor" if _IS_FEATUREMILL else "nvidia-smi"
"""The command that shows why no GPU is visible."""
NO_GPU = (
    "device: cuda was asked for, but {}; `featuremill doctor` shows why, or set device: cpu."
    if _IS_FEATUREMILL
    else "a GPU is wanted, but {}; `nvidia-smi` shows why, or ask for none."
)
"""The message if no GPU is visible, with a placeholder for the reason."""
