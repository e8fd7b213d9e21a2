"""clean: what can go goes, nothing else does, and what is left computes right."""

import argparse
import contextlib
import json
import logging
import os
import shutil
from pathlib import Path

import pytest
from programs import Verbs, Workflow, holding, random_records

from featuremill.base.errors import UserError
from featuremill.base.locking import try_lock
from featuremill.base.words import human_bytes
from featuremill.merge import clean
from featuremill.merge.command import merge
from featuremill.store import files, ours, run_lock
from featuremill.store.formats import RECORD
from featuremill.store.results import Results

OTHER = "0" * 32


def clean_run(folder, keep="parts", yes=True):
    clean.run(argparse.Namespace(run_folder=folder.root, keep=keep, yes=yes))


def names_in(folder):
    """Return the paths of all files below `folder`, relative to it."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, environment):
    verbs = Verbs(tmp_path_factory.mktemp("clean"), environment)
    plan = verbs.finish([(f"r{n}", "ACDE" * (n + 1)) for n in range(10)], "parquet", "npy")
    assert len(plan["shards"]) == 1
    (verbs.folder / ".snakemake").mkdir()
    return verbs


@pytest.fixture
def run(finished, tmp_path, caplog):
    """Return a copy of a finished run, to be cleaned."""
    caplog.set_level(logging.INFO)
    shutil.copytree(finished.folder, tmp_path / "work")
    return Results(tmp_path / "work" / "results" / "test")


def write(path, age_seconds=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 5000)
    then = path.stat().st_mtime - age_seconds
    os.utime(path, (then, then))
    return path


def left(path, age_seconds=0):
    """Write what a process leaves that is killed while it writes `path`."""
    return write(files.temporary_file(path), age_seconds)


def plan_of(run):
    return json.loads(run.plan.read_text())


def test_litter_goes_and_what_may_be_in_use_stays(run, caplog):
    plan = plan_of(run)
    recipe, shard = plan["recipe"], plan["shards"][0]["shard"]
    (run.root / "manifest.json").touch()
    locks = {path for path in names_in(run.root) if path.endswith(".lock") and "journals" in path}
    assert len(locks) == 1
    before = names_in(run.root) - locks
    unfinished = [run.journal(recipe, OTHER).with_suffix(end) for end in (".arrows", ".log")]
    young = left(run.root / "per-protein.h5", 1800)
    for path in unfinished:
        write(path, 9000)
    write(run.journal(recipe, shard).with_suffix(".log"))
    write(run.part(recipe, shard).with_suffix(".bad"))
    write(run.shard(OTHER).with_suffix(".bad"))
    left(run.store / "parts" / recipe / f"{shard}.json", 4000)
    spool = files.temporary_folder(run.store / "spool")
    write(spool / "rows.arrow", 9000)
    ours.note(write(run.root / "partial" / "embeddings.parquet"))
    told = write(run.root / ".hidden", 9000)
    size = told.stat().st_blocks * 512
    left(run.root / "embeddings.parquet", 9000)
    everything = names_in(run.root)
    record = (run.root / "partial" / RECORD).stat().st_blocks * 512
    clean_run(run, "all", yes=False)
    assert names_in(run.root) == everything, "nothing goes without --yes"
    assert "in all: 9 files" in caplog.text and "give --yes" in caplog.text
    clean_run(run, "all")
    assert f"removed: 9 files, {human_bytes(7 * size + record)}" in caplog.text, "0 for a lock"
    kept = {str(path.relative_to(run.root)) for path in (*unfinished, young, told)}
    assert names_in(run.root) == before | kept
    assert not spool.exists()
    clean_run(run, "all")
    assert "with --keep all there is nothing to remove" in caplog.text


def test_nothing_to_remove_does_not_name_an_option_that_nobody_gave(run, finished):
    clean_run(run)
    said = Verbs(run.root.parent.parent, finished.environment)("clean", run.root)
    assert "there is nothing to remove; --keep results and --keep nothing go further" in said


def test_partial_results_stay_while_there_are_no_others(run):
    (run.root / "manifest.json").unlink()
    partial = write(run.root / "partial" / "embeddings.parquet")
    clean_run(run, "all")
    assert partial.exists()


def test_whole_results_may_be_a_folder(run):
    merge(run, ["parquet_dataset"], 0)
    (run.root / "embeddings" / ".snakemake_timestamp").touch()  # as Snakemake does
    part = run.root / "embeddings" / "part-00000.parquet"
    content = part.read_bytes()
    part.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    refused(run, "embeddings: this is not the file that merge wrote")
    part.write_bytes(content)
    clean_run(run, "results")
    assert part.exists() and not list(run.store.rglob("*.arrow*"))
    assert clean.after_run(run.root, "results") == ""


def test_what_a_killed_merge_left_goes_with_its_folders(run):
    before = names_in(run.root)
    scratch = write(files.temporary_folder(run.store / "merge") / "values.bin", 9000)
    partial = write(run.root / "partial" / "embeddings" / "part-00000.parquet")
    ours.note(partial.parent)  # its record is in partial/
    old = files.temporary_folder(run.root / "embeddings") / "embeddings" / "part-00000.parquet"
    write(old, 9000)
    young = files.temporary_folder(run.root / "fair-esm-pt") / "fair-esm-pt"
    at_work = [write(young / name, age) for name, age in (("a.pt", 9000), ("b.pt", 0))]
    mine = write(run.root / ".my.notebook" / "notes", 9000)
    clean_run(run, "all")
    kept = {str(path.relative_to(run.root)) for path in (*at_work, mine)}
    locks = {path for path in before if path.endswith(".lock") and "journals" in path}
    assert names_in(run.root) == before - locks | kept
    for path in (scratch.parent, partial.parents[1], old.parents[1]):
        assert not path.exists()


def test_what_the_plan_does_not_name_goes_and_an_edit_still_costs_only_what_is_new(finished, run):
    plan = plan_of(run)
    recipe = plan["recipe"]
    clean_run(run, "all")
    before = names_in(run.root)
    journal = write(run.journal(recipe, plan["shards"][0]["shard"]).with_suffix(".arrows"))
    run.part(recipe, plan["shards"][0]["shard"]).with_suffix(".json").unlink()
    for path in (run.part(recipe, OTHER), run.part(OTHER, plan["shards"][0]["shard"])):
        write(path)
        write(path.with_suffix(".json"))
    write(run.receipt(OTHER, OTHER))
    write(run.receipt(recipe, OTHER))
    write(run.journal(OTHER, OTHER))
    write(run.shard(OTHER))
    clean_run(run)
    lost = run.part(recipe, plan["shards"][0]["shard"]).with_suffix(".json")
    gone, kept = ({str(path.relative_to(run.root))} for path in (lost, journal))
    assert names_in(run.root) == before - gone | kept
    assert not (run.store / "parts" / OTHER).exists()
    (run.store / "plan.json").unlink()
    run.plan.unlink()
    with pytest.raises(UserError, match="no plan, so what is needed is unknown"):
        clean_run(run)


def test_only_whole_results_may_outlive_their_parts(run, caplog):
    path = run.root / "embeddings.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    before = names_in(run.root)
    refused(run, "embeddings.npy: this is not the file that merge wrote")
    path.unlink()
    refused(run, "embeddings.npy: this result is gone")
    path.write_bytes(content)
    plan = plan_of(run)
    for edit in ({"shards": []}, {"recipe": OTHER}, {"inputs": []}):
        run.plan.write_text(json.dumps(plan | edit))
        refused(run, "these results are not those of plan.json")
    run.plan.write_text(json.dumps(plan))
    receipt = run.receipt(plan["recipe"], plan["shards"][0]["shard"])
    told = receipt.read_text()
    receipt.write_text(json.dumps(json.loads(told) | {"part": OTHER}))
    refused(run, "these results are not those of plan.json")
    receipt.write_text(told)
    manifest = (run.root / "manifest.json").read_bytes()
    (run.root / "manifest.json").unlink()
    refused(run, "there are no finished results")
    (run.root / "manifest.json").write_bytes(manifest)
    assert names_in(run.root) == before

    clean_run(run, "results")
    made_of = ("receipts/", "store/shards/", "store/parts/", "store/journals/")
    assert names_in(run.root) == {name for name in before if not name.startswith(made_of)}
    assert {"embeddings.npy", "plan.json", "manifest.json"} < names_in(run.root)
    clean_run(run, "results")
    assert "with --keep results there is nothing to remove" in caplog.text


def refused(run, sentence):
    before = names_in(run.root)
    with pytest.raises(UserError, match=sentence):
        clean_run(run, "results")
    with pytest.raises(UserError, match=sentence):
        clean.after_run(run.root, "parts")
    assert names_in(run.root) == before


def test_starting_over_takes_what_is_the_runs_and_says_what_stays(run, caplog):
    work = run.root.parent.parent
    others = [work / "weights" / "w.json", work / "results" / "other" / "plan.json", work / "notes"]
    for path in others:
        write(path)
    finished_log = run.logs / "extract" / OTHER / f"{OTHER}.log"
    write(finished_log).write_text("2026-01-01 10:00:00,123 DEBUG   featuremill.plan: begin: it\n")
    mine = [run.root / "my-own" / "notes.txt", run.root / "x.bad", run.store / "parts" / "n.txt"]
    others += map(write, mine)
    with (run.root / "embeddings.npy").open("ab") as file:
        file.write(b"more")
    others.append(run.root / "embeddings.npy")
    for keep in ("all", "results"):
        with contextlib.suppress(UserError):  # these results are not what merge wrote
            clean_run(run, keep)
    clean_run(run, "nothing", yes=False)
    assert run.plan.exists()
    caplog.clear()
    clean_run(run, "nothing")
    assert names_in(work) == {str(path.relative_to(work)) for path in others} | {"in.fa"}
    (said,) = [line for line in caplog.messages if line.startswith("stays: ")]
    assert all(str(path) in said for path in (*mine, run.root / "embeddings.npy"))


@pytest.mark.parametrize("keep", ["results", "nothing"])
def test_links_are_not_followed_but_for_the_store(run, tmp_path, keep):
    """The store is on another disk; a folder of it, and a file, are linked from elsewhere."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (run.store).rename(scratch / "store")
    run.store.symlink_to(scratch / "store")
    mine, sibling = write(tmp_path / "mine" / f"{OTHER}.arrows"), write(scratch / "sibling")
    (run.store / "parts" / OTHER).symlink_to(mine.parent)
    (run.store / "journals").rename(tmp_path / "journals")
    (run.store / "journals").symlink_to(tmp_path / "journals")
    journals = names_in(tmp_path / "journals")
    (run.store / "shards" / f"{OTHER}.arrow").symlink_to(mine)
    (run.root / "receipts" / OTHER).symlink_to(mine.parent)
    clean_run(run, keep)
    assert mine.exists() and sibling.exists() and scratch.is_dir()
    assert names_in(tmp_path / "journals") == journals
    assert not list((scratch / "store").rglob("*.arrow*"))
    assert not (run.root / "receipts").exists()
    if keep == "nothing":
        assert not run.root.is_symlink() and not run.root.exists()
        assert not list((scratch / "store").rglob("*"))


def test_a_run_that_somebody_is_at_is_left_alone(run, monkeypatch):
    plan = plan_of(run)
    journal = run.journal(plan["recipe"], plan["shards"][0]["shard"])
    held = {
        "a job is computing shard": journal.with_suffix(".lock"),
        "a featuremill plan works on this run": run.store / "plan.lock",
        "a featuremill merge works on this run": run.store / "merge.lock",
        "a snakemake is computing this run": run_lock.path_of(run.root),
    }
    before = names_in(run.root)
    for sentence, lock in held.items():
        with holding(lock), pytest.raises(UserError, match=sentence):
            clean_run(run, "nothing")
        assert names_in(run.root) == before
    (run.root.parent / "other").mkdir()
    monkeypatch.chdir(run.root.parent / "other")
    with holding(run_lock.path_of(run.root)), pytest.raises(UserError, match="a snakemake is"):
        clean_run(Results(Path("../test")), "nothing")
    for nowhere in (run.root.parent, run.root.parent.parent, run.store):
        with pytest.raises(UserError, match="there is no run here"):
            clean_run(Results(nowhere), "nothing")


def test_a_first_merge_waits_for_clean(run):
    (run.store / "merge.lock").unlink()
    with clean.refusing_others(run), (run.store / "merge.lock").open() as lock:
        assert try_lock(lock, run.store / "merge.lock") is False


def test_a_file_with_two_names_counts_once_and_one_that_vanishes_not_at_all(run):
    size = write(run.shard(OTHER)).stat().st_blocks * 512
    os.link(run.shard(OTHER), run.shard("1" * 32))
    write(run.shard("2" * 32))
    found = clean.removable(run, "parts")
    assert clean.usage_of(found) == (4, 2 * size), "a lock has no bytes"
    run.shard("2" * 32).unlink()
    assert clean.remove(found, []) == (3, size)


def test_the_verb_says_what_it_would_do(run, finished):
    verbs = Verbs(run.root.parent.parent, finished.environment)
    said = verbs("clean", "results/test", "--keep", "results")
    for told in ("store/parts: 3 files", "store/shards: 1 file", "give --yes"):
        assert told in said
    assert "invalid choice" in verbs("clean", "results/test", "--keep", "some", status=2)


def snakemake_run(tmp_path, environment, **config):
    workflow = Workflow(tmp_path, environment, random_records(60))
    workflow.ask(**config)
    return workflow


@pytest.mark.slow
def test_cleaned_results_stay_done_and_a_changed_input_takes_one_call(tmp_path, environment):
    workflow = snakemake_run(tmp_path, environment)
    workflow()
    before, records = workflow.data(), random_records(60)
    workflow.news()
    cleaned = ("clean", "results/test", "--yes", "--keep")
    workflow.verb(*cleaned, "results")
    assert not list(workflow.run_folder.store.rglob("*.arrow*"))
    assert "Nothing to be done" in workflow()
    os.utime(tmp_path / "in.fa")
    assert "Nothing to be done" in workflow()
    workflow.write([*records, ("new", "GGGG")])
    workflow()
    assert len(workflow.news()) == 61 and workflow.counts()["ok"] == 61
    workflow.verb(*cleaned, "results")
    workflow.write(records)
    workflow()
    assert workflow.data() == before
    workflow.verb(*cleaned, "results")
    workflow("--config", "outputs=[parquet,npy,per_protein_h5]")
    assert workflow.data() == before and (workflow.run_folder.root / "embeddings.npy").exists()
    workflow.verb(*cleaned, "nothing")
    workflow()
    assert workflow.data() == before


@pytest.mark.slow
def test_the_config_says_what_is_kept_and_changing_that_runs_nothing(tmp_path, environment):
    workflow = snakemake_run(tmp_path, environment)
    workflow()
    store = workflow.run_folder.store
    workflow.configure(batch_records=7)  # another recipe
    said = workflow()
    assert "keep:" not in said
    assert len(list((store / "parts").iterdir())) == 2
    before = workflow.data()
    assert "Nothing to be done" in workflow("--config", "keep=results")
    said = workflow("--config", "keep=parts", "--forcerun", "merge")
    assert "keep: parts: removed" in said
    assert len(list((store / "parts").iterdir())) == 1
    said = workflow("--config", "keep=results", "--forcerun", "plan", "--until", "plan")
    assert "keep:" not in said and (store / "parts").exists(), "not the whole run"
    said = workflow("--config", "keep=results", "--forcerun", "merge")
    assert "keep: results: removed" in said and not (store / "parts").exists()
    assert workflow.data() == before
    assert "Nothing to be done" in workflow("--config", "keep=results")
    workflow.news()
    workflow.write(random_records(61))
    workflow("--config", "keep=results")
    assert len(workflow.news()) == 61 and workflow.counts()["ok"] == 61
