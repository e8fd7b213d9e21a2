"""extract: whatever a record, a device or a person does to a worker, no other record suffers."""

import os
import random
import signal
import time

import pyarrow as pa
import pytest

from featuremill import supervisor
from featuremill.extract import Extraction
from featuremill.reasons import kind_of
from featuremill.store import read_sealed, write_sealed

GOOD = [(f"good{n}", "MKV" + "A" * n) for n in range(20)]


def rows(verbs, plan):
    """Return the part's rows by their sequence's length, of a plan with one shard."""
    (shard,) = plan["shards"]
    path = verbs.run_folder.part(plan["recipe"], shard["shard"])
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_stream(source).read_all().to_pylist()


@pytest.mark.parametrize(
    ("poison", "reason", "retries"),
    [
        ("CRASHA", "crashed the worker twice: was killed by SIGABRT", 2),
        ("SEGVA", "crashed the worker twice: was killed by SIGSEGV", 2),
        ("QUITA", "crashed the worker twice: left with status 1", 2),
        ("RAISEA", "error in the workload: ValueError: I don't like RAISEA", 0),
        ("NANA", "values are missing or not finite: try a wider dtype", 0),
        ("GREEDA", "out of memory: MemoryError", 0),
        ("LATECRASHA", "crashed the worker twice: was killed by SIGABRT", 2),
        ("LATERAISEA", "error in the workload: ValueError: I don't like RAISEA", 0),
    ],
)
def test_a_poison_record_fails_alone(verbs, poison, reason, retries):
    plan = verbs.plan([*GOOD, ("bad", poison)], "poison")
    verbs.extract(plan)
    (receipt,) = verbs.receipts(plan)
    assert (receipt["ok"], receipt["failed"], receipt["retries"]) == (20, 1, retries)
    found = rows(verbs, plan)
    (failed,) = [row for row in found if row["status"] == "failed"]
    assert failed["reason"].startswith(reason)
    assert failed["letters"] is None
    good = sorted(row["letters"][0] for row in found if row["status"] == "ok")
    assert good == [float(len(sequence)) for _, sequence in GOOD]


@pytest.mark.parametrize("poison", ["HANGA", "GILA", "LATEHANGA", "LATEGILA"])
def test_a_hang_is_ended_with_a_stack_and_fails_alone(verbs, poison):
    plan = verbs.plan([*GOOD, ("bad", poison)], "poison")
    said = verbs.extract(plan, 0, "--stall-seconds", "1")
    (receipt,) = verbs.receipts(plan)
    assert (receipt["ok"], receipt["failed"], receipt["retries"]) == (20, 1, 2)
    assert "Timeout" in said and "featuremill_poison.py" in said
    (reason,) = (row["reason"] for row in rows(verbs, plan) if row["status"] == "failed")
    assert reason.startswith("hung the worker twice: was ended, as it hung (the log has the stack")
    assert kind_of(reason).name == "hang"


def test_one_death_condemns_no_record(verbs):
    """Not even of a record that was alone on the device: it may have been anybody's doing."""
    crashes = verbs.folder / "crashes"
    crashes.touch()
    options = {"batch_records": 1, "crash_file": str(crashes)}
    plan = verbs.plan([("unlucky", "CRASHA")], "poison", options)
    verbs.extract(plan)
    (receipt,) = verbs.receipts(plan)
    assert (receipt["ok"], receipt["failed"], receipt["retries"]) == (1, 0, 1)


def test_workers_that_die_on_everything_are_not_started_for_ever(verbs):
    """Where no batch comes through, a device or a workload is at fault, and not 30 records."""
    records = [(str(n), "CRASH" + "A" * n) for n in range(30)]
    plan = verbs.plan(records, "poison", {"batch_records": 1})
    said = verbs.extract(plan, 3)
    assert "11 workers died in a row: was killed by SIGABRT" in said
    assert said.count("starting another") == 10


def test_other_weights_than_the_planned_ones_are_refused(verbs):
    verbs("weights", "mill_t6_8M", "--output", "weights/mill_t6_8M.json")
    options = {"model": "mill_t6_8M"}
    plan = verbs.plan(GOOD, "esm2", options, 1000, ["--weights", "weights/mill_t6_8M.json"])
    path = verbs.folder / "weights" / "mill_t6_8M.json"
    write_sealed(path, {**read_sealed(path), "sha256": "0" * 64})
    said = verbs.extract(plan, 2)
    assert "weights/mill_t6_8M.json: these are other weights than those the run was planned" in said


def test_two_poison_records_in_one_shard(verbs):
    records = [*GOOD, ("bad", "CRASHA"), ("worse", "SEGVAA"), ("odd", "RAISEK")]
    plan = verbs.plan(records, "poison")
    verbs.extract(plan)
    (receipt,) = verbs.receipts(plan)
    assert (receipt["ok"], receipt["failed"]) == (20, 3)


def test_out_of_memory_halves_the_batch_and_fails_nothing(verbs):
    plan = verbs.plan([*GOOD, ("big", "EATA")], "poison", {"batch_records": 8})
    verbs.extract(plan)
    (receipt,) = verbs.receipts(plan)
    assert (receipt["ok"], receipt["failed"]) == (21, 0)
    assert receipt["oom_splits"] == 3


@pytest.mark.parametrize("poison", ["STICKYA", "LATESTICKYA"])
def test_a_device_error_costs_no_record(verbs, poison):
    broken = verbs.folder / "broken"
    broken.touch()
    plan = verbs.plan([*GOOD, ("x", poison)], "poison", {"sticky_file": str(broken)})
    said = verbs.extract(plan)
    (receipt,) = verbs.receipts(plan)
    assert (receipt["ok"], receipt["failed"], receipt["retries"]) == (21, 0, 1)
    assert "gave up its device" in said


def test_a_killed_supervisor_takes_its_worker_along_and_resumes_by_the_batch(verbs):
    computed = verbs.folder / "computed.txt"
    options = {"batch_seconds": 0.3, "computed": str(computed)}
    plan = verbs.plan(GOOD, "poison", options)
    shard = plan["shards"][0]["shard"]
    journal = verbs.run_folder.journal(plan["recipe"], shard)
    process = verbs.start("extract", verbs.run_folder.root, shard)
    deadline = time.monotonic() + 60
    log = journal.with_suffix(".log")
    while not (log.exists() and log.read_text().count("commit") == 2):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate()
    size = -1
    while size != (size := computed.stat().st_size) or time.monotonic() > deadline:
        time.sleep(0.7)
    said = verbs.extract(plan)
    assert "2 of 5 batches resumed" in said
    (receipt,) = verbs.receipts(plan)
    assert (receipt["ok"], receipt["failed"], receipt["retries"]) == (20, 0, 0)
    attempts = computed.read_text().splitlines()
    assert set(attempts) == {sequence for _, sequence in GOOD}
    assert len(attempts) - len(set(attempts)) <= 4, "at most the batch in flight is computed again"


def part_of(verbs, plan):
    (shard,) = plan["shards"]
    return verbs.run_folder.part(plan["recipe"], shard["shard"])


def test_the_next_batch_runs_while_the_last_is_collected(verbs):
    """8 batches of 0.3 s and 0.3 s: 4.8 s one after the other, 2.7 s overlapped."""
    options = {"batch_seconds": 0.3, "collect_seconds": 0.3, "batch_records": 3}
    records = [(str(n), "MKV" + "L" * n) for n in range(24)]
    plan = verbs.plan(records, "poison", options)
    verbs.extract(plan)
    (receipt,) = verbs.receipts(plan)
    seconds = receipt["seconds"]
    assert receipt["batches"] == 8
    assert seconds["run"] < 3.6, "what overlaps counts once"
    assert seconds["total"] - seconds["load"] - seconds["wait"] < 4.8
    slow = part_of(verbs, plan).read_bytes()
    plan = verbs.plan(
        [(str(n), "MKV" + "L" * n) for n in range(24)], "poison", {"batch_records": 3}
    )
    verbs.extract(plan)
    assert part_of(verbs, plan).read_bytes() == slow, "the rows have one order"


def test_who_kills_a_worker_may_be_about_to_kill_its_job(verbs, monkeypatch):
    """A scheduler kills all of a job, one process after the other: no record is struck for that."""

    def sleep(seconds):
        if seconds == supervisor.LAST_MOMENT_SECONDS:
            raise SystemExit("the job is killed now")
        asleep(seconds)

    plan = verbs.plan([("only", "KILLA")], "poison")
    asleep = time.sleep
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setenv("PYTHONPATH", verbs.environment["PYTHONPATH"])
    (shard,) = plan["shards"]
    job = Extraction(verbs.run_folder, plan, shard["shard"], 1, 600)
    with pytest.raises(SystemExit, match="the job is killed now"):
        job.finish()
    log = verbs.run_folder.journal(plan["recipe"], shard["shard"]).with_suffix(".log").read_text()
    assert "begin 0" in log and "strike" not in log


@pytest.mark.parametrize("poison", ["RAISEA", "LATERAISEA"])
def test_a_failure_leaves_the_order_of_rows(verbs, poison):
    records = [*GOOD, ("bad", poison)]
    found = []
    for late in (0.0, 0.2):
        plan = verbs.plan(records, "poison", {"collect_seconds": late})
        verbs.extract(plan)
        found.append(part_of(verbs, plan).read_bytes())
        computed = [row["sha256"] for row in rows(verbs, plan)]
    assert found[0] == found[1]
    assert computed[1:] == sorted(computed[1:]), "but for the first batch, which tells the speed"


def test_kills_at_any_moment_change_no_byte(verbs):
    options = {"batch_seconds": 0.02, "collect_seconds": 0.04, "batch_records": 2}
    records = [(str(n), "MKV" + "L" * n) for n in range(60)]
    whole = verbs.plan(records, "poison", options)
    verbs.extract(whole)
    expected = part_of(verbs, whole).read_bytes()
    part_of(verbs, whole).unlink()
    rng = random.Random(7)
    shard = whole["shards"][0]["shard"]
    journal = verbs.run_folder.journal(whole["recipe"], shard)
    log = journal.with_suffix(".log")
    num_kills = 0
    for num_commits in (1, 7, 15, 24):
        process = verbs.start("extract", verbs.run_folder.root, shard, start_new_session=True)
        while process.poll() is None and not (
            log.exists() and log.read_text().count("commit") >= num_commits
        ):
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.06))
        num_kills += process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert "strike" not in log.read_text()
    said = verbs.extract(whole)
    assert num_kills == 4 and "batches resumed" in said
    assert part_of(verbs, whole).read_bytes() == expected


def test_two_batches_in_flight_when_a_worker_dies_are_both_tried_alone(verbs):
    """The device's orders are given ahead: whose fault it was, nobody can tell."""
    computed = verbs.folder / "computed.txt"
    options = {"collect_seconds": 0.5, "computed": str(computed), "batch_records": 5}
    plan = verbs.plan([*GOOD, ("bad", "LATECRASHK")], "poison", options)
    verbs.extract(plan)
    (receipt,) = verbs.receipts(plan)
    assert (receipt["ok"], receipt["failed"], receipt["retries"]) == (20, 1, 2)
    journal = verbs.run_folder.journal(plan["recipe"], plan["shards"][0]["shard"])
    assert not journal.with_suffix(".log").exists()
    attempts = computed.read_text().splitlines()
    assert attempts.count("LATECRASHK") == 2
    assert set(attempts) == {sequence for _, sequence in [*GOOD, ("", "LATECRASHK")]}
    assert sum(attempts.count(sequence) == 2 for sequence in set(attempts)) == 10
    assert max(map(attempts.count, attempts)) == 2


def test_a_full_disk_ends_the_job_and_loses_nothing_that_was_written(verbs):
    records = [(str(n), "MKV" + "L" * n) for n in range(200)]
    full = verbs.folder / "full.txt"
    plan = verbs.plan(records, "poison", {"file_bytes": 6000, "full": str(full)})
    shard = plan["shards"][0]["shard"]
    full.touch()
    said = verbs("extract", verbs.run_folder.root, shard, status=1)
    assert "File too large" in said and "starting another" not in said
    log = verbs.run_folder.journal(plan["recipe"], shard).with_suffix(".log").read_text()
    assert log.count("commit") > 3 and "strike" not in log
    full.unlink()
    assert "batches resumed" in verbs.extract(plan)
    assert verbs.receipts(plan)[0]["ok"] == 200
    resumed = part_of(verbs, plan).read_bytes()
    part_of(verbs, plan).unlink()
    verbs.extract(plan)
    assert part_of(verbs, plan).read_bytes() == resumed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_a_run_is_held_against_no_record(verbs, number):
    plan = verbs.plan(GOOD, "poison", {"batch_seconds": 0.4})
    shard = plan["shards"][0]["shard"]
    log = verbs.run_folder.journal(plan["recipe"], shard).with_suffix(".log")
    process = verbs.start("extract", verbs.run_folder.root, shard, start_new_session=True)
    while not (log.exists() and "commit" in log.read_text()):
        time.sleep(0.01)
    os.killpg(process.pid, number)
    _, stderr = process.communicate(timeout=10)
    assert process.returncode == 128 + number
    assert "Traceback" not in stderr
    assert "strike" not in log.read_text()
    verbs.extract(plan)
    assert verbs.receipts(plan)[0]["failed"] == 0


def test_two_jobs_for_one_shard_compute_it_once(verbs):
    computed = verbs.folder / "computed.txt"
    plan = verbs.plan(GOOD, "poison", {"batch_seconds": 0.1, "computed": str(computed)})
    shard = plan["shards"][0]["shard"]
    both = [verbs.start("extract", verbs.run_folder.root, shard) for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("another job is at it; waiting" in text for text in said) == 1
    assert sum("the part is there already" in text for text in said) == 1
    assert len(computed.read_text().splitlines()) == 20


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_part_is_computed_again(verbs, damage):
    plan = verbs.plan(GOOD, "poison")
    verbs.extract(plan)
    part = verbs.run_folder.part(plan["recipe"], plan["shards"][0]["shard"])
    content = part.read_bytes()
    if damage == "flip":
        middle = len(content) // 2
        part.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif damage == "cut":
        part.write_bytes(content[:-100])
    else:
        part.unlink()
    said = verbs.extract(plan)
    assert part.read_bytes() == content
    assert ("not those that were written" in said) == (damage != "gone")


def test_a_damaged_shard_is_found_and_written_anew(verbs):
    plan = verbs.plan(GOOD, "poison")
    name = plan["shards"][0]["shard"]
    shard = verbs.run_folder.shard(name)
    content = shard.read_bytes()
    at = content.index(b"MKVAAA")
    shard.write_bytes(content[:at] + b"MKVAAC" + content[at + 6 :])
    said = verbs("extract", verbs.run_folder.root, name, status=4)
    assert "its bytes are not those that were written" in said
    assert not shard.exists()
    again = verbs.plan(GOOD, "poison")
    assert again["shards"] == plan["shards"]
    verbs.extract(again)
    shard.write_bytes(content[:500])
    verbs.plan(GOOD, "poison")
    assert shard.read_bytes() == content, "plan trusts no old shard by its name"


@pytest.mark.parametrize("poison", ["STICKYA", "LATESTICKYA"])
def test_a_record_that_breaks_the_device_every_time_fails_alone(verbs, poison):
    plan = verbs.plan([*GOOD, ("bad", poison)], "poison", {"sticky_file": "/"})
    verbs.extract(plan)
    (receipt,) = verbs.receipts(plan)
    assert (receipt["ok"], receipt["failed"], receipt["retries"]) == (20, 1, 2)
    (failed,) = [row for row in rows(verbs, plan) if row["status"] == "failed"]
    assert "CUDA error" in failed["reason"]


def test_a_worker_that_hangs_at_its_exit_is_not_waited_for(verbs):
    plan = verbs.plan(GOOD, "poison", {"hang_at_exit": True})
    start = time.monotonic()
    verbs.extract(plan)
    assert time.monotonic() - start < 30
    assert verbs.receipts(plan)[0]["retries"] == 0


def test_the_log_has_what_a_worker_printed(verbs):
    plan = verbs.plan(GOOD, "poison", {"broken_load": True})
    shard = plan["shards"][0]["shard"]
    log = verbs.folder / "extract.log"
    said = verbs("extract", verbs.run_folder.root, shard, "--log", log, status=1)
    assert "Traceback" in log.read_text() and "Traceback" not in said


def test_what_cannot_be_done_is_one_sentence(verbs):
    plan = verbs.plan(GOOD, "poison")
    root = verbs.run_folder.root
    shard = plan["shards"][0]["shard"]
    assert "there is no shard abc" in verbs("extract", root, "abc", status=2)
    assert "plan again" in verbs("extract", root, shard, "--recipe", "0" * 32, status=2)
    verbs.run_folder.shard(shard).unlink()
    assert "this shard is gone" in verbs("extract", root, shard, status=2)
    assert not verbs.run_folder.plan.exists(), "so that Snakemake plans again"
    assert "there is no plan yet" in verbs("extract", root, shard, status=2)


def test_a_workload_that_cannot_load_is_not_tried_again(verbs):
    plan = verbs.plan(GOOD, "poison", {"broken_load": True})
    said = verbs("extract", verbs.run_folder.root, plan["shards"][0]["shard"], status=1)
    assert "KeyError: 'no such layer'" in said and "starting another" not in said
    assert not verbs.run_folder.receipt(plan["recipe"], plan["shards"][0]["shard"]).exists()
