"""Attention with rotary, by every tiling of our kernel and by torch's FlashAttention.

    python -m bench.attention --out attention.json     # a GPU: half a minute, a minute at most
    python -m bench.attention --rehearse               # tiny, on a CPU, by Triton's interpreter
    python -m bench.attention --adopt attention.json   # let the kernel use what was best there

A pack of 16,896 tokens, as a run has it: with the lengths of E. coli's proteins, and of 100 and
1,000 tokens each; heads of 64, 128 and 32. Only what is right is timed. FlashAttention's time is
with rotary's own pass. `--adopt` rewrites the table of the kernel's tilings from a record.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bench.clock import Clock
from bench.place import Place, Stopwatch, keep_to_one_gpu, set_matmul_precision
from bench.record import ROOT, Record
from bench.table import aligned
from featuremill.workload import spread
from featuremill.workloads.esm2 import attention, fallbacks, packing
from featuremill.workloads.esm2.kernels import reference
from featuremill.workloads.esm2.packing import Packed

BUDGET = 16_896
NUM_HEADS = 20
LENGTHS = ("E. coli", "100", "1000")
WIDTHS = (64, 128, 32)
"""The most important ones first: what time is left for is measured."""
TILES = {
    64: [
        *product([128], [64], [4, 8], [2, 3, 4]),
        *product([128], [128], [8], [2, 3]),
        *product([64], [64], [4], [2, 3, 4]),
        (64, 128, 4, 2),
    ],
    128: [
        *product([128], [64], [8], [2, 3]),
        *product([128], [128], [8], [2, 3]),
        *product([64], [64], [4], [2, 3]),
        (64, 128, 4, 2),
    ],
    32: [
        *product([128], [64], [4, 8], [2, 3]),
        *product([128], [128], [4, 8], [2, 3]),
        *product([64], [64], [4], [2, 3]),
        (64, 128, 4, 2),
    ],
}
"""Queries, keys, warps and stages of the tilings that are tried, by the width of a head."""
REHEARSED = [(128, 64, 4, 2), (64, 32, 4, 2)]
CALLS, REPEATS = 8, 5
LEFT_TO_MEASURE = 20
"""Seconds that compiling leaves at least."""
SOURCE = ROOT / "src/featuremill/workloads/esm2/kernels/triton_attention.py"
TABLE = re.compile(r"(?s)(FASTER: [^=]+ = )\{.*?\}")

Way = Callable[[Tensor, Packed, Tensor], Tensor]
"""(qkv_T3Hd that may be overwritten, pack, rotary_Pf2) → context_THd, with rotary."""


class Case(NamedTuple):
    """A pack, and what attention over it is given."""

    name: str
    pack: Packed
    qkv: Tensor
    """(T, 3, H, d)."""
    turns: Tensor
    """(P, f, 2)."""
    operations: int
    """Of the two matrix products."""

    @property
    def width(self) -> int:
        """Width of a head."""
        return self.qkv.shape[3]


def tilings(width: int, is_rehearsed: bool) -> Iterator[Any]:
    """Yield the tilings to try for heads of this width."""
    from featuremill.workloads.esm2.kernels.triton_attention import Tiling

    for sizes in REHEARSED if is_rehearsed else TILES[width]:
        yield Tiling(*sizes)


def name_of(tiling: Any) -> str:
    """Return a tiling's name in tables."""
    sizes = f"{tiling.queries} × {tiling.keys}, {tiling.warps} warps, {tiling.stages} stages"
    return f"triton {sizes}"


def lengths_of(name: str, num_tokens: int) -> list[int]:
    """Return the tokens of the sequences of a pack of at most `num_tokens`."""
    if name != "E. coli":
        return [int(name)] * (num_tokens // int(name))
    with gzip.open(Path(__file__).parent / "ecoli.fasta.gz", "rt") as file:
        records = file.read().split(">")[1:]
    lengths: list[int] = []
    for record in records:
        length = min(len("".join(record.split("\n")[1:])), 1022) + 2
        if sum(lengths) + length <= num_tokens:
            lengths.append(length)
    return lengths


def case_of(name: str, width: int, place: Place, num_tokens: int, num_heads: int) -> Case:
    """Return a pack with random numbers of about the size that they have in a network."""
    device = torch.device(place.device)
    dtype = torch.bfloat16 if place.device == "cuda" else torch.float16
    lengths = lengths_of(name, num_tokens)
    sequences = [np.full(length, 5) for length in lengths]
    pack = spread.on_device(packing.pack(sequences, num_tokens, torch.device("cuda")), device)
    generator = torch.Generator(device).manual_seed(width)
    shape = (len(pack.tokens_T), 3, num_heads, width)
    qkv_T3Hd = torch.randn(shape, generator=generator, device=device).mul_(1.5).to(dtype)
    frequencies_f = 10000 ** -(torch.arange(0, width, 2) / width)
    angles_Pf = torch.outer(torch.arange(pack.longest), frequencies_f)
    rotary_Pf2 = torch.stack((angles_Pf.cos(), angles_Pf.sin()), -1).to(device)
    squares = sum(length**2 for length in lengths)
    return Case(name, pack, qkv_T3Hd, rotary_Pf2, 4 * squares * num_heads * width)


def others(case: Case) -> dict[str, Way]:
    """Return the other ways of the product by name, each after the pass that turns, and that."""
    from featuremill.workloads.esm2 import kernels

    device, dtype = case.qkv.device, case.qkv.dtype
    first = kernels.ways(device, dtype, *case.qkv.shape[2:])[0]

    def turned(qkv_T3Hd: Tensor, pack: Packed, rotary_Pf2: Tensor) -> Tensor:
        first.rotate_(qkv_T3Hd, rotary_Pf2, pack.positions_T, None)
        return qkv_T3Hd

    def both(backend: attention.Backend, *given: Any) -> Tensor:
        return backend.attend(turned(*given), given[1])

    found = [
        each
        for each in attention.backends(device, dtype, *case.qkv.shape[2:])
        if device.type == "cpu" or each.name.startswith("varlen flash")
    ]
    return {each.name: partial(both, each) for each in found}


def exact(case: Case) -> Tensor:
    """Return context_THd in fp32 by the operations' definitions."""
    wide_T3Hd = case.qkv.float()
    reference.rotate_(wide_T3Hd, case.turns, case.pack.positions_T)
    return attention.attend_per_sequence(wide_T3Hd, case.pack, attention.with_scores)


def error(way: Way, case: Case, expected_THd: Tensor) -> tuple[float, bool]:
    """Return the relative L2 error, and whether a sequence alone has the bits that it has in the
    pack, whose padding are numbers."""
    real = case.pack.bounds[-1]
    found_THd = way(case.qkv.clone(), case.pack, case.turns)
    start, end = case.pack.bounds[-2:]
    alone = spread.on_device(packing.pack([np.full(end - start, 5)]), case.qkv.device)
    rows = torch.zeros_like(case.qkv[: len(alone.tokens_T)])
    rows[: end - start] = case.qkv[start:end]
    alone_THd = way(rows, alone, case.turns)[: end - start]
    is_same = torch.equal(alone_THd, found_THd[start:end]) and bool(found_THd.isfinite().all())
    off = found_THd[:real].float() - expected_THd[:real]
    return float(off.norm() / expected_THd[:real].norm()), is_same


def seconds(way: Way, case: Case, place: Place, calls: int, repeats: int) -> list[float]:
    """Return the device's time for one call, several times: on a GPU of calls in a graph, as
    Python may be slower than the kernel."""
    qkv_T3Hd = case.qkv.clone()

    def run() -> None:
        for _ in range(calls):
            way(qkv_T3Hd, case.pack, case.turns)

    if place.device == "cuda":
        run()
        graph = torch.cuda.CUDAGraph()
        with suppress(RuntimeError):  # an operation that no graph takes is timed as it is
            with torch.cuda.graph(graph):
                run()
            run = graph.replay
        run()
    found = []
    for _ in range(repeats):
        with Stopwatch(place) as watch:
            run()
        found.append(watch.seconds / calls)
    return found


def compile_one(width: int, tiling: Any) -> str:
    """Compile what a tiling launches, so that it is in Triton's cache; return why it cannot be."""
    from featuremill.workloads.esm2.kernels import triton_attention

    torch.set_num_threads(1)
    try:
        case = case_of("100", width, Place("gpu"), 256, NUM_HEADS)
        triton_attention.attend(case.qkv, case.pack, case.turns, tiling=tiling)
        torch.cuda.synchronize()
    except Exception as failure:  # too much shared memory, say
        return f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]}"
    return ""


def compile_all(widths: Sequence[int], clock: Clock) -> dict[tuple[int, Any], str]:
    """Compile every tiling, in as many processes as are useful; return those that fail, and why."""
    asked = [(width, tiling) for width in widths for tiling in tilings(width, False)]
    context = get_context("forkserver")
    context.set_forkserver_preload(["bench.attention"])
    processes = ProcessPoolExecutor(min(len(asked), os.cpu_count() or 1, 14), context)
    futures = {processes.submit(compile_one, *each): each for each in asked}
    failed = dict.fromkeys(asked, "not compiled in time")
    with suppress(TimeoutError):
        for future in as_completed(futures, max(1, clock.left() - LEFT_TO_MEASURE)):
            failed[futures[future]] = future.result()
    processes.shutdown(wait=False, cancel_futures=True)
    return {each: text for each, text in failed.items() if text}


def measure(
    case: Case, place: Place, failed: dict[tuple[int, Any], str], clock: Clock
) -> list[dict[str, Any]]:
    """Return a row for each way, the fastest first; those that are wrong or fail come last."""
    from featuremill.workloads.esm2.kernels import triton_attention

    is_rehearsed = place.device == "cpu"
    calls, repeats = (1, 1) if is_rehearsed else (CALLS, REPEATS)
    bound = fallbacks.BOUNDS[case.qkv.dtype]
    expected_THd = exact(case)
    ways: list[tuple[str, Any, Way]] = [(name, None, way) for name, way in others(case).items()]
    for tiling in tilings(case.width, is_rehearsed):
        if text := failed.get((case.width, tiling)):
            print(f"{name_of(tiling)}: {text}", file=sys.stderr)
            continue
        ours: Way = partial(triton_attention.attend, tiling=tiling)
        ways.append((name_of(tiling), tiling, ours))
    rows: list[dict[str, Any]] = []
    for name, tiling, way in ways:
        if clock.left() < 1:
            break
        row = {"name": name, "tiling": tiling and tiling._asdict()}
        rows.append(row)
        try:
            row["error"], row["same_bits"] = error(way, case, expected_THd)
            if row["error"] <= bound and (row["same_bits"] or not tiling):
                row["seconds"] = seconds(way, case, place, calls, repeats)
                row["median"] = statistics.median(row["seconds"])
                row["tflops"] = case.operations / row["median"] / 1e12
        except RuntimeError as failure:
            row["failed"] = str(failure).partition("\n")[0]
    return sorted(rows, key=lambda row: row.get("median", float("inf")))


def table(title: str, rows: list[dict[str, Any]]) -> str:
    """Return the rows of a case as text."""
    lines = [
        [
            row["name"],
            f"{1e6 * row['median']:.1f}" if "median" in row else row.get("failed", "wrong"),
            f"{row.get('tflops', 0):.0f}",
            f"{row.get('error', float('nan')):.1e}",
        ]
        for row in rows
    ]
    return aligned([title, "µs", "TFLOP/s", "error"], lines)


def best(cases: list[dict[str, Any]], width: int) -> dict[str, Any] | None:
    """Return the row of the tiling that is the fastest for heads of this width with E. coli's
    lengths, of those that are faster than every other way with all lengths; None if none is."""
    wanted = [case for case in cases if case["width"] == width]
    beating: list[set[str]] = []
    for case in wanted:
        timed = [row for row in case["rows"] if "median" in row and _is_here(row["tiling"])]
        least = min((row["median"] for row in timed if not row["tiling"]), default=0.0)
        beating.append({row["name"] for row in timed if row["tiling"] and row["median"] < least})
    for case in wanted:
        if case["lengths"] == LENGTHS[0]:
            rows = [row for row in case["rows"] if all(row["name"] in each for each in beating)]
            return min(rows, key=lambda row: float(row["median"]), default=None)
    return None


def _is_here(tiling: dict[str, Any] | None) -> bool:
    """Tell whether the kernel still has this: a record of 2026-11-26 has two more ways to turn."""
    return not tiling or "rotary" not in tiling or bool(tiling["rotary"] == "keys first")


def line_of(capability: Sequence[int], width: int, row: dict[str, Any]) -> str:
    """Return the line of the kernel's table for a row."""
    sizes = ", ".join(str(row["tiling"][name]) for name in ("queries", "keys", "warps", "stages"))
    return f"    ({tuple(capability)}, {width}): Tiling({sizes}),"


def adopt(content: dict[str, Any]) -> str:
    """Rewrite the kernel's table: what was best for each width that was measured. Return it."""
    lines = [
        line_of(content["capability"], width, row)
        for width in WIDTHS
        if (row := best(content["cases"], width))
    ]
    rows = "".join(f"\n{line}" for line in lines)
    text, count = TABLE.subn(
        lambda found: f"{found[1]}{{{rows}{chr(10) if rows else ''}}}", SOURCE.read_text()
    )
    assert count == 1
    SOURCE.write_text(text)
    return "\n".join(lines) or "nothing is faster than FlashAttention"


def main() -> None:
    """Measure, or adopt what was measured."""
    parser = argparse.ArgumentParser(prog="bench.attention", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--rehearse", action="store_true", help="tiny, on a CPU, by Triton's interpreter")
    add("--out", type=Path, help="the record; by default one in bench/results")
    add("--seconds", type=float, default=60, help="at most; what is left then is not measured")
    add("--adopt", type=Path, metavar="RECORD", help="write its best tilings into the kernel")
    given = parser.parse_args()
    if given.adopt:
        print(adopt(json.loads(given.adopt.read_text())))
        return
    clock, started = Clock(given.seconds / 60), time.monotonic()
    if given.rehearse:
        os.environ["TRITON_INTERPRET"] = "1"
    set_matmul_precision()
    keep_to_one_gpu()
    place = Place("cpu" if given.rehearse else "gpu")
    failed = {} if given.rehearse else compile_all(WIDTHS, clock)
    num_tokens, num_heads = (256, 2) if given.rehearse else (BUDGET, NUM_HEADS)
    record = Record(given.out, "attention", not given.rehearse, place.compute_device())
    record.content["command"] = ["python", "-m", "bench.attention", *sys.argv[1:]]
    record.content["compile_seconds"] = round(time.monotonic() - started, 1)
    if place.device == "cuda":
        record.content["capability"] = torch.cuda.get_device_capability()
    record.content["failed"] = {f"{w} {name_of(t)}": text for (w, t), text in failed.items()}
    cases = record.content["cases"] = []
    with torch.inference_mode():
        for lengths, width in product(LENGTHS, WIDTHS):
            if clock.left() < 2:
                break
            if int(lengths if lengths.isdigit() else 0) > num_tokens:
                continue
            case = case_of(lengths, width, place, num_tokens, num_heads)
            rows = measure(case, place, failed, clock)
            cases.append({"lengths": lengths, "width": width, "rows": rows})
            record.save()
            print(table(f"{lengths}, heads of {width}", rows), flush=True)
    record.content["complete"] = True
    record.content["seconds"] = round(time.monotonic() - started, 1)
    record.save()
    for width in WIDTHS:
        row = best(cases, width)
        print(f"heads of {width} should take {row['name'] if row else 'what they take'}")
    print(f"{record.path}: {record.content['seconds']} s")


if __name__ == "__main__":
    main()
