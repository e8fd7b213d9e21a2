"""Projects that an older featuremill finished are opened, computed no further, and understood.

tests/older/<commit>.tar.xz is a folder in which that commit computed: `plain` (with a head, labels
by transfer and groups), `shard` (results by shard), `lakes` (a sheet of samples), `contigs`
(fragments, a head, verdicts), `stored` (a shared store) and `esm` (the bundled network).
"""

import shutil
import tarfile
from pathlib import Path

import pandas as pd
import pytest
from programs import Desk, jobs_listed

import featuremill
from featuremill.store.results import Results

ARCHIVE = Path(__file__).parent / "older" / "e863ad1c.tar.xz"
RUNS = {
    "plain": "plain",
    "shard": "shard",
    "lakes": "lakes",
    "contigs": "contigs/proteins",
    "stored": "stored",
    "esm": "esm",
}
"""The set of features of each config."""
COMPUTING = {"plan", "extract", "deliver", "head_train", "head_predict", "translate", "transfer"}


@pytest.fixture(scope="module")
def older(tmp_path_factory, environment):
    """Return a desk in the project, as an archive brings it: with its times, in another folder."""
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return Desk(folder / "project", environment)


@pytest.fixture
def copy(older, tmp_path, environment):
    shutil.copytree(older.folder, tmp_path / "project")
    return Desk(tmp_path / "project", environment)


@pytest.mark.parametrize("name", RUNS)
def test_status_calls_it_done(older, name):
    assert "Nothing to do." in older.type("featuremill", "status", f"{name}.yaml").out


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("shard", "lakes", "contigs")),
    ],
)
def test_nothing_is_computed_anew(older, name):
    said = older.type("featuremill", "run", f"{name}.yaml", "--cores", "1", "-n").text
    assert jobs_listed(said) & COMPUTING == set(), said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stored", "esm"])
def test_a_project_whose_store_or_checkpoint_moved_computes_nothing(copy, name):
    """plan may run again, as the store or the weights are at another path now."""
    results = copy.folder / "results" / name / "embeddings.parquet"
    before = pd.read_parquet(results)
    said = copy.type("featuremill", "run", f"{name}.yaml", "--cores", "1").text
    assert "extract │" not in said, said
    assert "Nothing to do." in copy.type("featuremill", "status", f"{name}.yaml").out
    pd.testing.assert_frame_equal(pd.read_parquet(results), before)


@pytest.mark.parametrize("name", ["plain", "shard"])
def test_results_and_exports_are_read(copy, name):
    folder = copy.folder / "results" / name
    table = featuremill.load(folder)
    assert len(table) == 42 and table.index.is_unique
    assert table.loc["twin", "sha256"] == table.loc["twin2", "sha256"]
    copy.type("featuremill", "export", f"results/{name}", "--to", "safetensors")
    assert (folder / "embeddings.safetensors").exists()


@pytest.mark.parametrize(("name", "file"), [("plain", "embeddings.parquet"), ("stored", "")])
def test_merge_makes_the_same_of_its_parts(copy, name, file):
    folder = copy.folder / "results" / name
    before = pd.read_parquet(folder / (file or "embeddings.parquet"))
    copy.type("featuremill", "merge", f"results/{name}")
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "embeddings.parquet"), before)


def test_clean_knows_whose_its_files_are(copy):
    """What that version wrote is removed; what a person put beside it stays."""
    folder = copy.folder / "results" / "plain"
    (folder / "notes.md").write_text("mine")
    copy.type("featuremill", "clean", "results/plain", "--keep", "nothing", "--yes")
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert "notes.md" in left
    assert not left & {"embeddings.parquet", "embeddings.npy", "plan.json", "report.html"}
    assert not Results(folder).store.exists()


@pytest.mark.parametrize("name", ["esm", "lakes"])
def test_its_values_are_computed_again(older, name):
    weights = []
    if name == "esm":  # those of the archive are in the cache of the machine that computed
        weights = ["--weights", "here.json"]
        older.type("featuremill", "weights", "mill_t6_8M", "--output", "here.json")
    said = older.type("featuremill", "verify", f"results/{RUNS[name]}", *weights).out
    assert "computed again" in said and said.endswith("The results hold.\n")
