"""What bounds a worker's writing: the journal, and each step of it alone, in GB/s.

`python -m bench.journal` writes batches as the worker does, of 16,896 tokens in 52 proteins, and
prints a table: by the clock, and for a second of the processor of the thread that does it (which is
what others who use the machine leave of the figures). The best of several passes counts: in a
virtual machine the first ones wait for memory that was never used before.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from featuremill.store.journal import Journal, part_schema
from featuremill.workload import compute
from featuremill.workload.arrays import layer_batch, layer_columns
from featuremill.workload.plugin_errors import refuse_answer
from featuremill.workloads.esm2.options import Options

LENGTHS = [323] * 51 + [319]
"""Residues of a batch of 16,896 tokens."""
NUM_BUFFERS = 4
"""Batches of values that take turns, as pinned memory does; together no core's cache holds them."""


class Measured(NamedTuple):
    """GB/s by the clock and of the thread's processor time."""

    by_clock: float
    by_core: float


class Batches:
    """Values of batches as they come from a device, and what the worker does with them."""

    def __init__(self, folder: Path, width: int, per_residue: bool) -> None:
        self.folder = folder
        self.options = Options(
            model="any", layers=(-1,), per_residue=per_residue, output_dtype="float16"
        )
        self.width = width
        self.schema = layer_columns(self.options, width)
        random = np.random.default_rng(1)
        shapes = [(len(LENGTHS), np.float32)] + [(sum(LENGTHS), np.float16)] * per_residue
        self.values = [
            [
                random.standard_normal((rows, width), np.float32).astype(kind)
                for rows, kind in shapes
            ]
            for _ in range(NUM_BUFFERS)
        ]
        self.sha256 = [number.to_bytes(32, "big") for number in range(len(LENGTHS))]
        self.parts = [self.checked(self.collected(number)) for number in range(NUM_BUFFERS)]
        self.num_bytes = self.parts[0].nbytes

    def collected(self, number: int) -> pa.RecordBatch:
        """Return what `collect` does."""
        values = self.values[number % NUM_BUFFERS]
        return layer_batch(values, LENGTHS, self.schema)

    def checked(self, values: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of a part."""
        refuse_answer("bench", values, len(LENGTHS), self.schema)
        return compute.rows_of_part(self.sha256, values, [None] * len(self.sha256))

    def journal(self) -> Journal:
        """Return a new journal."""
        path = self.folder / "journal.arrows"
        path.with_suffix(".log").unlink(missing_ok=True)
        return Journal(path, part_schema(self.schema), 16_896)


def timed(step: Callable[[int], object], num_batches: int, num_bytes: int) -> Measured:
    """Return how fast `step` goes through the batches, called with the number of each."""
    clock, core = time.perf_counter(), time.thread_time()
    for number in range(num_batches):
        step(number)
    clock, core = time.perf_counter() - clock, time.thread_time() - core
    return Measured(*(num_bytes * num_batches / max(took, 1e-9) / 1e9 for took in (clock, core)))


def one_pass(batches: Batches, num_batches: int) -> dict[str, Measured]:
    """Measure each step once."""
    found = {}

    def measure(name: str, step: Callable[[int], object]) -> None:
        found[name] = timed(step, num_batches, batches.num_bytes)

    contents = [memoryview(part.serialize()) for part in batches.parts]
    measure("xxh3-128", lambda n: xxhash.xxh3_128(contents[n % NUM_BUFFERS]))
    measure("xxh3-64", lambda n: xxhash.xxh3_64(contents[n % NUM_BUFFERS]))
    measure("copy (Arrow's serialize)", lambda n: batches.parts[n % NUM_BUFFERS].serialize())
    measure("collect", batches.collected)
    made = [batches.collected(number) for number in range(NUM_BUFFERS)]
    measure("check", lambda n: batches.checked(made[n % NUM_BUFFERS]))
    with (batches.folder / "written").open("wb", buffering=0) as file:
        measure("write alone", lambda n: file.write(contents[n % NUM_BUFFERS]))
    (batches.folder / "written").unlink()
    opened = batches.journal()
    measure("commit", lambda n: opened.commit(batches.parts[n % NUM_BUFFERS]))
    opened.close()
    opened = batches.journal()
    measure("all in turn", lambda n: opened.commit(batches.checked(batches.collected(n))))
    opened.close()
    return found


def table(name: str, passes: Sequence[dict[str, Measured]]) -> str:
    """Return the best of `passes` as markdown."""
    lines = [f"| {name} | GB/s | of a core |", "|---|---|---|"]
    for step in passes[0]:
        clock, core = (max(found[step][place] for found in passes) for place in range(2))
        lines.append(f"| {step} | {clock:.2f} | {core:.2f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for values per residue and one for pooled ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where to write")
    parser.add_argument("--width", type=int, default=320, help="numbers of a vector (8M: 320)")
    parser.add_argument("--batches", type=int, default=150, help="per residue; of pooled ones 10 x")
    parser.add_argument("--passes", type=int, default=7)
    chosen = parser.parse_args(arguments)
    for name, is_per_residue, factor in (("per residue", True, 1), ("pooled", False, 10)):
        with TemporaryDirectory(dir=chosen.folder) as folder:
            batches = Batches(Path(folder), chosen.width, is_per_residue)
            passes = [one_pass(batches, factor * chosen.batches) for _ in range(chosen.passes)]
        megabytes = batches.num_bytes / 1e6
        print(table(f"{name}, {megabytes:.2f} MB a batch", passes), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
