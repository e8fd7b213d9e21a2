"""The demo as people run it: real proteins, the bundled model, the real Snakemake.

All of it takes a minute of two cores. Planned is all of it; computed is every tenth protein, but
where something is killed in the middle.
"""

import json
import os
import shutil
import signal
import subprocess
from itertools import islice

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from Bio import SeqIO
from browser import browser, needs_chromium
from conftest import ROOT
from programs import Desk, ran, wait_for

import featuremill
from featuremill.store.results import Results

DATA = ["embeddings.parquet", "per-protein.h5", "embeddings.npy", "failed.tsv"]
PROFILE = ROOT / "profiles" / "default"
SNAKEMAKE = ("snakemake", "--snakefile", ROOT / "Snakefile", "--workflow-profile", PROFILE)
SNAKEMAKE += ("--cores", "2")
WHOLE_SECONDS = 280


def proteins(path):
    with path.open() as handle:
        return list(SeqIO.parse(handle, "fasta"))


class Demo(Desk):
    """A folder with the demo's config and some of its proteins."""

    def __init__(self, folder, environment, every=1):
        super().__init__(folder, {**environment, "FEATUREMILL_CACHE": str(folder / "cache")})
        self.results = Results(folder / "results" / "demo").root
        shutil.copytree(ROOT / "config", folder / "config")
        self.fasta = folder / "config" / "demo.fasta"
        if every > 1:
            SeqIO.write(proteins(self.fasta)[::every], self.fasta, "fasta")
            config = folder / "config" / "config.yaml"
            text = config.read_text()
            assert "cost: 100_000" in text
            config.write_text(text.replace("cost: 100_000", f"cost: {200_000 // every}"))

    def run(self):
        """Compute all of it; return what was said."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with self.start(*SNAKEMAKE, **streams, start_new_session=True) as process:
            said, _ = process.communicate(timeout=WHOLE_SECONDS)
        assert process.returncode == 0, said
        return said

    def plan(self):
        return json.loads((self.results / "plan.json").read_text())

    def counts(self):
        return json.loads((self.results / "manifest.json").read_text())["counts"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory, environment):
    """Return the finished run of a tenth of the demo, and what was said."""
    demo = Demo(tmp_path_factory.mktemp("demo"), environment, every=10)
    return demo, demo.type(*SNAKEMAKE).text


@pytest.fixture(scope="module")
def whole(tmp_path_factory, environment):
    demo = Demo(tmp_path_factory.mktemp("whole"), environment)
    return demo, demo.run()


def test_all_of_the_demo_is_planned(demo, tmp_path, environment):
    weights = demo[0].folder / "weights" / "mill_t6_8M.json"
    demo = Demo(tmp_path, environment)
    words = ("--config", "config/config.yaml", "--weights", weights)
    said = demo.type("featuremill", "plan", demo.results, *words).err
    plan = demo.plan()
    assert "1,000 records" in said
    assert (plan["counts"]["input"], plan["counts"]["unique"]) == (1000, 1000)
    assert len(plan["shards"]) == 4, "config.yaml says so"
    manifest = pq.read_table(demo.results / "records.parquet")
    assert manifest["id"].to_pylist() == [record.id for record in proteins(demo.fasta)]
    assert set(manifest["status"].to_pylist()) == {"planned"}


def assert_every_protein_is_accounted_for(demo, said, count):
    counts = demo.counts()
    parts = [counts[kind] for kind in ("ok", "failed", "refused", "duplicate")]
    assert counts["input"] == sum(parts) == count
    parsed = [record.id for record in proteins(demo.fasta)]
    table = pq.read_table(demo.results / "embeddings.parquet")
    assert table["id"].to_pylist() == parsed
    assert table.num_rows == counts["ok"] == len(set(parsed))
    with h5py.File(demo.results / "per-protein.h5") as file:
        assert {file[name].attrs["original_id"] for name in file} == set(parsed)
        assert file.attrs["model_name"] == "mill_t6_8M"
    assert f"{count:,} of {count:,} records have features (mill_t6_8M):\n" in said
    assert len(said.splitlines()) < 60, "calm output"


def test_the_demo_accounts_for_every_protein(demo):
    assert_every_protein_is_accounted_for(*demo, 100)
    assert len(demo[0].plan()["shards"]) > 1


@pytest.mark.slow
def test_all_of_the_demo_accounts_for_every_protein(whole):
    assert_every_protein_is_accounted_for(*whole, 1000)


@pytest.mark.filterwarnings("ignore:.* are longer than")
def test_the_results_are_what_embed_gives_for_the_same_sequences(demo):
    demo, _ = demo
    ids, matrix = featuremill.load_matrix(demo.results)
    chosen = list(islice(proteins(demo.fasta), 20))
    dtype = demo.plan()["settings"]["options"]["dtype"]
    embedded = featuremill.embed([str(record.seq) for record in chosen], dtype=dtype, device="cpu")
    assert ids[:20] == [record.id for record in chosen]
    # In fp32 the bits are the same in any batch; bf16 kernels may round by the shape of the batch.
    error = np.linalg.norm(embedded - matrix[:20]) / np.linalg.norm(embedded)
    assert error < (1e-6 if dtype == "fp32" else 2e-3)


def test_the_report_goes_into_snakemakes_own(demo):
    demo, _ = demo
    demo.type(*SNAKEMAKE, "--report", "report.html")
    page = (demo.folder / "report.html").read_text()
    assert "results/demo/report.html" in page


@needs_chromium
def test_both_reports_open_in_a_browser_without_a_network(demo, tmp_path):
    demo, _ = demo
    report = demo.results / "report.html"
    assert report.stat().st_size < 5e6
    demo.type(*SNAKEMAKE, "--report", "snakemake.html")
    with browser(tmp_path / "profile") as tab:
        for width in (1200, 390):
            assert tab.open_drawn(report, width=width) >= 2
            assert tab.value("document.querySelectorAll('canvas').length") >= 1  # the map
            assert tab.value("document.documentElement.scrollWidth") <= width
        assert tab.console == tab.requests == []
        tab.open(demo.folder / "snakemake.html", width=1200)
        assert "Results" in tab.wait("document.body.innerText")
        assert tab.value("Object.keys(results).join()") == "results/demo/report.html"
        assert tab.requests == []
        assert not [said for said in tab.console if "error" in said.lower()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "victim", ["featuremill.extract.worker", "featuremill extract", "snakemake"]
)
def test_kill_9_in_mid_shard_changes_no_byte_of_the_results(whole, tmp_path, environment, victim):
    # Read at a start, so that no process is forked: pgrep reads what was typed.
    demo = Demo(tmp_path, {**environment, "PYTHONHASHSEED": "0"})
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = demo.start(*SNAKEMAKE, **streams, start_new_session=True)
    store = demo.results / "store"

    def is_in_mid_shard():
        assert process.poll() is None
        return any(log.read_text().count("commit") >= 3 for log in store.glob("journals/*/*.log"))

    wait_for(is_in_mid_shard)
    found = ran("pgrep", "-f", victim, check=True)
    ours = [pid for pid in map(int, found.stdout.split()) if os.getpgid(pid) == process.pid]
    assert ours
    for pid in ours:
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=WHOLE_SECONDS)
    said = demo.run()
    for name in DATA:
        assert (demo.results / name).read_bytes() == (whole[0].results / name).read_bytes(), name
    receipts = json.loads((demo.results / "manifest.json").read_text())["receipts"]
    if victim != "featuremill.extract.worker":  # whose supervisor goes on within the same job
        assert "batches resumed" in said
    assert sum(receipt["resumed_batches"] for receipt in receipts) >= 3
    assert all(receipt["failed"] == 0 for receipt in receipts)
