"""How long merge takes, and how much memory, for many records with random ids and values.

    python -m bench.merge_scale --records 5000000 --outputs parquet
    python -m bench.merge_scale --records 2000000 --width 1280 --outputs parquet_dataset

A run is made up without computing: a manifest in random order, parts through the journal as a
worker writes them, receipts. Then `featuremill merge` runs as a process of its own, and one line
says its wall time, its peak memory and the bytes it wrote.
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
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from featuremill.store.files import digest_of, sha256_of, write_json
from featuremill.store.journal import Journal, part_schema
from featuremill.store.records import READ_ROWS, SCHEMA
from featuremill.store.results import Results
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
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Results(arguments.folder or Path(scratch))
        if not root.plan.exists():
            make(root, arguments.records, arguments.width)
        more = ["--partial"] if arguments.partial else []
        measure(root, arguments.records, arguments.outputs, arguments.threads, more)


def measure(
    folder: Results, num_records: int, outputs: list[str], threads: int, more: list[str]
) -> None:
    """Merge and print what it took."""
    command = [sys.executable, "-m", "featuremill", "merge", str(folder.root), *more]
    command += ["--threads", str(threads), "--outputs", *outputs]
    started = time.monotonic()
    subprocess.run(command, check=True)
    seconds = time.monotonic() - started
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = usage.ru_utime + usage.ru_stime
    results = [path for path in folder.root.rglob("*") if path.is_file()]
    inside = {"store", "receipts"}
    kept = [path for path in results if not inside & set(path.relative_to(folder.root).parts)]
    written = sum(path.stat().st_size for path in kept if "manifest" not in path.name)
    print(
        f"{num_records:,} records, {threads} threads, {' '.join(outputs)}: {seconds:.1f} s "
        f"({processor:.1f} s of processor), {usage.ru_maxrss / 2**20:.2f} GiB at most, "
        f"{written / 1e9:.2f} GB of results"
    )


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
