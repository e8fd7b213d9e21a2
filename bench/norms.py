"""LayerNorm of the residual stream on a GPU, by each way to divide its rows.

    python -m bench.norms --out norms.json      # five seconds

16,896 rows in fp32, normed to bf16, of the widths of 650M and 3B, with and without a running sum of
biases. What is moved in memory is a row read and half a row written. The kernel's own tile stands
in `triton_kernels.TILE_OF_NORM`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bench.place import Place, Stopwatch
from bench.table import aligned
from featuremill.workloads.esm2.kernels import reference

NUM_ROWS = 16_896
WIDTHS = (1280, 2560)
ELEMENTS_PER_WARP = (256, 512, 1024, 2048)
CALLS, REPEATS = 20, 5


def measure(width: int, has_running: bool) -> list[dict[str, Any]]:
    """Return a row for each tile, the fastest first; those that are wrong have no time."""
    from featuremill.workloads.esm2.kernels import triton_kernels as ours

    # Two streams that take turns are in no cache.
    streams = torch.randn(2, NUM_ROWS, width, device="cuda")
    weight, bias, running = torch.randn(3, width, device="cuda")
    given = (running if has_running else None, weight, bias, torch.bfloat16)
    expected = reference.norm(streams[0], *given).float()
    rows = []
    for sizes in product(ELEMENTS_PER_WARP, (False, True)):
        tile = ours.Tile(*sizes)
        off = (ours.norm(streams[0], *given, tile).float() - expected).norm() / expected.norm()
        row: dict[str, Any] = {"tile": tile._asdict(), "error": float(off)}
        rows.append(row)
        if row["error"] > 1e-3:
            continue
        found = []
        for _ in range(REPEATS):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for call in range(CALLS):
                    ours.norm(streams[call % 2], *given, tile)
            graph.replay()
            with Stopwatch(Place("gpu")) as watch:
                graph.replay()
            found.append(watch.seconds / CALLS)
        row["seconds"] = statistics.median(found)
        row["terabytes_per_second"] = 6 * NUM_ROWS * width / row["seconds"] / 1e12
    return sorted(rows, key=lambda row: float(row.get("seconds", "inf")))


def main() -> None:
    """Print a table for each width, and write the record."""
    parser = argparse.ArgumentParser(prog="bench.norms", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = []
    for width, has_running in product(WIDTHS, (True, False)):
        with torch.inference_mode():
            rows = measure(width, has_running)
        found.append({"width": width, "running": has_running, "rows": rows})
        if given.out:
            given.out.write_text(json.dumps(found, indent=1) + "\n")
        lines = [
            [
                f"{row['tile']['elements_per_warp']} a warp",
                "loads first" if row["tile"]["loads_first"] else "",
                f"{1e6 * row.get('seconds', float('nan')):.1f}",
                f"{row.get('terabytes_per_second', 0):.2f}",
            ]
            for row in rows
        ]
        title = f"width {width}{', running sum' if has_running else ''}"
        print(aligned([title, "", "µs", "TB/s"], lines), flush=True)


if __name__ == "__main__":
    main()
