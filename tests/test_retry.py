"""retry: failed records run again, nothing else does, and a kill at any point costs nothing."""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
from programs import Verbs, Workflow, holding, random_records, wait_for

from featuremill.base.errors import IntegrityError, UserError
from featuremill.merge.command import merge
from featuremill.plan.retry import retry, run
from featuremill.store.parts import read_shard

GOOD = random_records(40)
BAD = [("odd", "RAISEK"), ("nan", "NANK"), ("twin", "RAISEK"), ("greed", "GREEDKL")]
ALL, AGAIN = [*GOOD, *BAD], ["GREEDKL", "NANK", "RAISEK"]
OPTIONS = {"computed": "computed.txt", "cure_file": "cured", "batch_records": 8}


class Run(Verbs):
    """A run whose harmful records can be cured, without Snakemake."""

    def compute(self):
        """Extract what has no receipt yet; return the sequences that were computed."""
        plan, computed = self.planned(), self.folder / "computed.txt"
        receipts = [self.run_folder.receipt(plan["recipe"], s["shard"]) for s in plan["shards"]]
        pairs = zip(plan["shards"], receipts, strict=True)
        computed.unlink(missing_ok=True)
        self.extract(plan | {"shards": [one for one, receipt in pairs if not receipt.exists()]})
        return sorted(set(computed.read_text().split())) if computed.exists() else []

    def merge(self, max_failed=0):
        """Merge; return id → value of the records that are ok."""
        self("merge", self.run_folder.root, "--outputs", "parquet", "--max-failed", max_failed)
        table = pq.read_table(self.run_folder.root / "embeddings.parquet")
        return {row["id"]: row["letters"][0] for row in table.to_pylist()}

    def cure(self):
        (self.folder / "cured").touch()

    def finish_cured(self):
        """Compute what failed, now that no record is harmful."""
        self.cure()
        assert self.compute() == AGAIN
        assert self.merge() == expected(ALL)

    def retry(self, *more, status=0):
        return self("retry", self.run_folder.root, *more, status=status)

    def planned(self):
        return json.loads(self.run_folder.plan.read_text())

    def plan_again(self, records):
        return self.plan(records, "poison", OPTIONS, cost=20)


@pytest.fixture(scope="module")
def computed(tmp_path_factory, environment):
    run = Run(tmp_path_factory.mktemp("retry"), environment)
    run.plan_again(ALL)
    run.compute()
    return run


@pytest.fixture
def failed(computed, tmp_path, environment):
    """Return a computed run in which BAD failed."""
    shutil.copytree(computed.folder, tmp_path / "run")
    return Run(tmp_path / "run", environment)


def check(folder, planned, records):
    """Assert that the manifest leads from every input record to its own payload."""
    tables = {s["shard"]: read_shard(folder.shard(s["shard"])) for s in planned["shards"]}
    rows = pq.read_table(folder.records).to_pylist()
    assert [row["id"] for row in rows] == [id for id, _ in records]
    for row, (_, sequence) in zip(rows, records, strict=True):
        assert tables[row["shard"]]["payload"][row["row"]].as_py() == sequence.encode()
    asked = {(row["shard"], row["row"]) for row in rows}
    for shard in planned["shards"]:
        assert tables[shard["shard"]].num_rows == shard["records"]
        assert sum(name == shard["shard"] for name, _ in asked) == shard["wanted"]


def expected(records):
    return {id: float(len(sequence)) for id, sequence in records}


def test_only_the_failed_records_run_again_and_all_else_keeps_its_bytes(failed):
    run = failed.run_folder
    failed.merge(max_failed=4)
    before = {path: path.read_bytes() for path in run.store.rglob("*.arrow*")}
    planned = failed.planned()
    assert len(planned["shards"]) == 2
    assert "4 failed records would run again: 2 error, 1 nan, 1 oom" in failed.retry("--dry-run")
    assert failed.planned() == planned

    said = failed.retry()
    assert "4 failed records will run again, in 1 new shard: 2 error" in said
    assert "now run: featuremill run YOUR.yaml\n" in said
    after = failed.planned()
    old, new = after["shards"][:-1], after["shards"][-1]
    assert (new["records"], new["wanted"], new["cost"]) == (3, 3, 3)
    assert [s["shard"] for s in old] == [s["shard"] for s in planned["shards"]]
    assert sum(s["wanted"] for s in old) == 40 and sum(s["cost"] for s in old) == 40
    check(run, after, ALL)
    failed.finish_cured()
    assert {path: path.read_bytes() for path in before} == before


def refused(folder, sentence, *reasons):
    with pytest.raises(UserError, match=sentence):
        run(argparse.Namespace(run_folder=folder, reason=list(reasons), dry_run=False, sample=[]))


def test_a_kind_that_is_not_there_is_refused_with_those_that_are(failed):
    root = failed.run_folder.root
    refused(root, "ooms: there is no such kind of reason; the kinds are .*nan, oom, ", "ooms")
    said = "--reason hang: no record failed for it; there are 2 error, 1 nan, 1 oom."
    refused(root, said, "nan", "hang")


def test_only_failures_of_the_kind_that_is_asked_for(failed):
    failed.cure()
    failed.retry("--reason", "nan", "--reason", "oom")
    assert failed.compute() == ["GREEDKL", "NANK"]
    assert set(expected(BAD)) - set(failed.merge(max_failed=2)) == {"odd", "twin"}
    said = failed.retry("--reason", "nan", status=2)
    assert "no record failed for it; there are 2 error." in said
    failed.retry("--reason", "error")
    assert failed.compute() == ["RAISEK"]
    assert failed.merge() == expected(ALL)
    assert "no record failed" in failed.retry() + failed.retry("--reason", "nan")


@pytest.mark.slow
def test_what_fails_again_runs_again_under_the_same_name(failed):
    failed.merge(max_failed=4)
    failed.retry()
    names = []
    for _ in range(2):
        assert failed.compute() == AGAIN
        failed.merge(max_failed=4)
        failed.retry()
        assert not (failed.run_folder.root / "manifest.json").exists()
        names.append([shard["shard"] for shard in failed.planned()["shards"]])
    assert names[0] == names[1]
    failed.cure()
    failed.compute()
    assert failed.merge() == expected(ALL)


def test_an_earlier_failed_try_of_the_same_records_is_not_taken_up(failed):
    """The failed shard has left the plan meanwhile, but its part is still there."""
    failed.retry("--reason", "nan")
    failed.compute()
    failed.plan_again(ALL)
    failed.plan_again([record for record in ALL if record[0] != "nan"])
    failed.plan_again(ALL)
    failed.compute()
    failed.retry("--reason", "nan")
    failed.cure()
    assert failed.compute() == ["NANK"]


def test_what_an_earlier_try_left_goes_and_merge_runs_again(failed):
    """Snakemake goes by times: the plan stays as old as it was, and the results are gone."""
    run = failed.run_folder
    merge(run, ["parquet"], 4)
    replaced = [run.plan, run.records]
    for number, path in enumerate(replaced):
        os.utime(path, (number, 1_000_000 + number))
    before = {path: path.read_bytes() for path in (*replaced, run.store / "plan.json")}
    retry([run], ["nan"])
    assert [path.stat().st_mtime for path in replaced] == [1_000_000, 1_000_001]
    assert not (run.root / "manifest.json").exists()

    again = failed.planned()
    journal = run.journal(again["recipe"], again["shards"][-1]["shard"])
    left = [journal, journal.with_suffix(".log")]
    journal.parent.mkdir(parents=True, exist_ok=True)
    for path in left:
        path.write_bytes(b"of a job that died")
    for path, content in before.items():  # as if the try had been before this plan
        path.write_bytes(content)
    retry([run], ["nan"])
    assert failed.planned() == again
    assert not any(path.exists() for path in left)


def test_what_was_cleaned_away_is_said_to_be(failed):
    failed.merge(max_failed=4)
    shutil.rmtree(failed.run_folder.store / "parts")
    refused(failed.run_folder.root, "failed.fa holds all 4: give it to a run of its own")


@pytest.mark.slow
def test_a_chain_of_retries_and_edits(failed):
    """Where several shards of the last plan hold a record, the later one has it."""
    failed.retry("--reason", "nan")
    failed.compute()
    failed.retry()
    assert len(failed.planned()["shards"]) == 3, "that of nan alone had nothing left"
    edited = [*GOOD[1:], *BAD, ("new", "GGGG")]
    check(failed.run_folder, failed.plan_again(edited), edited)
    failed.cure()
    assert failed.compute() == ["GGGG", "GREEDKL", "NANK", "RAISEK"]
    failed.plan_again(ALL)
    assert failed.compute() == []
    assert failed.merge() == expected(ALL)


def test_planning_again_changes_nothing_after_a_retry(failed):
    retry([failed.run_folder], ["nan"])
    retry([failed.run_folder], ["error"])
    before = failed.run_folder.plan.read_bytes(), failed.run_folder.records.read_bytes()
    failed.plan_again(ALL)
    assert before == (failed.run_folder.plan.read_bytes(), failed.run_folder.records.read_bytes())


def test_a_shard_without_wanted_records_leaves_the_plan(tmp_path, environment):
    run = Run(tmp_path, environment)
    run.plan_again(BAD)
    run.compute()
    run.retry("--reason", "error")
    run.retry()
    assert [shard["wanted"] for shard in run.planned()["shards"]] == [1, 2]
    run.cure()
    run.compute()
    assert run.merge() == expected(BAD)


@pytest.mark.slow
def test_many_failures_make_shards_of_the_usual_size(tmp_path, environment):
    run = Run(tmp_path, environment)
    records = [(f"n{n}", "NAN" + sequence) for n, (_, sequence) in enumerate(random_records(100))]
    run.plan_again(records + GOOD)
    run.compute()
    run.retry()
    assert [shard["cost"] for shard in run.planned()["shards"][-5:]] == [20] * 5
    check(run.run_folder, run.planned(), records + GOOD)
    run.cure()
    assert len(run.compute()) == 100
    assert run.merge() == expected(records + GOOD)


def test_a_shard_that_is_not_finished_is_not_in_it(failed):
    plan = failed.planned()
    pairs = zip(plan["shards"], failed.receipts(plan), strict=True)
    shard = next(shard["shard"] for shard, receipt in pairs if receipt["failed"])
    failed.run_folder.receipt(plan["recipe"], shard).unlink()
    assert "1 of 2 shards is not finished" in failed.retry("--dry-run")


def test_damage_is_found_before_anything_changes(failed):
    plan = failed.planned()
    paths = [failed.run_folder.shard(shard["shard"]) for shard in plan["shards"]]
    (path,) = [path for path in paths if b"GREEDKL" in path.read_bytes()]
    whole = path.read_bytes()
    for damaged in (whole.replace(b"GREEDKL", b"GREEDKK"), whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError, match="its bytes are not those that were written"):
            retry([failed.run_folder], [])
    with pytest.raises(UserError, match="this shard is gone; delete"):
        retry([failed.run_folder], [])
    assert failed.planned() == plan
    failed.run_folder.records.write_bytes(b"")
    with pytest.raises(IntegrityError, match="it does not belong to plan"):
        retry([failed.run_folder], [])


def test_a_run_that_is_being_computed_is_left_alone(failed):
    plan = failed.planned()
    journal = failed.run_folder.journal(plan["recipe"], plan["shards"][0]["shard"])
    with holding(journal.with_suffix(".lock")):
        refused(failed.run_folder.root, "a job is computing shard")
    with holding(failed.folder / ".snakemake" / "featuremill.test.owner"):
        refused(failed.run_folder.root, "a snakemake is computing this run")
    assert failed.planned() == plan
    refused(failed.folder, "there is no planned run here")


DIES = """
import os, sys
from pathlib import Path
from featuremill.plan import retry
from featuremill.store.plan import Plan
from featuremill.store.results import Results
step, count = sys.argv[1], int(sys.argv[2])
place = {"unlink": Path, "write": Plan}.get(step, retry)
whole = getattr(place, step)
def dying(*arguments, **more):
    global count
    count -= 1
    if count < 0:
        os._exit(9)
    return whole(*arguments, **more)
setattr(place, step, dying)
retry.retry([Results(Path("results/test"))], [])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "count"), [("unlink", n) for n in (1, 2, 3, 5, 7)] + [("_move_rows", 0), ("write", 0)]
)
def test_a_death_at_any_step_leaves_a_plan_that_works(failed, step, count):
    """The failed record is retried a second time, so that its shard has the name of the old one."""
    failed.retry()
    failed.compute()
    failed.merge(max_failed=4)
    words = [sys.executable, "-c", DIES, step, str(count)]
    assert subprocess.run(words, cwd=failed.folder, env=failed.environment).returncode == 9
    if not failed.run_folder.plan.exists():  # then Snakemake plans
        failed.plan_again(ALL)
    failed.compute()
    failed.merge(max_failed=4)
    failed.retry()
    failed.finish_cured()


SLOW_DISK = """
import os, sys, time
from featuremill.__main__ import main
fsync = os.fsync
def slow(descriptor):
    time.sleep(0.05)
    fsync(descriptor)
os.fsync = slow
sys.exit(main(["retry", "results/test"]))
"""
"""retry where each file takes a tenth of a second, so that no two are written at one moment."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sigkill_at_twenty_moments(failed):
    """Half of the kills come at any time, the others while the plan is being replaced."""
    rng = random.Random(3)
    began = time.monotonic()
    failed.retry("--dry-run")
    seconds = time.monotonic() - began
    plan, num_without_plan = failed.run_folder.plan, 0
    for number in range(20):
        words = [sys.executable, "-c", SLOW_DISK]
        process = subprocess.Popen(words, cwd=failed.folder, env=failed.environment)
        if number % 2:
            time.sleep(seconds * rng.uniform(0.7, 1.5))
        else:
            wait_for(lambda: not plan.exists())
            time.sleep(rng.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if not plan.exists():
            num_without_plan += 1
            failed.plan_again(ALL)
        failed.compute()
        assert failed.merge(max_failed=4) == expected(GOOD)
    assert num_without_plan >= 5, "too few kills came while the plan was being replaced"
    failed.retry()
    failed.finish_cured()


@pytest.mark.slow
@pytest.mark.parametrize("max_failed", [0, 4])
def test_snakemake_computes_what_is_to_run_again_and_merges_by_itself(
    tmp_path, environment, max_failed
):
    """With max_failed: 4 the results are finished before, and Snakemake has to see that they are
    old."""
    workflow = Workflow(tmp_path, environment, ALL, cure_file="cured")
    more = ("--config", f"max_failed={max_failed}")
    workflow(*more, status=0 if max_failed else 1)
    workflow.news()
    for _ in range(2):  # the second time under the same name
        workflow.verb("retry", "results/test")
        said = workflow(*more, status=0 if max_failed else 1)
        assert sorted(set(workflow.news())) == AGAIN
        assert "distinct records to compute" not in said, "it planned again"
    assert "4 of 44 records" in said or "40 of 44 records have features, 4 failed" in said
    parts = {path: path.read_bytes() for path in workflow.run_folder.store.glob("parts/*/*.arrows")}
    (tmp_path / "cured").touch()
    workflow.verb("retry", "results/test")
    workflow(*more)
    assert sorted(set(workflow.news())) == AGAIN
    assert workflow.counts()["ok"] == 44
    changed = [path for path, content in parts.items() if path.read_bytes() != content]
    assert len(changed) == 1, "that of the new shard"
    assert "Nothing to be done" in workflow(*more)
