"""A rehearsal at scale: how long plan, extract and merge take for N records, in what memory.

`python -m bench.scale --records 50000 500000` makes that many distinct proteins of real ones and
computes their composition, which hardly costs anything: what is left is what featuremill itself
does for each record. `--shards 1000` cuts every input into so many shards, to see what a job costs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from bench.record import RESULTS, ROOT, code, machine, versions
from bench.scale_proteins import write_proteins
from bench.scale_table import markdown
from bench.scale_watch import Watch, bytes_in
from featuremill.store.results import Results

SCRATCH = Path(__file__).parent / ".scratch"
CORES = 2


def main(arguments: list[str] | None = None) -> int:
    """Rehearse each number of records; return 1 when one of them fails."""
    given = _parser().parse_args(arguments)
    now = datetime.datetime.now(datetime.UTC)
    content: dict[str, Any] = {
        "version": 1,
        "started": now.isoformat(timespec="seconds"),
        "command": ["python", "-m", "bench.scale", *sys.argv[1:]],
        "machine": machine(),
        "code": code(),
        "versions": versions(),
        "rehearsals": [],
    }
    path = given.out / f"{now:%Y-%m-%d-%H%M%S}-scale.json"
    given.out.mkdir(parents=True, exist_ok=True)
    given.scratch.mkdir(parents=True, exist_ok=True)
    for num_records in given.records:
        with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
            found = rehearse(Path(scratch), num_records, given)
        content["rehearsals"].append(found)
        path.write_text(json.dumps(content, indent=1) + "\n")
    print(markdown(content))
    print(f"\n{path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.scale", description=__doc__)
    add = parser.add_argument
    add("--records", type=int, nargs="+", default=[50_000, 500_000], help="how many to rehearse")
    add("--shards", type=int, help="cut each input into so many shards (10 million residues each)")
    add("--plan-only", action="store_true", help="neither extract nor merge")
    add("--outputs", nargs="+", default=["parquet"], help="what merge writes (parquet)")
    add("--threads", type=int, default=CORES, help=f"threads of plan ({CORES})")
    add("--cores", type=int, default=CORES, help=f"cores of snakemake ({CORES})")
    add("--out", type=Path, default=RESULTS, help="folder of the JSON to write (bench/results)")
    add("--scratch", type=Path, default=SCRATCH, help="folder for inputs and runs, removed after")
    return parser


def rehearse(folder: Path, num_records: int, given: argparse.Namespace) -> dict[str, Any]:
    """Plan, extract and merge `num_records` in the empty `folder`; return what that took."""
    began = time.monotonic()
    num_residues = write_proteins(folder / "proteins.fasta", num_records)
    made = time.monotonic() - began
    cost = 10_000_000 if given.shards is None else max(1, num_residues // given.shards)
    config = {
        "run": "scale",
        "inputs": "proteins.fasta",
        "workload": "composition",
        "device": "cpu",
        "shards": {"cost": cost},
        "outputs": given.outputs,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    run = Results(folder / "results" / "scale")
    with Watch(run.store / "spool") as watch:
        _call(folder, "featuremill", "plan", str(run.root.relative_to(folder)),
              "--config", "config.yaml", "--threads", str(given.threads))  # fmt: skip
    plan = json.loads(run.plan.read_text())
    if plan["counts"]["unique"] != num_records:
        raise RuntimeError(f"records got lost: {plan['counts']}")
    found: dict[str, Any] = {
        "records": num_records,
        "residues": num_residues,
        "shards": len(plan["shards"]),
        "making_seconds": round(made, 2),
        "stages": {"plan": watch.of("plan")},
        "bytes": {"spool": watch.peak_folder_bytes},
    }
    if not given.plan_only:
        _extract_and_merge(folder, run, plan, given.cores, found)
    found["bytes"] |= _bytes(folder, run)
    return found


def _extract_and_merge(
    folder: Path, run: Results, plan: dict[str, Any], cores: int, found: dict[str, Any]
) -> None:
    """Do the rest as people do, and add to `found` what that took."""
    began = time.monotonic()
    with Watch(run.store / "journals") as watch:
        _call(folder, "snakemake", "--cores", str(cores), "--snakefile", str(ROOT / "Snakefile"),
              "--configfile", "config.yaml", "--set-threads", "extract=1", "--",
              "results/scale/manifest.json")  # fmt: skip
    took = time.monotonic() - began
    if any(job.verb == "plan" for job in watch.jobs.values()):
        raise RuntimeError("snakemake planned again")
    counts = json.loads((run.root / "manifest.json").read_text())["counts"]
    if counts["ok"] != found["records"]:
        raise RuntimeError(f"records got lost: {counts}")
    found["stages"] |= {verb: watch.of(verb) for verb in ("extract", "merge")}
    found["snakemake"] = watch.of("snakemake") | {"cores": cores, "wall_seconds": round(took, 2)}
    found["receipts_seconds"] = _receipts_seconds(run, plan)


def _call(folder: Path, module: str, *arguments: str) -> None:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "FEATUREMILL_QUIET": "1"},
        check=True,
    )


def _receipts_seconds(run: Results, plan: dict[str, Any]) -> float:
    """Return the sum of what the receipts say that extraction took."""
    receipts = (run.receipt(plan["recipe"], shard["shard"]) for shard in plan["shards"])
    seconds = [float(json.loads(path.read_text())["seconds"]["total"]) for path in receipts]
    return round(sum(seconds), 2)


def _bytes(folder: Path, run: Results) -> dict[str, int]:
    """Return what stands on the disk at the end."""
    results = [path for path in run.root.glob("*") if path.is_file()]
    return {
        "input": (folder / "proteins.fasta").stat().st_size,
        "shards": bytes_in(run.store / "shards"),
        "parts": bytes_in(run.store / "parts"),
        **{path.name: path.stat().st_size for path in results},
    }


if __name__ == "__main__":
    sys.exit(main())
