"""What a sheet of samples costs: plan of many samples beside plan of one file of the same records.

`python -m bench.samples` plans 10,000 samples of 100 proteins, and the same proteins as one file,
and says CPU seconds and the memory of the largest process of both, each time in a new process;
`--samples 3 --records 500000` does so of few large ones.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import accumulate, groupby
from pathlib import Path

from bench.record import RESULTS, code, machine
from bench.scale_proteins import write_proteins

SCRATCH = Path(__file__).parent / ".scratch"


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan both, so many times; print the numbers and write them below bench/results."""
    parser = argparse.ArgumentParser(prog="bench.samples", description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=100, help="of each sample")
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    SCRATCH.mkdir(exist_ok=True)
    found: dict[str, list[dict[str, float]]] = {"one file": [], "samples": []}
    with tempfile.TemporaryDirectory(dir=SCRATCH) as name:
        folder = Path(name)
        _write(folder, given.samples * given.records, given.records)
        for time in range(given.times):
            for kind, asked in {
                "one file": {"inputs": "all.fa"},
                "samples": {"samples": "s.tsv"},
            }.items():
                config = {"workload": "composition", "device": "cpu", **asked}
                found[kind].append(_plan(folder, f"{kind[:3]}{time}", config, given.threads))
                print(kind, found[kind][-1], flush=True)
    best = {kind: min(one["cpu_seconds"] for one in times) for kind, times in found.items()}
    content = {
        "command": ["python", "-m", "bench.samples", *sys.argv[1:]],
        "machine": machine(),
        "code": code(),
        "samples": given.samples,
        "records_of_each": given.records,
        "plans": found,
        "times_the_cpu_seconds": round(best["samples"] / best["one file"], 3),
    }
    cpu = content["machine"]["cpu"].replace(" ", "-")
    today = datetime.datetime.now(datetime.UTC)
    shape = f"{given.samples}x{given.records}"
    path = given.out / f"{today:%Y-%m-%d}-{cpu}-samples-{shape}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{content['times_the_cpu_seconds']} times the CPU seconds of one file\n{path}")
    return 0


def _write(folder: Path, num_in_all: int, num_records: int) -> None:
    """Write the proteins as one file, and as a file a sample with a sheet."""
    write_proteins(folder / "all.fa", num_in_all)
    (folder / "files").mkdir()
    with (
        (folder / "all.fa").open() as heads,
        (folder / "all.fa").open() as lines,
        (folder / "s.tsv").open("w") as sheet,
    ):
        sheet.write("sample\tfile\tsite\n")
        numbers = accumulate(line[0] == ">" for line in heads)
        lines_of = zip(numbers, lines, strict=True)
        for number, group in groupby(lines_of, lambda one: (one[0] - 1) // num_records):
            path = folder / "files" / f"{number:05d}.fa"
            path.write_text("".join(line for _, line in group))
            sheet.write(f"S{number:05d}\tfiles/{path.name}\tsite {number % 7}\n")


def _plan(folder: Path, run: str, config: dict[str, str], threads: int) -> dict[str, float]:
    asked = folder / f"{run}.yaml"
    asked.write_text(json.dumps(config))
    words = [
        "plan",
        f"results/{run}",
        "--config",
        asked.name,
        "--threads",
        str(threads),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "featuremill", *words], cwd=folder, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"plan ended with {process.returncode}")
    return {
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 2),
        "memory_mb": round(used.ru_maxrss / 1024),
    }


if __name__ == "__main__":
    raise SystemExit(main())
