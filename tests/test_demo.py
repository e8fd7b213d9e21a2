"""The demo as people run it: real proteins, the bundled model, the real Snakemake."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import islice

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from Bio import SeqIO
from browser import CHROMIUM, browser
from conftest import ROOT
from report_runs import FIGURES

import featuremill
from featuremill.store import RunFolder

DATA = ["embeddings.parquet", "per-protein.h5", "embeddings.npy", "failed.tsv"]


def snakemake(folder, environment, *arguments):
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--workflow-profile", str(ROOT / "profiles" / "default"), "--cores", "2"]
    return subprocess.Popen(
        [*command, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process):
    said, _ = process.communicate(timeout=280)
    assert process.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def demo(tmp_path_factory, environment):
    """Return the folder of a finished demo run, and what was said."""
    folder = tmp_path_factory.mktemp("demo")
    shutil.copytree(ROOT / "config", folder / "config")
    environment = {**environment, "FEATUREMILL_CACHE": str(folder / "cache")}
    return folder, finish(snakemake(folder, environment))


def test_the_demo_accounts_for_every_protein(demo):
    folder, said = demo
    results = folder / "results" / "demo"
    counts = json.loads((results / "manifest.json").read_text())["counts"]
    parts = [counts[kind] for kind in ("ok", "failed", "refused", "duplicate")]
    assert counts["input"] == sum(parts) == 1000
    with (folder / "config" / "demo.fasta").open() as handle:
        parsed = [record.id for record in SeqIO.parse(handle, "fasta")]
    table = pq.read_table(results / "embeddings.parquet")
    assert table["id"].to_pylist() == parsed
    assert table.num_rows == counts["ok"] == len(set(parsed))
    with h5py.File(results / "per-protein.h5") as file:
        assert {file[name].attrs["original_id"] for name in file} == set(parsed)
        assert file.attrs["model_name"] == "mill_t6_8M"
    assert "1,000 of 1,000 records have their features" in said
    assert len(said.splitlines()) < 60, "calm output"


@pytest.mark.filterwarnings("ignore:.* are longer than")
def test_the_results_are_what_embed_gives_for_the_same_sequences(demo):
    folder, _ = demo
    ids, matrix = featuremill.load_matrix(folder / "results" / "demo")
    with (folder / "config" / "demo.fasta").open() as handle:
        chosen = list(islice(SeqIO.parse(handle, "fasta"), 20))
    dtype = json.loads((folder / "results" / "demo" / "plan.json").read_text())
    dtype = dtype["settings"]["options"]["dtype"]
    embedded = featuremill.embed([str(record.seq) for record in chosen], dtype=dtype, device="cpu")
    assert ids[:20] == [record.id for record in chosen]
    # In fp32 the bits are the same in any batch; bf16 kernels may round by the shape of the batch.
    error = np.linalg.norm(embedded - matrix[:20]) / np.linalg.norm(embedded)
    assert error < (1e-6 if dtype == "fp32" else 2e-3)


def test_the_report_goes_into_snakemakes_own(demo, environment):
    folder, _ = demo
    finish(snakemake(folder, environment, "--report", "report.html"))
    page = (folder / "report.html").read_text()
    for figure in sorted(FIGURES):
        assert figure in page


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH")
def test_both_reports_open_in_a_browser_without_a_network(demo, tmp_path, environment):
    folder, _ = demo
    report = folder / "results" / "demo" / "report.html"
    assert report.stat().st_size < 5e6
    finish(snakemake(folder, environment, "--report", "snakemake.html"))
    with browser(tmp_path / "profile") as tab:
        for width in (1200, 390):
            assert tab.open_drawn(report, width=width) >= 6
            assert tab.value("document.documentElement.scrollWidth") <= width
        assert tab.console == tab.requests == []
        tab.open(folder / "snakemake.html", width=1200)
        assert "Figures" in tab.wait("document.body.innerText")
        assert tab.requests == []
        assert not [said for said in tab.console if "error" in said.lower()]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["featuremill.worker", "featuremill extract", "snakemake"])
def test_kill_9_in_mid_shard_changes_no_byte_of_the_results(demo, tmp_path, environment, victim):
    whole = RunFolder(demo[0] / "results" / "demo").root
    shutil.copytree(ROOT / "config", tmp_path / "config")
    process = snakemake(tmp_path, environment)
    store = tmp_path / "results" / "demo" / "store"
    deadline = time.monotonic() + 120
    while not any(log.read_text().count("commit") >= 3 for log in store.glob("journals/*/*.log")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    found = subprocess.run(["pgrep", "-f", victim], capture_output=True, text=True, check=True)
    ours = [pid for pid in map(int, found.stdout.split()) if os.getpgid(pid) == process.pid]
    assert ours
    for pid in ours:
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=280)
    said = finish(snakemake(tmp_path, environment))
    results = tmp_path / "results" / "demo"
    for name in DATA:
        assert (results / name).read_bytes() == (whole / name).read_bytes(), name
    receipts = json.loads((results / "manifest.json").read_text())["receipts"]
    if victim != "featuremill.worker":  # whose supervisor goes on within the same job
        assert "batches resumed" in said
    assert sum(receipt["resumed_batches"] for receipt in receipts) >= 3
    assert all(receipt["failed"] == 0 for receipt in receipts)
