"""What messages call the program: this source is built under two names."""

from __future__ import annotations

_IS_FEATUREMILL = __name__.startswith("featuremill.")
EXEC = "featuremill lease" if _IS_FEATUREMILL else "gpu-lease exec"
"""The command that takes GPUs and becomes another command."""
LIST = "featuremill lease --list" if _IS_FEATUREMILL else "gpu-lease list"
"""The command that lists all GPUs."""
DOCTOR = "featuremill doctor" if _IS_FEATUREMILL else "nvidia-smi"
"""The command that shows why no GPU is visible."""
WITHOUT_GPU = "set device: cpu" if _IS_FEATUREMILL else "give --device cpu"
"""How to do without a GPU."""
