"""bench: a smoke run through the real command line, and the gate that silences wrong engines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PEERS = {
    "fair-esm fp32",
    "fair-esm autocast bf16",
    "transformers sdpa fp32",
    "transformers sdpa bf16",
}


def bench(environment, out, *arguments):
    """Run `python -m bench.run --quick …` as people do, from the root of the project."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "bench.run",
            "--quick",
            "--out",
            str(out),
            *arguments,
            "--scratch",
            str(out.parent),
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_a_quick_run_judges_times_and_records_every_engine(environment, tmp_path):
    done = bench(environment, tmp_path / "quick.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "quick.json").read_text())
    assert found["complete"] and not found["left_out"]
    assert found["data"]["proteins"] == 400 and found["data"]["file"] == "ecoli.fasta.gz"
    assert {"machine", "code", "versions", "command", "started"} <= found.keys()

    stage = found["stages"]["tiny"]
    judged = {verdict["engine"] for verdict in stage["gate"]}
    assert {"featuremill fp32", *PEERS} <= judged
    assert not any(verdict["failures"] for verdict in stage["gate"])
    assert [missing["name"] for missing in stage["missing"]][-1:] == ["FAESM"]
    assert set(stage["load_seconds"]) == judged

    assert set(found["measured"]) == {
        "compare tiny mean",
        "compare tiny per_residue",
        "same_bits tiny",
    }
    for output in ("mean", "per_residue"):
        rows = found["measured"][f"compare tiny {output}"]["rows"]
        assert {row["name"] for row in rows} >= judged | {"GEMMs alone fp32"}
        for row in rows:
            assert len(row["seconds"]) == 1 and row["range"][0] <= row["tokens_per_second"]
            assert row["lengths"]["proteins"] and row["gflops_per_token"]
        for name in judged:
            assert name in done.stdout


def test_a_wrong_engine_fails_the_gate_and_no_speed_is_shown(environment, tmp_path):
    out = tmp_path / "spoiled.json"
    done = bench(environment, out, "--spoil")
    assert done.returncode == 1
    assert "the gate failed, so no speed is shown. tiny featuremill fp32" in done.stderr
    assert "outside" in done.stdout and "tokens/s" not in done.stdout
    found = json.loads(out.read_text())
    assert found["measured"] == {} and "gate_failed" in found and not found["complete"]
    assert "seconds" not in json.dumps(found["stages"]["tiny"]["gate"])


def test_each_step_of_writing_is_measured(environment, tmp_path):
    arguments = ["--folder", str(tmp_path), "--width", "32", "--batches", "2", "--passes", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.journal", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    steps = [name.removeprefix("| ") for name, _, _ in rows]
    each = ["write alone", "commit", "all in turn"]
    assert [step for step in steps if step in each] == 2 * each
    assert "per residue, 1.08 MB a batch" in steps and "pooled, 0.01 MB a batch" in steps
    speeds = [float(told.rstrip(" |")) for _, *both in rows if "GB/s" not in both for told in both]
    assert len(speeds) == 2 * 2 * 8 and min(speeds) >= 0
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_every_part_that_a_cpu_has(environment, tmp_path):
    parts = "compare,same_bits,start_up,peak_memory"
    done = bench(environment, tmp_path / "all.json", "--parts", parts)
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "all.json").read_text())["measured"]
    assert 0 < measured["start_up tiny"]["start_up_seconds"] < 60
    engines = {row["name"]: row["peak_rss_mb"] for row in measured["peak_memory tiny"]["rows"]}
    assert engines.keys() >= PEERS and min(engines.values()) > 50


def test_without_time_the_last_steps_are_left_out(environment, tmp_path):
    done = bench(environment, tmp_path / "late.json", "--minutes", "0")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "late.json").read_text())
    assert found["left_out"] == ["compare tiny mean", "compare tiny per_residue", "same_bits tiny"]
