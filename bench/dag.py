"""What Snakemake itself takes for so many shards: to plan its jobs, and to hand each of them out.

`python -m bench.dag --shards 1000 5000` plans that many shards, lets Snakemake make a dry run, and
then a real one in which the extract jobs are a shell script that leaves an empty receipt: what is
left is Snakemake's own share. `--dry-only` leaves the second out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from bench.record import ROOT, machine
from bench.scale import SCRATCH
from bench.scale_proteins import write_proteins

RECORDS_A_SHARD = 4
LOOK_SECONDS = 0.2
TARGET = "results/dag/manifest.json"
STAND_IN = """#!/bin/sh
# featuremill extract RUN SHARD --recipe RECIPE … and featuremill merge RUN …, without any work
case "$1" in
extract) : > "$2/receipts/$5/$3.json" ;;
merge) cd "$2" && touch manifest.json failed.tsv failed.fa embeddings.parquet ;;
*) exit 1 ;;
esac
"""


def main(arguments: list[str] | None = None) -> int:
    """Measure each number of shards and print a JSON line for it."""
    parser = argparse.ArgumentParser(prog="bench.dag", description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--dry-only", action="store_true", help="no real run")
    given = parser.parse_args(arguments)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    print(json.dumps({"machine": machine()}))
    for num_shards in given.shards:
        with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
            print(json.dumps(measure(Path(scratch), num_shards, given.dry_only)), flush=True)
    return 0


def measure(folder: Path, num_shards: int, is_dry: bool) -> dict[str, Any]:
    """Return the seconds and the memory of Snakemake with so many shards."""
    num_residues = write_proteins(folder / "proteins.fasta", num_shards * RECORDS_A_SHARD)
    config = {
        "run": "dag",
        "inputs": "proteins.fasta",
        "workload": "composition",
        "device": "cpu",
        "outputs": "parquet",
        "shards": {"cost": num_residues // num_shards},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    _measured(folder, "featuremill", "plan", "results/dag", "--config", "config.yaml")
    found = len(json.loads((folder / "results/dag/plan.json").read_text())["shards"])
    answer = {
        "shards": found,
        "dry": _snakemake(folder, "--dry-run", "--quiet", "all", "--", TARGET),
    }
    if not is_dry:
        stand_in = folder / "bin" / "featuremill"
        stand_in.parent.mkdir()
        stand_in.write_text(STAND_IN)
        stand_in.chmod(0o755)
        answer["real"] = _snakemake(folder, "--set-threads", "extract=1", "--", TARGET)
        done = len(list((folder / "results/dag/receipts").glob("*/*.json")))
        if done != found:
            raise RuntimeError(f"only {done} of {found} jobs ran")
    return answer


def _snakemake(folder: Path, *arguments: str) -> dict[str, float]:
    return _measured(folder, "snakemake", "--cores", "2", "--snakefile", str(ROOT / "Snakefile"),
                     "--configfile", "config.yaml", *arguments)  # fmt: skip


def _measured(folder: Path, module: str, *arguments: str) -> dict[str, float]:
    """Run `python -m module`; return its seconds, seconds of processor and peak memory."""
    here = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PATH": os.pathsep.join([str(folder / "bin"), here, os.environ["PATH"]]),
    }
    log = folder / "said.txt"
    began = time.monotonic()
    with log.open("w") as said:
        command = [sys.executable, "-m", module, *arguments]
        child = subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=said)
        peak_kb, ended = 0, 0
        while not ended:
            # Not ru_maxrss, which is at least what the process had that started this one.
            peak_kb = max(peak_kb, _high_water_kb(child.pid))
            time.sleep(LOOK_SECONDS)
            ended, status, used = os.wait4(child.pid, os.WNOHANG)
    if status:
        raise RuntimeError(log.read_text()[-2000:])
    return {
        "seconds": round(time.monotonic() - began, 2),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 2),
        "peak_mb": peak_kb // 1024,
    }


def _high_water_kb(pid: int) -> int:
    """Return the most memory that the process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return int(found["VmHWM"].split()[0]) if "VmHWM" in found else 0


if __name__ == "__main__":
    sys.exit(main())
