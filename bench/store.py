"""What a store costs and saves: plan with and without one, and an index of very many payloads.

`python -m bench.store --records 10000000` writes that many distinct peptides and computes the
composition of nine tenths of them into a store. Then it plans all of them without the store and
with it, computes the last tenth, and merges. `--index 100000000` indexes so many random digests in
parts of 100,000 and looks up as many, of which nine tenths are there. `--bucket 1000000000` joins
two levels of one bucket, a 256th, of an index of so many, and looks up all that it has. Seconds are
those of the processor, of a process and of what it started.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from bench.record import RESULTS, ROOT, code, machine, versions
from bench.scale_watch import Watch
from featuremill.store import shared_index
from featuremill.store.journal import part_schema
from featuremill.store.results import Results
from featuremill.store.shared import Shelf, own_folder

SCRATCH = Path(__file__).parent / ".scratch"
PEPTIDE = 30
ROWS_A_PART = 100_000
RECIPE = "0" * 32


def main(arguments: list[str] | None = None) -> int:
    """Measure what is asked for, and write it down."""
    parser = argparse.ArgumentParser(prog="bench.store", description=__doc__)
    add = parser.add_argument
    add("--records", type=int, default=0, help="how many to plan, compute and merge")
    add("--index", type=int, default=0, help="how many to index and look up")
    add("--bucket", type=int, default=0, help="of how many an index is, one bucket of which to try")
    add("--shards", type=int, default=60, help="how many the records are cut into")
    add("--out", type=Path, default=RESULTS, help="folder of the JSON to write (bench/results)")
    add("--scratch", type=Path, default=SCRATCH, help="folder for inputs and runs, removed after")
    given = parser.parse_args(arguments)
    now = datetime.datetime.now(datetime.UTC)
    content: dict[str, Any] = {
        "version": 1,
        "started": now.isoformat(timespec="seconds"),
        "command": ["python", "-m", "bench.store", *sys.argv[1:]],
        "machine": machine(),
        "code": code(),
        "versions": versions(),
    }
    given.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        if given.records:
            content["runs"] = runs(Path(scratch), given.records, given.shards)
        if given.index:
            content["index"] = index(Path(scratch), given.index)
    if given.bucket:
        content["bucket"] = {"payloads": given.bucket, **_child("bucket", [str(given.bucket)])}
    path = given.out / f"{now:%Y-%m-%d-%H%M%S}-store.json"
    given.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    found = {key: content[key] for key in ("runs", "index", "bucket") if key in content}
    print(json.dumps(found, indent=1))
    print(path)
    return 0


def runs(folder: Path, num_records: int, num_shards: int) -> dict[str, Any]:
    """Return what planning, computing and merging took, with a store and without."""
    most = num_records * 9 // 10
    _write_peptides(folder / "most.fa", most)
    _write_peptides(folder / "all.fa", num_records)
    found: dict[str, Any] = {"records": num_records, "in_the_store": most}
    cost = num_records * PEPTIDE // num_shards
    for name, input, store in (
        ("fills the store", "most.fa", "shelf"),
        ("without", "all.fa", None),
        ("with", "all.fa", "shelf"),
    ):
        run = name.split()[0]
        config: dict[str, Any] = {
            "run": run,
            "inputs": input,
            "workload": "composition",
            "device": "cpu",
        }
        config |= {"shards": {"cost": cost}, "outputs": "npy"} | ({"store": store} if store else {})
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        results = Results(folder / "results" / run)
        with Watch(results.store) as watch:
            _type(folder, "plan", results.root, "--config", "config.yaml")
        found[name] = {"plan": watch.of("plan")}
        plan = results.read_plan()
        found[name] |= {"shards": len(plan.shards), "taken": sum(p.wanted for p in plan.taken)}
        if name == "without":
            continue
        with Watch(results.store) as watch:
            for shard in plan.shards:
                _type(folder, "extract", results.root, shard.shard)
            if name == "with":
                _type(folder, "merge", results.root, "--outputs", "npy")
        found[name] |= {"extract": watch.of("extract")}
    found["with"]["merge"] = watch.of("merge")
    found["with"]["counts"] = results.read_delivery().counts.as_json()
    return found


def _write_peptides(path: Path, count: int) -> None:
    """Write the first `count` peptides."""
    letters = np.frombuffer(b"ACDEFGHIKLMNPQRS", np.uint8)
    with path.open("wb") as file:
        for start in range(0, count, 100_000):
            number = np.arange(start, min(start + 100_000, count), dtype=np.uint64)
            mixed = number * np.uint64(0x9E3779B97F4A7C15)
            digits = np.concatenate([number.view(np.uint8), mixed.view(np.uint8)])
            digits = digits.reshape(2, -1, 8).transpose(1, 0, 2).reshape(-1, 16)
            both = np.concatenate([digits >> 4, digits & 15], axis=1)[:, :PEPTIDE]
            for one, text in zip(number.tolist(), letters[both], strict=True):
                file.write(b">p%d\n%s\n" % (one, text.tobytes()))


def _type(folder: Path, verb: str, run: Path, *words: str) -> None:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-m", "featuremill", verb, str(run.relative_to(folder)), *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "FEATUREMILL_QUIET": "1"},
        check=True,
    )


def index(folder: Path, num_payloads: int) -> dict[str, Any]:
    """Return what it takes to index so many payloads and to look up as many."""
    store = folder / "large"
    shelf = Shelf(own_folder(store) / RECIPE)
    shelf.folder.mkdir(parents=True)
    num_parts = -(-num_payloads // ROWS_A_PART)
    for number in range(num_parts):
        _write_part(shelf.folder / f"{number:032x}.arrows", number)
    steps = {}
    for name, arguments in (
        ("build", [str(store)]),
        ("again", [str(store)]),
        ("look up", [str(store), str(num_parts)]),
    ):
        steps[name] = _child("step", arguments)
    size = sum(path.stat().st_size for path in shelf.levels.iterdir())
    return {"payloads": num_payloads, "parts": num_parts, "index_bytes": size, **steps}


def _child(function: str, arguments: list[str]) -> Any:
    """Return what a function of this module prints in a process of its own."""
    words = f"import sys; from bench import store; store.{function}(*sys.argv[1:])"
    command = [sys.executable, "-c", words, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def bucket(num_payloads: str) -> None:
    """Join two levels of a bucket, and look up all that they have; print what that took."""
    count = int(num_payloads) // shared_index.NUM_BUCKETS
    keys = np.sort(np.frombuffer(np.random.default_rng(0).bytes(32 * count), "S32"))
    number = np.arange(count, dtype=np.int32)
    is_new = number % 5 == 0
    levels = [(keys[which], number[which], number[which]) for which in (is_new, ~is_new)]
    start = time.process_time()
    together = shared_index.joined(levels)
    joined = time.process_time()
    where, _, _ = shared_index.find(keys, together)
    told = {"join": joined - start, "find": time.process_time() - joined}
    told = {f"{name}_cpu_seconds": round(value, 2) for name, value in told.items()}
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"entries": count, "found": len(where), **told, "peak_mb": peak_mb}))


def step(store: str, num_parts: str = "") -> None:
    """Build the index, or look up the payloads; print what that took."""
    told: dict[str, Any] = {}
    if num_parts:
        shelf = Shelf(own_folder(Path(store)) / RECIPE)
        levels = shared_index.levels_of(shelf, Path(store) / "scratch")
        told["levels"] = len(levels)
        told["found"] = sum(map(len, _looked_up(levels, int(num_parts))))
    else:
        shared_index.keep_index(Path(store), RECIPE)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    told["cpu_seconds"] = round(usage.ru_utime + usage.ru_stime, 1)
    told["peak_mb"] = usage.ru_maxrss // 1024
    print(json.dumps(told))


def _looked_up(levels: list[shared_index.Level], num_parts: int) -> Any:
    """Yield what is found of each bucket: the digests of all parts but for a tenth of others."""
    for bucket in range(shared_index.NUM_BUCKETS):
        keys, _, _ = shared_index.joined([level.bucket(bucket) for level in levels])
        others = np.ascontiguousarray(keys).view(np.uint8).reshape(-1, 32).copy()
        others[::10, 31] ^= 1  # not there
        wanted = others.view("S32").ravel()
        for level in levels:
            where, part, _ = shared_index.find(wanted, level.bucket(bucket))
            assert (part < num_parts).all()
            yield where


def _write_part(path: Path, number: int) -> None:
    random = np.random.default_rng(number)
    digests = pa.py_buffer(random.bytes(32 * ROWS_A_PART))
    schema = part_schema(pa.schema({"vector": pa.list_(pa.float32(), 1)}))
    columns = [
        pa.Array.from_buffers(pa.binary(32), ROWS_A_PART, [None, digests]),
        pa.repeat("ok", ROWS_A_PART),
        *(pa.nulls(ROWS_A_PART, field.type) for field in list(schema)[2:]),
    ]
    with pa.ipc.new_stream(str(path), schema) as file:
        file.write_batch(pa.record_batch(columns, schema=schema))


if __name__ == "__main__":
    sys.exit(main())
