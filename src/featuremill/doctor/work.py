"""The child that does a fixed piece of work whenever it is told to, and says how long it took.

`python -m featuremill.doctor.work cuda|cpu THREADS`: a line {"ready": …} once it is warm; then for
each line on standard input, one {"seconds": …}. Ends with its standard input.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

PRODUCTS = {"cuda": (2000, 4096), "cpu": (40, 1024)}
"""Number and width of the matrix products: some seconds on a GPU, and on one CPU thread."""
BF16_MAJOR = 8


def main() -> None:
    """Work whenever a line comes."""
    import torch

    kind, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    count, width = PRODUCTS[kind]
    dtype = torch.float32
    if kind == "cuda":
        is_new = torch.cuda.get_device_capability(0)[0] >= BF16_MAJOR
        dtype = torch.bfloat16 if is_new else torch.float16
    factor = torch.full((width, width), 1 / width, device=kind, dtype=dtype)
    _work(torch, factor, max(1, count // 20))
    _say(ready=True)
    for _ in sys.stdin:
        start = time.monotonic()
        _work(torch, factor, count)
        _say(seconds=time.monotonic() - start)


def _work(torch: Any, factor: Any, count: int) -> None:
    product = factor
    for _ in range(count):
        product = product @ factor
    if factor.device.type == "cuda":
        torch.cuda.synchronize()


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
