"""The child that tries one device as a worker would use it: torch, an allocation, a product.

`python -m featuremill.doctor.ask_torch cuda|cpu`; which GPU is meant stands in
CUDA_VISIBLE_DEVICES. One JSON line on standard output.
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
    """Print what torch is and whether it can use the device."""
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
    kind = sys.argv[1]
    if kind == "cuda" and build["cuda"]:
        build["arch_list"] = torch.cuda.get_arch_list()
    try:
        print(json.dumps({**build, **_tried(torch, kind)}))
    except Exception as error:  # whatever a driver makes torch say is the answer
        text = " ".join(str(error).split())[:300]
        print(json.dumps({**build, "error": f"{type(error).__name__}: {text}"}))


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
