"""The child that tries one device as a worker would use it: torch, an allocation, a product, and
then ESM-2's operations.

`python -m featuremill.doctor.ask_torch cuda|cpu HEAD_WIDTH`; which GPU is meant stands in
CUDA_VISIBLE_DEVICES. One JSON line on standard output, and where the product went well a second.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

NUM_FLOATS = 16 * 2**20
"""What is allocated: 64 MiB."""
WIDTH = 256


def main() -> None:
    """Print what torch is, whether it can use the device, and how ESM-2 is computed there."""
    try:
        import torch
    except ImportError as error:
        print(json.dumps({"error": str(error), "is_missing": error.name == "torch"}))
        return
    build: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "arch_list": [],
    }
    kind, head_width = sys.argv[1], int(sys.argv[2])
    if kind == "cuda" and build["cuda"]:
        build["arch_list"] = torch.cuda.get_arch_list()
    try:
        tried = _tried(torch, kind)
    except Exception as error:  # whatever a driver makes torch say is the answer
        tried = _failed(error)
    print(json.dumps({**build, **tried}), flush=True)
    if "error" in tried:
        return
    try:
        from featuremill.doctor import ways

        print(json.dumps(ways.found(kind, head_width)))
    except Exception as error:
        print(json.dumps(_failed(error)))


def _failed(error: Exception) -> dict[str, Any]:
    from featuremill.base.errors import WorkloadError
    from featuremill.extract import compute

    name = "" if isinstance(error, WorkloadError) else f"{type(error).__name__}: "
    lacks_memory = compute.is_out_of_memory(error)
    return {"error": name + compute.one_line(error), "lacks_memory": lacks_memory}


def _tried(torch: Any, kind: str) -> dict[str, Any]:
    start = time.monotonic()
    held = torch.ones(NUM_FLOATS, device=kind)
    ones = torch.ones(WIDTH, WIDTH, device=kind)
    total = float((ones @ ones).sum()) + float(held[-1])
    if total != WIDTH**3 + 1:
        return {"error": f"a product of ones gave {total} in place of {WIDTH**3 + 1}"}
    count = torch.cuda.get_device_properties(0).multi_processor_count if kind == "cuda" else None
    return {"seconds": round(time.monotonic() - start, 3), "multiprocessors": count}


if __name__ == "__main__":
    main()
