"""How long an exact search takes, and how much memory, among many random vectors.

    export OPENBLAS_NUM_THREADS=1            # as `featuremill search` has it
    python -m bench.search --records 500000 --width 320
    python -m bench.search --records 500000 --width 1280 --queries 1 16 100
    python -m bench.search --records 500000 --outputs parquet

Results are made up (random vectors, ids and descriptions) by the writers that merge has; then
`featuremill.search` opens them and looks for records of theirs, several times. The nearest are
compared with what NumPy finds by itself in float64.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import featuremill
from featuremill.features.nearest import METRICS, Metric
from featuremill.store.delivery import Accounts, Delivery, Written
from featuremill.store.formats import bytes_of, digest_of_result, files
from featuremill.store.plan import Counts, Lengths, Settings
from featuremill.workload.outputs import Target, open_writer

ROWS_A_BLOCK = 50_000
PASSES = 3


def main() -> None:
    """Make the results, search them, print a line for each number of queries."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--queries", type=int, nargs="*", default=[1, 16, 100])
    parser.add_argument("--outputs", nargs="*", default=["parquet", "npy"])
    parser.add_argument("--metric", choices=METRICS, default="cosine")
    parser.add_argument("--folder", type=Path, help="keep the results there, or find them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = arguments.folder or Path(scratch)
        if not (root / "manifest.json").exists():
            make(root, arguments.records, arguments.width, arguments.outputs)
        for number in arguments.queries:
            measure(root, number, arguments.metric)


def make(root: Path, num_records: int, width: int, outputs: list[str]) -> None:
    """Write results of `num_records` random vectors."""
    root.mkdir(parents=True, exist_ok=True)
    values = pa.schema({"values": pa.list_(pa.float32(), width)})
    paths = {output: root / files()[output] for output in outputs}
    writers = [open_writer(name, Target(paths[name], values, num_records, {})) for name in outputs]
    rng = np.random.default_rng(0)
    for start in range(0, num_records, ROWS_A_BLOCK):
        count = min(ROWS_A_BLOCK, num_records - start)
        numbers = pa.array(rng.standard_normal(count * width, np.float32))
        block = {
            "id": [f"sp|A{row:09d}|NAME{row}_HUMAN" for row in range(start, start + count)],
            "description": [f"a protein that nobody has seen, number {n}" for n in range(count)],
            "length": rng.integers(50, 1000, count),
            "sha256": pa.array([rng.bytes(32) for _ in range(count)], pa.binary(32)),
            "sample": [""] * count,
            "values": pa.FixedSizeListArray.from_arrays(numbers, width),
        }
        for writer in writers:
            writer.write(pa.table(block))
    for writer in writers:
        writer.close()
    counts = {"input": num_records, "refused": 0, "duplicate": 0}
    delivery = Delivery(
        run=root.name,
        recipe="0" * 32,
        settings=Settings(workload="none", version="1", options={}, weights_sha256=None),
        inputs=[],
        plan=Counts(planned=num_records, unique=num_records, **counts),
        lengths=Lengths(total=0, longest=0),
        counts=Accounts(ok=num_records, failed=0, **counts),
        outputs={
            path.name: Written(bytes=bytes_of(path), sha256=digest_of_result(path))
            for path in paths.values()
        },
        parts={},
    )
    delivery.write(root / "manifest.json")


def measure(root: Path, num_queries: int, metric: Metric) -> None:
    """Search for stored records, and say what it took; the first pass may read from the disk."""
    rng = np.random.default_rng(num_queries)
    ids, matrix = featuremill.load_matrix(root)
    rows = rng.choice(len(ids), num_queries, replace=False)
    asked = [ids[row] for row in rows]
    seconds, processor = [], []
    for _ in range(PASSES):
        started, worked = time.monotonic(), time.process_time()
        found = featuremill.search(root, asked, metric=metric)
        seconds.append(time.monotonic() - started)
        processor.append(time.process_time() - worked)
    expected = brute_force(matrix, int(rows[0]), metric)
    nearest = found[found["query"] == asked[0]]["id"].tolist()
    assert nearest == [ids[row] for row in expected], (nearest, expected)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"{len(ids):,} x {matrix.shape[1]:,} {matrix.dtype}, {metric}, {num_queries:,} queries: "
        f"first {seconds[0]:.2f} s, best {min(seconds):.2f} s ({min(processor):.2f} s of "
        f"processor), {1000 * min(seconds) / num_queries:.1f} ms a query; "
        f"{usage.ru_maxrss / 2**20:.2f} GiB at most, mapped pages included; "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def brute_force(matrix: npt.NDArray[np.float32], row: int, metric: str) -> list[int]:
    """Return the ten rows nearest to `row`, by NumPy in float64 alone."""
    query = matrix[row].astype(np.float64)
    scores = np.empty(len(matrix))
    for start in range(0, len(matrix), ROWS_A_BLOCK):
        block = matrix[start : start + ROWS_A_BLOCK].astype(np.float64)
        if metric == "euclidean":
            numbers = -np.linalg.norm(block - query, axis=1)
        else:
            numbers = block @ query
            if metric == "cosine":
                numbers /= np.linalg.norm(block, axis=1) * np.linalg.norm(query)
        scores[start : start + len(block)] = numbers
    found: list[int] = np.argsort(-scores, kind="stable")[:10].tolist()
    return found


if __name__ == "__main__":
    main()
