"""Results on another disk: results/<run> is a link, by which every command finds them."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import yaml
from programs import Desk, wait_for

from featuremill.__main__ import main
from featuremill.base.locking import locked
from featuremill.store import formats, run_lock

RECORDS = ">p1 one\nMKVLAA\n>p2\nMKTAYIAKQR\n"
EVERY_WORD = ["status", "top --once", "report", "merge", "retry", "clean", "export --to npy"]


class Folder(Desk):
    """A folder with an input and configs, and a folder that stands for another disk beside it."""

    def __init__(self, above, environment, name="pipe"):
        super().__init__(above / name, {**environment, "FEATUREMILL_QUIET": "1"})
        self.folder.mkdir(parents=True)
        self.disk, self.link = above / "a disk", self.folder / "results" / "my"
        (self.folder / "my.fa").write_text(RECORDS)
        self.write()

    def write(self, name="my.yaml", **config):
        asked = {"run": "my", "inputs": "my.fa", "workload": "composition", **config}
        (self.folder / name).write_text(yaml.safe_dump(asked))

    def run(self, *words, status=0):
        words = (*words, "--cores", "1")
        return self.type("featuremill", "run", "my.yaml", *words, status=status).text

    def say(self, *words, status=0):
        return self.type("featuremill", *words, status=status).text

    def follow(self, said):
        """Type the shell's words at the end of a message."""
        command = said.rstrip().rpartition("type: ")[2]
        subprocess.run(["sh", "-ec", command], cwd=self.folder, check=True)


@pytest.fixture
def folder(tmp_path, environment):
    made = Folder(tmp_path, environment)
    made.disk.mkdir()
    return made


def ids(place):
    return list(pd.read_parquet(place / "embeddings.parquet")["id"])


@pytest.mark.parametrize("is_key", [True, False])
def test_results_are_on_another_disk_and_every_command_finds_them(folder, is_key, monkeypatch):
    monkeypatch.chdir(folder.folder)
    if is_key:
        folder.write(results="../a disk")
    words = () if is_key else ("--results", "../a disk")
    said = folder.run(*words)
    assert f"results/my is a link to {folder.disk}/my\n" in said
    assert folder.link.readlink() == folder.disk / "my"
    assert ids(folder.disk / "my") == ids(folder.link) == ["p1", "p2"]
    assert "Nothing to be done" in folder.run(*words)
    for run in ("my.yaml", "results/my", folder.disk / "my"):
        for verb in EVERY_WORD:
            first, *more = verb.split()
            assert main([first, str(run), *more]) == 0
    (folder.folder / "my.fa").write_text(f"{RECORDS}>p3\nMKA\n")
    again = "featuremill run my.yaml" + ("" if is_key else f" --results '{folder.disk}'")
    command = ["--cores", "1"]
    assert f"→ {again} {shlex.join(command)}\n" in folder.say("status", "my.yaml", status=1)
    said = folder.say("status", folder.disk / "my", status=1)
    assert f"→ {again} {shlex.join(command)}\n" in said, "it knows the link to it"
    run_words = [*shlex.split(again)[2:], *command]
    folder.say("run", *run_words)
    assert ids(folder.disk / "my") == ["p1", "p2", "p3"]
    assert "Nothing to be done" in folder.run(), "a run that was begun so goes on so"


def num_waiting(path):
    """Return how many processes wait for the lock of a file, as the kernel tells."""
    inode = f":{path.stat().st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    return sum("->" in line and inode in line for line in lines)


def test_of_two_projects_that_begin_in_one_moment_one_has_the_folder(folder, environment):
    if not Path("/proc/locks").exists():
        pytest.skip("/proc/locks is not here")
    other = Folder(folder.disk.parent, environment, "other")
    (other.folder / "my.fa").write_text(RECORDS.replace(">p", ">q"))
    for one in (folder, other):
        one.write(results=str(folder.disk))
    (folder.disk / "my").mkdir()
    (folder.disk / "my" / formats.LINK).touch()
    words = ("featuremill", "run", "my.yaml", "--cores", "1")
    with locked(folder.disk / "my" / formats.LINK):  # so both have found the folder free
        runs = {one: one.start(*words, stdout=subprocess.DEVNULL) for one in (folder, other)}
        wait_for(lambda: num_waiting(folder.disk / "my" / formats.LINK) == 2)
    said = {one: process.communicate(timeout=120)[1] for one, process in runs.items()}
    first, second = sorted(runs, key=lambda one: runs[one].returncode)
    assert [runs[one].returncode for one in (first, second)] == [0, 2], said
    assert f"files of another run ({first.link}); give this one another `run:`" in said[second]
    assert ids(first.link) == (["p1", "p2"] if first is folder else ["q1", "q2"])
    assert not second.link.is_symlink()


def test_several_sets_of_features_are_there_together(folder):
    sets = {"a": {"workload": "composition"}, "b": {"workload": "composition", "outputs": "npy"}}
    asked = {"run": "two", "inputs": "my.fa", "results": str(folder.disk), "features": sets}
    (folder.folder / "my.yaml").write_text(yaml.safe_dump(asked))
    folder.run()
    assert ids(folder.disk / "two" / "a") == ["p1", "p2"]
    for run in ("my.yaml", "results/two", folder.disk / "two", folder.disk / "two" / "b"):
        assert "done" in folder.say("status", run)
    sets["b"]["results"] = "elsewhere"
    (folder.folder / "my.yaml").write_text(yaml.safe_dump(asked))
    said = folder.run(status=2)
    assert "results: it belongs to the top level, outside 'features:'" in said


def test_a_module_has_them_there_too(folder):
    config = {"run": "my", "inputs": "my.fa", "workload": "composition", "results": "../a disk"}
    (folder.folder / "Snakefile").write_text(
        "from featuremill import SNAKEFILE\n"
        f"module mill:\n    snakefile: SNAKEFILE\n    config: {json.dumps(config)}\n"
        "use rule * from mill as mill_*\n"
        'rule mine:\n    default_target: True\n    input: "results/my/embeddings.parquet"\n'
    )
    folder.type("snakemake", "--cores", "1")
    assert ids(folder.disk / "my") == ["p1", "p2"]
    assert "Nothing to be done" in folder.type("snakemake", "--cores", "1").text


def test_status_names_the_reports_that_the_workflow_of_a_module_does_not_make(folder):
    one = {"workload": "composition", "outputs": "parquet"}
    config = {"run": "my", "inputs": "my.fa", "features": {"one": one, "two": one}}
    (folder.folder / "Snakefile").write_text(
        "from featuremill import SNAKEFILE\n"
        f"module mill:\n    snakefile: SNAKEFILE\n    config: {json.dumps(config)}\n"
        "use rule * from mill as mill_*\n"
        "rule mine:\n    default_target: True\n"
        '    input: expand("results/my/{x}/embeddings.parquet", x=["one", "two"])\n'
    )
    folder.type("snakemake", "--cores", "1")
    commands = [f"  featuremill report results/my/{name}" for name in ("one", "two")]
    assert folder.say("status", "results/my").splitlines()[-3:] == ["Type next", *commands]


def test_what_is_elsewhere_already_is_moved_by_the_words_of_the_message(folder):
    folder.run()
    said = folder.run("--results", folder.disk, status=2)
    assert "its files are in results/my and not in" in said and said.count("\n") == 1
    folder.follow(said)
    said = folder.run("--results", folder.disk)
    assert "Nothing to be done" in said and ids(folder.disk / "my") == ["p1", "p2"]
    folder.write(results="../new/one")
    folder.follow(folder.run(status=2))
    assert "Nothing to be done" in folder.run()
    assert ids(folder.disk.parent / "new" / "one" / "my") == ["p1", "p2"]
    folder.folder.rename(folder.disk.parent / "moved")
    folder.folder = folder.disk.parent / "moved"
    assert "Nothing to be done" in folder.run(), "the project itself may move"
    assert "done" in folder.say("status", "../new/one/my")


def test_files_that_were_moved_within_the_project_are_still_the_runs(folder):
    folder.run()
    folder.follow(folder.run("--results", "scratch", status=2))
    assert "Nothing to be done" in folder.run("--results", "scratch")
    assert ids(folder.folder / "scratch" / "my") == ["p1", "p2"]
    folder.write("other.yaml", run="other")
    folder.type("featuremill", "run", "other.yaml", "--cores", "1")
    by_hand = folder.folder / "results" / "other"
    by_hand.rename(folder.folder / "scratch" / "other")
    by_hand.symlink_to(folder.folder / "scratch" / "other")
    said = folder.type("featuremill", "run", "other.yaml", "--cores", "1").text
    assert "Nothing to be done" in said


def test_two_runs_never_share_a_folder(folder, environment):
    folder.write(results=str(folder.disk))
    folder.run()
    before = (folder.disk / "my" / "manifest.json").read_bytes()
    other = Folder(folder.disk.parent, environment, "other")
    other.write(results=str(folder.disk))
    said = other.run(status=2)
    assert f"files of another run ({folder.link})" in said and not other.link.is_symlink()
    copy = folder.disk.parent / "copy"
    shutil.copytree(folder.folder, copy, symlinks=True)  # as cp -a does
    other.folder = copy
    other.write(results="../a third disk")
    (folder.disk.parent / "a third disk").mkdir()
    said = other.run(status=2)
    assert f"files of another run ({folder.link})" in said and "mv " not in said
    other.follow(said)
    other.run()
    assert ids(folder.disk.parent / "a third disk" / "my") == ["p1", "p2"]
    third = Folder(folder.disk.parent, environment, "third")
    third.run()
    other.folder = folder.disk.parent / "other"
    other.write(results="../third/results")
    assert "files of another run (" in other.run(status=2), "in the place where runs are without"
    assert (folder.disk / "my" / "manifest.json").read_bytes() == before
    assert "Nothing to be done" in folder.run()


def test_the_files_of_a_run_whose_project_was_moved_stay_its_own(folder, environment):
    folder.write(results=str(folder.disk))
    folder.run()
    before = (folder.disk / "my" / "manifest.json").read_bytes()
    moved = folder.folder.rename(folder.disk.parent / "moved")
    other = Folder(folder.disk.parent, environment, "other")
    other.write(results=str(folder.disk))
    said = other.run(status=2)
    assert f"the files of the run {folder.link}, which is gone" in " ".join(said.split())
    assert (folder.disk / "my" / "manifest.json").read_bytes() == before
    folder.folder, folder.link = moved, moved / "results" / "my"
    assert "Nothing to be done" in folder.run(), "its link was moved with it"
    assert f"files of another run ({folder.link})" in other.run(status=2)
    folder.link.unlink()
    assert "Nothing to be done" in folder.run(), "the link is made again"
    again = folder.folder.rename(folder.disk.parent / "again")
    folder.folder = again
    shutil.rmtree(again / "results")
    folder.follow(folder.run(status=2))
    assert "Nothing to be done" in folder.run()


def test_a_disk_that_is_not_there(folder):
    folder.write(results=str(folder.disk))
    folder.run()
    folder.disk.rename(folder.disk.with_name("away"))
    for words in (["status", "my.yaml"], ["status", "results/my"], ["run", "my.yaml"]):
        said = folder.say(*words, status=2)
        assert "which is not there; mount that disk, or, to begin anew, type: rm results/my" in said
    folder.disk.with_name("away").rename(folder.disk)
    assert "Nothing to be done" in folder.run()
    folder.write(run="new", results="../no/such")
    said = folder.run(status=2)
    assert f"/no/such: there is no folder {folder.disk.parent}/no; check the path, or make" in said
    assert not (folder.disk.parent / "no").exists()


def test_clean_takes_what_is_there_and_the_next_run_goes_there(folder):
    folder.write(results=str(folder.disk))
    folder.run()
    (folder.disk / "my" / "mine.txt").write_text("mine")
    folder.say("clean", "my.yaml", "--keep", "nothing", "--yes")
    assert [path.name for path in (folder.disk / "my").iterdir()] == ["mine.txt"]
    folder.run()
    assert ids(folder.disk / "my") == ["p1", "p2"]
    assert run_lock.link_to(folder.disk / "my") == folder.link


def test_results_in_its_own_place_is_no_link(folder):
    folder.write(results="results")
    folder.run()
    assert not folder.link.is_symlink() and ids(folder.link) == ["p1", "p2"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--outdir", "x"], "there is no option --outdir; to have results in another folder: "),
        (["--results"], "--results: name a folder after it."),
        (["--results="], "--results: name a folder after it."),
    ],
)
def test_what_people_type_for_it(folder, words, part):
    said = folder.type("featuremill", "run", "my.yaml", *words, status=2).text
    assert part in said and said.count("\n") == 1
    if "--outdir" in words:
        assert "featuremill run --results FOLDER" in said
