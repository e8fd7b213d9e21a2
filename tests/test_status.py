"""status: what is said of a run is so, at any time, and what is to be typed fixes it."""

import argparse
import contextlib
import fcntl
import itertools
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from broken_stores import DAMAGES, damage_of, flipped, input_of, vectors_of
from conftest import NOT_IMPORTED, ROOT
from documents import section
from plans import read_sealed, receipt_json, write_sealed
from programs import Desk, Verbs, wait_for, written

from featuremill.base.errors import UserError
from featuremill.config import project, validate
from featuremill.flow.reruns import rerun_outdated
from featuremill.merge.clean import after_run, check_whole
from featuremill.merge.command import merge, merge_partial
from featuremill.status import view
from featuremill.status.command import run as run_status
from featuremill.status.project import ProjectReader
from featuremill.status.reader import RunReader
from featuremill.store import formats, journal, journal_log, lock_holder, ours, run_lock
from featuremill.store.delivery import Accounts
from featuremill.store.files import sealed, sha256_of
from featuremill.store.receipt import Receipt
from featuremill.store.results import Results

GOOD = [(f"good{n}", "MKV" + "A" * n) for n in range(20)]
DOCUMENT = section(ROOT / "docs" / "json.md", "Status")


def status(verbs, *more, folder="results/test"):
    """Return the verb's exit status and what it prints on both outputs."""
    said = verbs.type("featuremill", "status", folder, *more, status=None)
    assert "Traceback" not in said.err, said.err
    return said


def found(folder, verifies=False):
    """Return the same as the JSON, without a process."""
    return RunReader(folder).inspect(verifies).as_json()


def config_of(cost):
    """Return the config of the run of these tests, by the cost of its shards."""
    keys = {"workload": "composition", "shards": {"cost": cost}, "outputs": ["parquet", "npy"]}
    return validate({"run": "test", "inputs": ["in.fa"], "device": "cpu", **keys})


def start(run, cost=1000):
    """Do what the start of a run does with the files that are out of date."""
    settings = SimpleNamespace(dryrun=False)
    workflow = SimpleNamespace(modifier=NOT_IMPORTED, output_settings=settings)
    with contextlib.chdir(run.root.parents[1]):
        rerun_outdated(workflow, config_of(cost), needs_plan=True)


def page_of(folder):
    """Return the lines for people, without a process."""
    return list(view.lines(ProjectReader(project.runs_of(folder)).inspect()))


def codes(answer):
    return {problem["code"] for problem in answer["problems"] if problem["is_in_the_way"]}


def test_a_shard_is_told_of_from_its_first_batch_to_the_results(verbs):
    hold = verbs.folder / "hold"
    hold.write_text("2")
    plan = verbs.plan(GOOD, "poison", {"hold": str(hold)}, cost=10)
    assert len(plan["shards"]) == 2
    first = plan["shards"][0]["shard"]
    root = verbs.run_folder.root
    before = found(root)
    assert before["shards"]["waiting"] == 2 and before["time_left"] is None
    process = verbs.start("extract", root, first)
    log = verbs.run_folder.journal(plan["recipe"], first).with_suffix(".log")
    wait_for(lambda: log.exists() and "commit" in log.read_text())
    answer = found(root)
    assert process.poll() is None, "it is at the next batch"
    (running,) = answer["running"]
    assert answer["exit_status"] == 1 and answer["is_at_work"]
    assert (running["shard"], running["pid"]) == (first, process.pid)
    assert running["state"] == "running" and running["host"] and running["devices"]
    assert running["committed_batches"] >= 1
    process.kill()
    process.communicate()
    lock = log.with_suffix(".lock")
    wait_for(lambda: not lock_holder.is_held(lock))
    assert lock_holder.read(lock)["pid"] == process.pid, "what it said is left behind"
    hold.unlink()
    commits = log.read_text().count("commit")
    answer = found(root)
    (begun,) = answer["begun"]
    assert answer["running"] == [] and begun["pid"] is None
    with pa.memory_map(str(log.with_suffix(".arrows"))) as source:
        reader = pa.ipc.open_stream(source)
        rows = sum(reader.read_next_batch().num_rows for _ in range(commits))
    assert (begun["committed_batches"], begun["committed_records"]) == (commits, rows)
    _, said, _ = status(verbs)
    assert f"continues from batch {commits + 1}; {rows} of 10 records" in said
    verbs.extract(plan)
    assert lock.read_text() == "", "who ends in order takes back what it said"
    assert found(root)["shards"]["finished"] == 2
    verbs("merge", root, "--outputs", "parquet")
    code, said, _ = status(verbs, "--verify")
    assert code == 0 and said.startswith("results/test: done.")


def test_done_is_said_with_what_has_no_features():
    counts = Accounts(input=12, ok=9, failed=0, refused=3, duplicate=0)
    delivered = SimpleNamespace(delivery=SimpleNamespace(counts=counts))
    state = SimpleNamespace(is_inspected=True, plan=True, exit_status=0, delivery=delivered)
    assert view.summary(state) == "done: 9 of 12 records have features, 3 were refused."
    delivered.delivery.counts = counts.model_copy(update={"ok": 12, "refused": 0})
    assert view.summary(state) == "done."


def test_the_work_of_each_gpu_is_said():
    """By cost, not by the number of shards; an early receipt has no number of its GPU."""
    numbers = {(90, "bbbb1"): {"number": 3}, (20, "aaaa1"): {"number": 0}}

    def shard(cost, *uuids):
        devices = [
            {"kind": "cuda", "uuid": f"GPU-{uuid}", "name": "NVIDIA L4"}
            | numbers.get((cost, uuid), {})
            for uuid in uuids
        ]
        about = {"devices": devices} if devices else {}
        return SimpleNamespace(receipt=Receipt.model_validate(receipt_json(cost=cost, **about)))

    shards = [
        shard(10, "aaaa1"),
        shard(20, "aaaa1"),
        shard(90, "bbbb1"),
        SimpleNamespace(receipt=None),
    ]
    assert view._by_gpu(SimpleNamespace(shards=shards)) == (
        "GPU 3 (bbbb) NVIDIA L4: 1 shard, 75 %; GPU 0 (aaaa) NVIDIA L4: 2 shards, 25 %"
    )
    assert view._by_gpu(SimpleNamespace(shards=[shard(5)])) == ""
    many = [shard(1, f"{n:04}") for n in range(20)]
    assert view._by_gpu(SimpleNamespace(shards=many)).endswith("5 %; 4 more")


def test_a_part_that_waits_for_nothing_is_judged_by_those_before(verbs):
    plan = verbs.plan(GOOD, "poison", {"batch_seconds": 0.1}, cost=5)
    verbs("extract", verbs.run_folder.root, plan["shards"][0]["shard"])
    (receipt,) = [
        json.loads(path.read_text())
        for path in (verbs.run_folder.root / "receipts").glob("*/*.json")
    ]
    rest = found(verbs.run_folder.root)["time_left"]
    seconds = receipt["seconds"]["total"] - receipt["seconds"]["wait"]
    assert rest["job_seconds"] == pytest.approx(3 * seconds)
    assert (rest["jobs"], rest["parts"], rest["seconds"]) == (0, 1, None)


@pytest.fixture(scope="module")
def failed(tmp_path_factory, environment):
    """Return a run whose records failed and were refused for several reasons, not merged yet."""
    verbs = Verbs(tmp_path_factory.mktemp("failed"), environment)
    poison = [("a", "RAISEK"), ("b", "RAISEK"), ("c", "NANK"), ("d", "MK*LL"), ("e", "MK*L")]
    more = [("f", "RAISEKK"), ("g", "RAISEKKK")]
    verbs.extract(verbs.plan([*GOOD, *poison, *more], "poison", cost=10))
    return verbs


def reasons(answer):
    """Return (status, kind, number, examples) by reason."""
    return {
        one["reason"]: (one["status"], one["kind"], one["number"], sorted(one["examples"]))
        for one in answer["reasons"]
    }


def test_reasons_come_with_ids_and_what_to_do(failed):
    answer = found(failed.run_folder.root)
    told = reasons(answer)
    assert told["error in the workload"][:3] == ("failed", "error", 4), "two ids of one sequence"
    assert len(told["error in the workload"][3]) == 3
    assert set(told["error in the workload"][3]) <= {"a", "b", "f", "g"}
    assert told["values are missing or not finite"] == ("failed", "nan", 1, ["c"])
    assert told["stop codon (*) inside the sequence"] == ("refused", "stop", 2, ["d", "e"])
    assert all(one["remedy"] for one in answer["reasons"])
    assert answer["failed"] == 5
    assert (answer["exit_status"], codes(answer)) == (1, {"failed"})
    _, said, _ = status(failed)
    assert "4 records: error in the workload" in said
    assert "→ featuremill retry results/test --reason nan" in said


@pytest.fixture
def failed_and_merged(failed, tmp_path):
    """Return a copy of that run's folder with its results, to be damaged at will."""
    shutil.copytree(failed.folder, tmp_path, dirs_exist_ok=True)
    run = Results(tmp_path / "results" / "test")
    merge(run, ["parquet"], 5)
    return run


def test_results_with_failures_end_with_2_whether_their_parts_are_there_or_not(failed, tmp_path):
    shutil.copytree(failed.folder, tmp_path, dirs_exist_ok=True)
    verbs = Verbs(tmp_path, failed.environment)
    root = verbs.run_folder.root
    before = reasons(found(root))
    refused = ["merge", root, "--outputs", "parquet", "--max-failed"]
    verbs(*refused, "4", status=2)
    assert found(root)["next"][0] == f"featuremill retry {root}"
    verbs(*refused, "5")
    code, said, _ = status(verbs, "--json")
    assert (code, json.loads(said)["state"]) == (2, "done_with_failures")
    assert reasons(json.loads(said)) == before
    shutil.rmtree(root / "store" / "parts")
    shutil.rmtree(root / "receipts")
    answer = found(root)
    assert answer["exit_status"] == 2
    assert answer["shards"]["removed"] == answer["shards"]["total"] > 1
    assert answer["next"] == [], "retry reads the parts"
    assert {reason: told[:3] for reason, told in reasons(answer).items()} == {
        reason: told[:3] for reason, told in before.items()
    }
    (root / "embeddings.parquet").unlink()
    answer = found(root)
    assert answer["exit_status"] == 1 and answer["shards"]["waiting"] > 1


@pytest.fixture(scope="module")
def merged(tmp_path_factory, environment):
    """Return the verbs of a run that is done."""
    verbs = Verbs(tmp_path_factory.mktemp("merged"), environment)
    verbs.extract(verbs.plan([(f"r{n}", "ACDE" * (n + 1)) for n in range(30)], cost=1000))
    verbs("merge", verbs.run_folder.root, "--outputs", "parquet", "npy")
    return verbs


@pytest.fixture
def run(merged, tmp_path):
    """Return a copy of that run's folder, to be damaged at will."""
    shutil.copytree(merged.folder, tmp_path, dirs_exist_ok=True)
    return Results(tmp_path / "results" / "test")


def first(run, pattern):
    return sorted(run.root.glob(pattern))[0]


VERBS_AGAIN = {
    "output_missing": "merge",
    "output_damaged": "merge",
    "manifest_damaged": "merge",
    "part_missing": "extract",
    "part_damaged": "extract",
    "receipt_damaged": "extract",
    "records_missing": "plan",
    "input_changed": "plan",
}
COMMAND = "featuremill run YOUR.yaml"
"""Of a run of which nobody knows who computed it."""


def check_that_it_is_said(answer, code, command):
    assert (answer["exit_status"], codes(answer)) == (1, {code})
    (problem,) = answer["problems"]
    assert problem["what"].endswith(".")
    assert answer["next"] == problem["commands"] == [command]
    assert f"`{code}`" in DOCUMENT


def named(damage):
    return damage.name


@pytest.mark.parametrize("damage", [one for one in DAMAGES if one.seen], ids=named)
def test_what_is_not_whole_any_more_is_not_done(run, damage):
    """And the start of the run leaves nothing that Snakemake would take for done: the plain command
    fixes it. What is newer than the plan Snakemake sees by itself."""
    assert found(run.root)["exit_status"] == 0
    damage.harm(run)
    check_that_it_is_said(found(run.root), damage.seen, COMMAND)
    num_receipts = len(list(run.root.glob("receipts/*/*.json")))
    is_newer = input_of(run).stat().st_mtime > run.plan.stat().st_mtime
    is_planned_again = VERBS_AGAIN[damage.seen] == "plan" and not is_newer
    start(run)
    assert (run.root / "manifest.json").exists() == is_newer
    assert run.plan.exists() != is_planned_again
    left = len(list(run.root.glob("receipts/*/*.json")))
    assert num_receipts - left == (VERBS_AGAIN[damage.seen] == "extract")


def test_a_start_changes_nothing_of_a_run_that_is_whole_or_cannot_be_read(run, tmp_path):
    def state():
        files = [path for path in run.root.rglob("*") if path.is_file()]
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in files}

    before = state()
    start(run)
    assert state() == before
    run.plan.write_text('{"run": ')
    before = state()
    start(run)
    assert state() == before


def test_an_input_that_was_replaced_by_an_older_one_is_planned_again(run):
    """Snakemake goes by times of files, and a copy may keep an old one."""
    damage_of("input appended to").harm(run)
    os.utime(input_of(run), (1e9, 1e9))
    check_that_it_is_said(found(run.root), "input_changed", COMMAND)
    start(run)
    assert not run.plan.exists()


@pytest.mark.parametrize("damage", [one for one in DAMAGES if one.verified], ids=named)
def test_what_a_quick_look_misses_verify_finds(run, damage):
    damage.harm(run)
    assert found(run.root)["exit_status"] == 0
    command = f"{COMMAND} --forcerun {VERBS_AGAIN[damage.verified]}"
    check_that_it_is_said(found(run.root, verifies=True), damage.verified, command)


def test_a_folder_of_results_is_verified_file_by_file(run):
    merge(run, ["parquet_dataset"], 0)
    (run.root / "embeddings" / ".snakemake_timestamp").touch()  # as Snakemake does
    assert found(run.root, verifies=True)["exit_status"] == 0
    part = run.root / "embeddings" / "part-00000.parquet"
    part.touch()
    assert found(run.root)["exit_status"] == 0
    flipped(lambda _: part, 0.5)(run)
    assert codes(found(run.root)) == {"output_damaged"}


def test_another_result_of_the_same_size_is_not_done(run):
    path = vectors_of(run)
    result = path.read_bytes()
    ours.discard(path)
    with ours.delivering(path) as temporary:
        temporary.write_bytes(result[:-1] + bytes([result[-1] ^ 1]))
    assert codes(found(run.root)) == {"output_damaged"}
    path.write_bytes(result)
    assert found(run.root)["exit_status"] == 0


def test_records_of_another_plan_are_not_those_of_the_plan(run):
    records = run.records.read_bytes()
    run.records.write_bytes(records[:20] + bytes([records[20] ^ 1]) + records[21:])
    assert codes(found(run.root)) == {"records_missing"}
    problems = RunReader(run.root, config=config_of(1000)).needing_rerun()
    assert [problem.fix.again for problem in problems] == ["plan"]
    run.records.write_bytes(records)
    assert found(run.root)["exit_status"] == 0


def test_another_list_of_failures_of_the_same_size_is_not_done(run):
    path = run.root / "failed.tsv"
    text = path.read_bytes()
    path.write_bytes(text[:-2] + b"?" + text[-1:])
    assert codes(found(run.root)) == {"output_damaged"}
    path.write_bytes(text)
    assert found(run.root)["exit_status"] == 0


def test_verify_finds_bytes_that_changed_without_a_write(run):
    path = vectors_of(run)
    line = {"name": path.name, "sha256": sha256_of(path)}
    damage_of("vectors' middle").harm(run)
    with (run.root / formats.RECORD).open("a") as record:
        record.write(json.dumps({**line, "seen": ours.looks(path)}) + "\n")
    assert found(run.root)["exit_status"] == 0
    command = f"{COMMAND} --forcerun merge"
    check_that_it_is_said(found(run.root, verifies=True), "output_damaged", command)


def test_a_touched_or_archived_input_changes_nothing(run):
    source = run.root.parents[1] / "in.fa"
    later = time.time() + 5
    os.utime(source, (later, later))
    assert found(run.root)["exit_status"] == 0
    source.unlink()
    answer = found(run.root)
    assert answer["exit_status"] == 0
    assert [problem["code"] for problem in answer["problems"]] == ["input_missing"]


def test_results_of_an_earlier_plan_are_not_done(run, environment):
    verbs = Verbs(run.root.parents[1], environment)
    plan = verbs.plan([(f"r{n}", "ACDE" * (n + 1)) for n in range(29)], cost=700)
    answer = found(run.root)
    assert (answer["exit_status"], answer["merged"]) == (1, "older")
    verbs.extract(plan)
    check = found(run.root)
    assert codes(check) == {"results_older"} and check["next"] == [COMMAND]
    os.utime(run.plan, (1e9, 1e9))  # as a copy may have it
    start(run, cost=700)
    older = run.root / "manifest.json"
    assert run.plan.stat().st_mtime_ns > older.stat().st_mtime_ns, "so that merge runs"


def test_a_quick_look_knows_whole_results_whose_parts_were_removed(run):
    after_run(run.root, "results")
    state = RunReader(run.root).poll()
    assert state.share == 1 and state.count("removed") == len(state.shards) > 0
    edit(run.plan, run="other")  # then they are of an earlier plan
    assert RunReader(run.root).poll().share == 0


def test_every_verb_takes_the_same_results_for_those_of_the_plan(run):
    assert not merge_partial(run, ["npy"]).partial
    edit(run.plan, run="other")
    assert found(run.root)["merged"] == "older"
    with pytest.raises(UserError, match="these results are not those of plan"):
        check_whole(run)
    assert merge_partial(run, ["npy"]).partial


def test_weights_that_are_gone_matter_while_there_is_work(run):
    plan = read_sealed(run.plan)
    plan["weights"] = "weights/m.json"
    plan["settings"]["weights_sha256"] = "abc"
    plan["settings"]["options"]["model"] = "m"
    times = run.plan.stat()
    write_sealed(run.plan, plan)
    os.utime(run.plan, ns=(times.st_atime_ns, times.st_mtime_ns))
    weights = run.root.parents[1] / "weights"
    weights.mkdir()
    assert found(run.root)["exit_status"] == 0
    first(run, "store/parts/*/*.arrows").unlink()
    assert codes(found(run.root)) == {"part_missing", "weights_missing"}
    entry = {"name": "m", "path": str(weights / "m.safetensors"), "bytes": 3, "sha256": "abc"}
    entry["metadata"] = {}
    (weights / "m.json").write_text(json.dumps(entry))
    answer = found(run.root)
    assert codes(answer) == {"part_missing", "weights_missing"}
    assert answer["next"][0] == f"rm {weights / 'm.json'}"
    (weights / "m.safetensors").write_text("abc")
    assert codes(found(run.root)) == {"part_missing"}
    (weights / "m.json").write_text(json.dumps(entry | {"sha256": "other"}))
    assert codes(found(run.root)) == {"part_missing", "weights_changed"}


def test_partial_results_are_called_so(run):
    (run.root / "partial" / "embeddings").mkdir(parents=True)
    (run.root / "partial" / "embeddings.parquet").touch()
    (run.root / "partial" / ".embeddings.npy.abcd1234").touch()
    answer = found(run.root)
    partial = ["partial/embeddings", "partial/embeddings.parquet"]
    assert answer["partial"] == partial and answer["exit_status"] == 0
    assert any("partial/embeddings.parquet: what was" in line for line in page_of(run.root))


def test_without_snakemake_the_verbs_are_named_and_mend(run, environment, monkeypatch):
    monkeypatch.chdir(run.root.parents[1])
    elsewhere = run.root.parents[1] / "mine"
    run.root.rename(elsewhere)
    run = Results(elsewhere)
    first(run, "store/parts/*/*.arrows").unlink()
    (run.root / "embeddings.npy").unlink()
    answer = found(run.root)
    assert codes(answer) == {"part_missing", "output_missing"}
    assert [command.split()[1] for command in answer["next"]] == ["extract", "merge"]
    for command in answer["next"]:
        Desk(run.root.parent, environment).type(*command.split())
    assert found(run.root, verifies=True)["exit_status"] == 0


def test_what_is_no_run_is_one_sentence(verbs):
    (verbs.folder / "empty").mkdir()
    planless = verbs.folder / "results" / "planless"
    (planless / "store").mkdir(parents=True)
    damaged = {"cut": '{"run": ', "else": '{"run": "x"}', "list": "[]", "bytes": "\0\0"}
    for name, text in damaged.items():
        (verbs.folder / name).mkdir()
        (verbs.folder / name / "plan.json").write_text(text)
    (verbs.folder / "folder" / "plan.json").mkdir(parents=True)
    for name in ("nothing", "empty", *damaged, "folder"):
        code, stdout, stderr = status(verbs, "--json", folder=name)
        assert (code, stdout, stderr.count("\n")) == (2, "", 1), name
        assert stderr.startswith(f"  status │ error: {name}") or "plan.json" in stderr
    code, stdout, _ = status(verbs, folder="results/planless")
    assert code == 1 and "there is no plan yet" in stdout
    assert f"  {COMMAND}\n" in stdout
    with (planless / "store" / "plan.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        page = page_of(planless)
        assert "planning now." in page[:2] and "Type next, when that has ended" in page
        assert found(planless)["is_planning"] and found(planless)["exit_status"] == 1


def test_a_plan_and_a_report_that_failed_are_told_of(verbs):
    results, logs = verbs.run_folder.root, verbs.run_folder.logs
    (results / "store").mkdir(parents=True)
    config = json.dumps({"run": "test", "inputs": ["gone.fa"], "workload": "composition"})
    planned = ("plan", results, "--config", written(config), "--log-file", logs / "plan.log")
    verbs(*planned, status=2)
    code, stdout, _ = status(verbs)
    assert code == 1 and "there is no plan: the last one failed." in stdout
    said = " ".join(stdout.split())
    assert "gone.fa: this file does not exist" in said
    assert "The log: results/test/logs/plan.log" in said
    assert [one["code"] for one in found(results)["problems"]] == ["plan_failed"]
    records = [(f"p{n}", "MKV" * n) for n in range(1, 7)]
    plan = verbs.plan(records, more=("--log-file", logs / "plan.log"))
    verbs.extract(plan)
    verbs("merge", results)
    assert not found(results)["problems"]
    drawn = ("report", results, "--log-file", logs / "report.log")
    verbs(*drawn, "--label-file", "gone.tsv", "--label", "x", status=2)
    code, stdout, _ = status(verbs)
    assert code == 0 and "the last report failed: gone.tsv: this file does not exist" in stdout
    verbs(*drawn)
    assert not found(results)["problems"]


@pytest.mark.parametrize("pattern", ["plan.json", "manifest.json", "receipts/*/*.json"])
def test_whatever_stands_in_a_file_there_is_no_traceback(failed_and_merged, pattern):
    path, path_of_run = first(failed_and_merged, pattern), failed_and_merged.root
    content = json.loads(path.read_text())
    codes_found = set()
    for key, wrong in itertools.product(content, (None, "x", [None], {"x": None}, -1)):
        path.write_text(json.dumps(content | {key: wrong}))
        for is_json in (True, False):
            asked = argparse.Namespace(run_folder=path_of_run, verify=False, json=is_json)
            try:
                codes_found.add(run_status(asked))
            except UserError as error:
                assert "\n" not in str(error)
                codes_found.add("refused")
    assert codes_found <= {0, 1, 2, "refused"} and len(codes_found) > 1


def test_a_manifest_that_cannot_be_read_is_a_problem(failed_and_merged):
    failed_and_merged.records.write_bytes(b"PAR1")
    answer = found(failed_and_merged.root)
    assert codes(answer) == {"records_missing"}
    assert reasons(answer)["values are missing or not finite"] == ("failed", "nan", 1, [])


def keys_of(value):
    """Yield every key of a JSON value, without those of plan.json's and manifest.json's objects."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            if key not in ("input", "outputs"):
                yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


def test_every_key_is_documented_and_always_there(failed, run):
    with_reasons, done = found(failed.run_folder.root), found(run.root)
    assert set(with_reasons) == set(done)
    assert f"| `version` | {done['version']} |" in DOCUMENT and done["version"] == 2
    first(run, "receipts/*/*.json").write_text("")
    for answer in (with_reasons, done, found(run.root)):
        assert {key for key in keys_of(answer) if f"`{key}`" not in DOCUMENT} == set()


def test_the_page_is_within_80_columns(failed, run):
    first(run, "store/parts/*/*.arrows").unlink()
    for folder in (failed.run_folder.root, run.root):
        page = page_of(folder)
        folders = [line for line in page if str(folder) not in line]
        assert len(folders) > 10
        told = [line for line in folders if not re.search("snakemake -|featuremill run ", line)]
        assert [line for line in told if len(line) > 80] == []


def test_what_somebody_elsewhere_said_is_told_as_that(run):
    """The lock of a job on another machine need not be seen here."""
    part = first(run, "store/parts/*/*.arrows")
    recipe, shard = part.parent.name, part.stem
    part.unlink()
    run.receipt(recipe, shard).unlink()
    lock = run.journal(recipe, shard).with_suffix(".lock")
    with lock.open("a") as file, lock_holder.recorded(file.fileno()):
        lock_holder.say(file.fileno(), devices=["a GPU"])
        here = lock.read_text()
    assert lock.read_text() == ""
    lock.write_text(here)
    assert found(run.root)["shards"]["unclear"] == 0, "a lock that is not held says nothing"
    facts = json.loads(here.splitlines()[0])
    lock.write_text(here.replace(json.dumps(facts["host"]), '"elsewhere"'))
    answer = found(run.root)
    assert answer["shards"]["unclear"] == 1 and answer["exit_status"] == 1
    (shown,) = answer["running"]
    assert (shown["host"], shown["devices"]) == ("elsewhere", ["a GPU"])
    assert any("its lock cannot be" in line for line in page_of(run.root))


HAMMER = """
import sys
from pathlib import Path
from featuremill.store import lock_holder
print("ready", flush=True)
while True:
    lock_holder.is_held(Path(sys.argv[1]))
"""


def test_looking_never_makes_a_snakemake_be_refused(tmp_path, environment):
    run = tmp_path / "results" / "test"
    run_lock.claim(run).close()
    command = [sys.executable, "-c", HAMMER, str(run_lock.path_of(run))]
    looks = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert looks.stdout.readline() == "ready\n"
        for _ in range(300):
            run_lock.claim(run).close()
    finally:
        looks.kill()
        looks.communicate()
    with run_lock.claim(run):
        assert lock_holder.is_held(run_lock.path_of(run))
        with pytest.raises(BlockingIOError):
            run_lock.claim(run)
    assert not lock_holder.is_held(run_lock.path_of(run))


def test_rows_are_counted_from_the_log(tmp_path):
    schema = journal.part_schema(pa.schema({"x": pa.list_(pa.float32(), 3)}))
    path, sizes = tmp_path / "j.arrows", [1, 7, 64, 3]
    opened = journal.Journal(path, schema, 10)
    for number, size in enumerate(sizes):
        columns = [
            pa.array([bytes([number, row]) + bytes(30) for row in range(size)], pa.binary(32)),
            pa.array(["ok"] * size),
            pa.nulls(size, pa.string()),
            pa.array([[1.0, 2.0, 3.0]] * size, schema.field("x").type),
        ]
        opened.commit(pa.record_batch(columns, schema=schema))
    opened.close()
    log = path.with_suffix(".log")
    state = journal_log.read_log(log)
    ends = [commit.end for commit in state.commits]
    assert [state._replace(commits=state.commits[:n]).num_rows(path) for n in range(5)] == [
        0, 1, 8, 72, 75,
    ]  # fmt: skip
    assert journal_log.num_rows_in(path) == 75
    os.truncate(path, ends[3] - 1)
    assert state.num_rows(path) == 72 == journal_log.num_rows_in(path)
    assert state.num_rows(tmp_path / "none") == 0 == journal_log.num_rows_in(tmp_path / "none")


def edit(path, **changes):
    """Change what a JSON file says, and not when it was written."""
    times = path.stat()
    value = {**json.loads(path.read_text()), **changes}
    value.pop("seal", None)
    path.write_text(json.dumps(value))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def many(run, number):
    """Make the run one of so many shards, all with a receipt."""
    plan = read_sealed(run.plan)
    recipe = plan["recipe"]
    receipt = read_sealed(first(run, "receipts/*/*.json"))
    plan["shards"] = [plan["shards"][0] | {"shard": f"{n:032x}"} for n in range(number)]
    for shard in plan["shards"]:
        text = json.dumps(sealed(receipt | {"shard": shard["shard"]}), indent=2)
        run.receipt(recipe, shard["shard"]).write_text(text)
        run.part(recipe, shard["shard"]).touch()
        run.journal(recipe, shard["shard"]).with_suffix(".lock").touch()
    write_sealed(run.plan, plan)


@pytest.mark.slow
def test_ten_thousand_shards_cost_a_second(run, environment):
    many(run, 10_000)
    verbs = Verbs(run.root.parents[1], environment)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code, said, _ = status(verbs)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert code == 1 and re.search(r"10,000 finished \([\d,]+ rows, 100.0 % of the work", said)
    # The processor's time: the clock's is longer on a machine with other work.
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 1.5


@pytest.mark.slow
def test_a_snakemake_is_told_of_and_its_command_mends(tmp_path, environment):
    config = {"run": "test", "inputs": "in.fa", "workload": "poison", "device": "cpu"}
    config |= {"shards": {"cost": 10}, "options": {"batch_seconds": 0.3}}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    (tmp_path / "in.fa").write_text("".join(f">{id}\n{sequence}\n" for id, sequence in GOOD))
    bin_folder = Path(sys.executable).parent
    environment = environment | {"PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    typed = f"snakemake --snakefile {shlex.quote(str(ROOT / 'Snakefile'))}"
    typed += " --configfile config.yaml --cores 2"
    process = subprocess.Popen(shlex.split(typed), cwd=tmp_path, env=environment)
    verbs = Verbs(tmp_path, environment)
    run = verbs.run_folder
    wait_for(lambda: list(run.store.glob("journals/*/*.log")))
    code, said, _ = status(verbs, "--json")
    answer = json.loads(said)
    assert (code, answer["is_at_work"], answer["next"]) == (1, True, [])
    assert answer["snakemake"]["is_running"] and answer["snakemake"]["pid"] == process.pid
    assert process.wait(120) == 0
    assert status(verbs, "--verify")[0] == 0
    first(run, "store/parts/*/*.arrows").unlink()
    damage_of("vectors' middle").harm(run)
    code, said, _ = status(verbs, "--verify", "--json")
    (command,) = json.loads(said)["next"]
    assert command == typed, "its start sees that the results were changed"
    subprocess.run(command, shell=True, cwd=tmp_path, env=environment, check=True)
    assert status(verbs, "--verify")[0] == 0
    damage_of("input's middle").harm(run)
    code, said, _ = status(verbs, "--verify", "--json")
    (command,) = json.loads(said)["next"]
    assert command == typed, "its start sees that the input came after the plan"
    subprocess.run(command, shell=True, cwd=tmp_path, env=environment, check=True)
    assert status(verbs, "--verify")[0] == 0


@pytest.mark.parametrize("verb", ["command", "top"])
def test_help_does_not_wait_for_what_reads_configs(verb):
    code = f"import sys, featuremill.status.{verb}; assert 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
