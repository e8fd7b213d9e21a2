"""What `featuremill estimate` says, held against real runs of Snakemake on this CPU.

`python -m bench.estimate --slots 1 2` computes a small run first, whose parts tell how fast a job
is and how long one takes to start; then it asks for an estimate of a larger one, computes that too,
and prints both: for the whole run, and for its shards alone (from the first job's start to the last
one's end, which other work on the machine changes less). The load stands in each line.
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

from bench.record import ROOT
from bench.scale import SCRATCH
from bench.scale_proteins import write_proteins
from featuremill.base.this_process import num_cores
from featuremill.base.words import parsed

SMALL = 8
"""The first run is so many times smaller."""
SHARDS_A_SLOT = {"small": 1, "large": 2}


def main(arguments: list[str] | None = None) -> int:
    """Hold an estimate for each number of slots against a run; print a JSON line for each."""
    parser = argparse.ArgumentParser(prog="bench.estimate", description=__doc__)
    add = parser.add_argument
    add("--slots", type=int, nargs="+", default=[1, 2], help="jobs side by side")
    add("--records", type=int, default=1000, help="proteins of the larger run")
    add("--workload", default="esm2")
    add("--options", type=json.loads, default={}, help="of the workload, as JSON")
    given = parser.parse_args(arguments)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    for slots in given.slots:
        with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
            found = compare(Path(scratch), slots, given)
        print(json.dumps(found), flush=True)
    return 0


def compare(folder: Path, slots: int, given: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds that were estimated for a whole run, and those it took."""
    for name, count, seed in (("small", given.records // SMALL, 1), ("large", given.records, 2)):
        num_residues = write_proteins(folder / f"{name}.fasta", count, seed)
        config = {
            "run": name,
            "inputs": f"{name}.fasta",
            "workload": given.workload,
            "options": given.options,
            "device": "cpu",
            "shards": {"cost": num_residues // (SHARDS_A_SLOT[name] * max(given.slots))},
            "outputs": "parquet",
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    _run(folder, slots, "small")
    asked = ("large.yaml", "--cpu-slots", str(slots), "--json")
    said = _call(folder, "featuremill", "estimate", *asked)
    (row,) = json.loads(said)["rows"]
    load = os.getloadavg()[0]
    seconds = _run(folder, slots, "large")
    return {
        "slots": slots,
        "whole": _beside(row["hours"], seconds),
        "shards": _beside(row["extract_hours"], _seconds_of_shards(folder / "results" / "large")),
        "speed": row["speed"],
        "startup_seconds": round(row["speed"]["startup_seconds"], 2),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
    }


def _beside(hours: float, seconds: float) -> dict[str, float]:
    """Return what was estimated beside what it took, in seconds."""
    estimated = 3600 * hours
    return {
        "estimated": round(estimated, 1),
        "seconds": round(seconds, 1),
        "error": round(estimated / seconds - 1, 3),
    }


def _seconds_of_shards(run: Path) -> float:
    """Return the time from the first job's start to the last one's end, by the receipts."""
    receipts = [json.loads(path.read_text()) for path in run.glob("receipts/*/*.json")]
    ends = [parsed(receipt["finished"]) for receipt in receipts]
    return max(ends) - min(parsed(receipt["started"]) for receipt in receipts)


def _run(folder: Path, slots: int, name: str) -> float:
    """Compute a whole run; return its seconds."""
    began = time.monotonic()
    _call(
        folder,
        "snakemake",
        *("--snakefile", str(ROOT / "Snakefile"), "--configfile", f"{name}.yaml"),
        *("--workflow-profile", str(ROOT / "profiles" / "default")),
        *("--cores", str(num_cores()), "--set-threads", f"extract={max(1, num_cores() // slots)}"),
    )
    return time.monotonic() - began


def _call(folder: Path, module: str, *arguments: str) -> str:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
