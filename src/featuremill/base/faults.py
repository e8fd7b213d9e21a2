"""Classification of errors of torch and drivers, by their types and messages."""

from __future__ import annotations

import re
import sys

from featuremill.base.text import plain

OUT_OF_MEMORY = re.compile(
    r"can't allocate memory|CUDA (driver )?error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|Triton Error \[CUDA\]: out of memory"
    # torch 2.11 to 2.13 on a slice of a GPU, as NVML there tells nothing (pytorch#112377).
    r"|NVML_SUCCESS == r INTERNAL ASSERT FAILED"
    # cuBLAS makes its handle, and that memory is what it lacks most often.
    r"|CUBLAS_STATUS_NOT_INITIALIZED"
    # oneDNN found the primitive (else the descriptor is what fails) and no memory for its code.
    r"|could not create a primitive$"
    # Of a new thread a stack of several MB is what cannot be had.
    r"|can't start new thread$"
)
STICKY_CUDA_ERRORS = (
    "CUDA error",
    "CUDA driver error",
    "Triton Error [CUDA]",
    "cuBLAS",
    "CUBLAS_STATUS",
    "cuDNN error",
    "device-side assert",
)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out, on a device (torch's own error) or on the host."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and bool(OUT_OF_MEMORY.search(str(error)))


def is_device_error(error: Exception) -> bool:
    """Return whether a device is dead, so that every later call would fail as well.

    Once CUDA is initialised, the device is tested: libraries refuse an operation with the same
    message as a dead device. Before that, only the message can be used.
    """
    if is_out_of_memory(error) or fault_of_installation(error):
        return False
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        return not all(computes(f"cuda:{n}") for n in range(torch.cuda.device_count()))
    is_sticky = any(text in str(error) for text in STICKY_CUDA_ERRORS)
    return isinstance(error, RuntimeError) and is_sticky


def computes(device: str) -> bool:
    """Return whether torch's `device` can still add two numbers; wait until it is idle."""
    import torch

    for _ in range(2):  # the first call may raise the error of an earlier one
        try:
            return int(torch.ones(2, device=device).sum()) == 2
        except Exception as error:
            if is_out_of_memory(error):
                return True
    return False


def fault_of_installation(error: Exception) -> str:
    """Return a remedy if the installation or use of torch is the cause; else ""."""
    if not isinstance(error, (AssertionError, RuntimeError)):  # torch's own are of these types
        return ""
    text = str(error)
    if "Torch not compiled with CUDA enabled" in text:
        return (
            "this torch is a build for CPUs and the job has a GPU; install a build for CUDA, or "
            "set device: cpu"
        )
    if "no kernel image is available" in text:
        return (
            "this torch is not built for a GPU of this architecture; install a build that is "
            "(featuremill doctor names it)"
        )
    if "NVIDIA driver on your system is too old" in text:
        return "update the NVIDIA driver, or install a torch for an older CUDA"
    if "Cannot re-initialize CUDA in forked subprocess" in text:
        return (
            "the workload started a process by fork when CUDA was in use already; let it start "
            "its processes with multiprocessing.get_context('spawn')"
        )
    return ""


def one_line(error: Exception) -> str:
    """Return the message as one printable line of at most 300 characters."""
    return plain(" ".join(str(error).split()))[:300]
