"""How long merge takes, and how much memory, for many records with random ids and values.

    python -m bench.merge_scale --records 5000000 --outputs parquet
    python -m bench.merge_scale --records 2000000 --width 1280 --outputs parquet_dataset
    python -m bench.merge_scale --records 2000000 --width 1280 --order shard --jobs 2

A run is made up without computing: a manifest in random order, parts through the journal as a
worker writes them, receipts. Then `featuremill merge` runs as a process of its own, and one line
says its wall time, its peak memory and the bytes it wrote. With `--order shard`, the delivering
jobs run before it, `--jobs` of them side by side, and have a line too.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from bench.scale_watch import Watch
from featuremill.config import validate
from featuremill.store.files import digest_of, sha256_of, write_json
from featuremill.store.journal import Journal, part_schema
from featuremill.store.records import READ_ROWS, SCHEMA
from featuremill.store.results import Results, RunFile
from featuremill.store.row_order import groups_of
from featuremill.workloads import composition

RECIPE = "0" * 32
ROWS_A_SHARD = 6_000
"""Proteins of 350 residues in a shard of the default cost."""
ROWS_A_BATCH = 500
WORDS = "OS=Homo sapiens OX=9606 GN=ABC1 PE=1 SV=2"
"""What the headers of Swiss-Prot go on with, about."""
Rows = npt.NDArray[np.int64]


def main() -> None:
    """Make a run, merge it, print a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--width", type=int, default=20, help="numbers of a record's vector")
    parser.add_argument("--outputs", nargs="+", default=["parquet"])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--folder", type=Path, help="keep the run here, and use it when it is there"
    )
    parser.add_argument("--partial", action="store_true", help="featuremill merge --partial")
    parser.add_argument("--order", choices=("input", "shard"), default="input")
    parser.add_argument("--jobs", type=int, default=2, help="delivering jobs side by side (2)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Results(arguments.folder or Path(scratch))
        if not root.plan.exists():
            make(root, arguments.records, arguments.width)
        more = ["--partial"] if arguments.partial else []
        more += ["--order", arguments.order]
        if arguments.order == "shard":
            arguments.outputs = ["parquet_dataset"]
            deliver(root, arguments.records, arguments.jobs)
        measure(root, arguments.records, arguments.outputs, arguments.threads, more)


def deliver(folder: Results, num_records: int, num_jobs: int) -> None:
    """Run the delivering jobs, so many side by side, and print what they took."""
    options = {"run": "scale", "inputs": "in.fa", "workload": "composition", "device": "cpu"}
    config = validate({**options, "outputs": "parquet_dataset", "order": "shard"})
    RunFile(config=config.model_dump(mode="json")).write(folder.run)
    groups = groups_of(folder.read_plan())
    command = [sys.executable, "-m", "featuremill", "deliver", str(folder.root)]
    size, before, began = _disk(folder), _processor(), time.monotonic()
    subprocess.run([*command, "--lay-out"], check=True)
    laid_out = time.monotonic()
    with ThreadPoolExecutor(num_jobs) as pool:
        words = ([*command, str(number), "--threads", "1"] for number in range(len(groups)))
        list(pool.map(lambda each: subprocess.run(each, check=True), words))
    ended = time.monotonic()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(
        f"{num_records:,} records, {len(groups)} jobs of deliver, {num_jobs} side by side: "
        f"{laid_out - began:.1f} s to lay out, {ended - laid_out:.1f} s "
        f"({_processor() - before:.1f} s of processor), {peak:.2f} GiB at most, "
        f"{(_disk(folder) - size) / 1e9:.2f} GB of disk"
    )


def _disk(folder: Results) -> int:
    """Return the bytes of all files of the run, each once whatever names it has."""
    found = {path.stat().st_ino: path.stat() for path in folder.root.rglob("*") if path.is_file()}
    return sum(about.st_size for about in found.values())


def measure(
    folder: Results, num_records: int, outputs: list[str], threads: int, more: list[str]
) -> None:
    """Merge and print what it took."""
    command = [sys.executable, "-m", "featuremill", "merge", str(folder.root), *more]
    command += ["--threads", str(threads), "--outputs", *outputs]
    before = _processor()
    started = time.monotonic()
    with Watch(folder.store / "merge") as watch:
        subprocess.run(command, check=True)
        seconds = time.monotonic() - started
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    results = [path for path in folder.root.rglob("*") if path.is_file()]
    inside = {"store", "receipts"}
    kept = [path for path in results if not inside & set(path.relative_to(folder.root).parts)]
    written = sum(path.stat().st_size for path in kept if "manifest" not in path.name)
    print(
        f"{num_records:,} records, {threads} threads, {' '.join(outputs)}: {seconds:.1f} s "
        f"({_processor() - before:.1f} s of processor), {usage.ru_maxrss / 2**20:.2f} GiB at most, "
        f"{written / 1e9:.2f} GB of results, {watch.peak_folder_bytes / 1e9:.2f} GB beside them"
    )


def _processor() -> float:
    """Return the seconds of processor that all processes that ended have taken."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def make(folder: Results, num_records: int, width: int) -> None:
    """Write plan, manifest, parts and receipts of a run with random digests and values."""
    rng = np.random.default_rng(0)
    sha256 = np.frombuffer(rng.bytes(32 * num_records), "S32")
    order = np.argsort(sha256.view(">u8")[::4].astype(np.uint64))
    row_in_all = np.empty(num_records, np.int64)
    row_in_all[order] = np.arange(num_records)
    names = list(_shards(folder, sha256[order], width, rng))
    folder.store.mkdir(parents=True, exist_ok=True)
    _write_manifest(folder.records, sha256, row_in_all, [shard["shard"] for shard in names], rng)
    counts = {"input": num_records, "planned": num_records, "unique": num_records}
    plan: dict[str, Any] = {
        "run": "scale",
        "recipe": RECIPE,
        "workload": "composition",
        "cost_unit": "residues",
        "device": "cpu",
        "weights": None,
        "workload_version": composition.VERSION,
        "settings": {
            "workload": "composition",
            "version": composition.VERSION,
            "options": {},
            "weights_sha256": None,
        },
        "inputs": [],
        "notes": {},
        "refusals": {},
        "lengths": {"total": 350 * num_records, "longest": 600},
        "counts": {**counts, "refused": 0, "duplicate": 0},
        "records_sha256": sha256_of(folder.records),
        "shards": names,
    }
    write_json(folder.plan, plan)


def _shards(
    folder: Results, sha256: npt.NDArray[np.bytes_], width: int, rng: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """Write each shard's part and receipt; yield its entry in the plan."""
    values = pa.schema({"values": pa.list_(pa.float32(), width)})
    schema = part_schema(values)
    numbers = pa.array(rng.random(ROWS_A_BATCH * width, np.float32))
    for start in range(0, len(sha256), ROWS_A_SHARD):
        mine = sha256[start : start + ROWS_A_SHARD]
        name = digest_of([mine.tobytes()])
        path = folder.part(RECIPE, name)
        journal = Journal(path, schema, 1)
        shuffled = rng.permutation(mine)
        for first in range(0, len(mine), ROWS_A_BATCH):
            batch = shuffled[first : first + ROWS_A_BATCH]
            vectors = pa.FixedSizeListArray.from_arrays(numbers[: len(batch) * width], width)
            ok = pa.array(["ok"] * len(batch))
            digests = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(32), len(batch), [None, pa.py_buffer(batch.tobytes())]
            )
            reasons = pa.nulls(len(batch), pa.string())
            journal.commit(pa.record_batch([digests, ok, reasons, vectors], schema=schema))
        digest = journal.finish()
        path.with_suffix(".log").unlink()
        _write_receipts(folder, name, digest, len(mine))
        cost = 350 * len(mine)
        counts = {"records": len(mine), "wanted": len(mine), "cost": cost, "bytes": cost}
        yield {"shard": name, **counts}


def _write_receipts(folder: Results, shard: str, digest: str, num_rows: int) -> None:
    receipt = {
        "shard": shard,
        "recipe": RECIPE,
        "part": digest,
        "rows": num_rows,
        "ok": num_rows,
        "failed": 0,
        "cost": 350 * num_rows,
        "devices": [{"kind": "cpu", "uuid": "cpu", "name": "none"}],
        "seconds": {"total": 1.0},
        "versions": {},
    }
    write_json(folder.receipt(RECIPE, shard), receipt)
    write_json(folder.part(RECIPE, shard).with_suffix(".json"), receipt)


def _write_manifest(
    path: Path,
    sha256: npt.NDArray[np.bytes_],
    row_in_all: Rows,
    shards: list[str],
    rng: np.random.Generator,
) -> None:
    names = pa.array(shards)
    with pa.parquet.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for start in range(0, len(sha256), READ_ROWS):
            here = slice(start, start + READ_ROWS)
            row = row_in_all[here]
            count = len(row)
            shard = pa.array((row // ROWS_A_SHARD).astype(np.int32))
            same = pa.array(np.zeros(count, np.int32))
            columns = {
                "ordinal": pa.array(np.arange(start, start + count)),
                "id": pa.array([f"sp|P{n % 10**5:05d}-{n}|X_{n:x}" for n in row.tolist()]),
                "sha256": pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(32), count, [None, pa.py_buffer(sha256[here].tobytes())]
                ),
                "source": pa.DictionaryArray.from_arrays(same, pa.array(["in.fa"])),
                "status": pa.DictionaryArray.from_arrays(same, pa.array(["planned"])),
                "shard": pa.DictionaryArray.from_arrays(shard, names),
                "row": pa.array((row % ROWS_A_SHARD).astype(np.int32)),
                "length": pa.array(rng.integers(100, 600, size=count)),
                "line": pa.array(np.arange(start, start + count)),
                "description": pa.array([f"Protein {n:x} {WORDS}" for n in row.tolist()]),
            }
            arrays = [
                columns[field.name] if field.name in columns else pa.nulls(count, field.type)
                for field in SCHEMA
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA))


if __name__ == "__main__":
    main()
