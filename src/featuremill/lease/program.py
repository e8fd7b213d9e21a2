"""The commands of this program in messages (featuremill and gpu-lease are built from this source),
and its end with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_IS_FEATUREMILL = __name__.startswith("featuremill.")
EXEC = "featuremill lease" if _IS_FEATUREMILL else "gpu-lease exec"
"""The command that takes GPUs and becomes another command."""
LIST = "featuremill lease --list" if _IS_FEATUREMILL else "gpu-lease list"
DOCTOR = "featuremill doctor" if _IS_FEATUREMILL else "nvidia-smi"
"""The command that shows why no GPU is visible."""
NO_GPU = (
    "device: cuda was asked for, but {}; `featuremill doctor` shows why, or set device: cpu."
    if _IS_FEATUREMILL
    else "a GPU is wanted, but {}; `nvidia-smi` shows why, or ask for none."
)
"""The message if no GPU is visible, with a placeholder for the reason."""
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent_pid: int, signal_number: signal.Signals) -> None:
    """Ask the kernel for `signal_number` when the parent dies; send it now if it has died already.

    An exception would be lost in code that Python runs at a fork. Linux only; elsewhere an orphan
    ends at its next write to the parent's pipe.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal_number))
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal_number)
