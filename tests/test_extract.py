"""extract: whatever a record, a device or a person does to a worker, no other record suffers."""

import os
import re
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pytest
from broken_stores import damage_of
from plans import read_sealed, write_sealed
from programs import Verbs, is_running, random_records, wait_for

from featuremill.__main__ import main
from featuremill.base.reasons import kind_of
from featuremill.extract import supervisor
from featuremill.extract.command import Extraction
from featuremill.merge.command import merge
from featuremill.store.files import sha256_of

GOOD = [(f"good{n}", "MKV" + "A" * n) for n in range(20)]


def part_of(verbs, plan):
    """Return the part of a plan with one shard."""
    (shard,) = plan["shards"]
    return verbs.run_folder.part(plan["recipe"], shard["shard"])


def log_of(verbs, plan):
    (shard,) = plan["shards"]
    return verbs.run_folder.journal(plan["recipe"], shard["shard"]).with_suffix(".log")


def rows(verbs, plan):
    """Return the part's rows by their sequence's length."""
    with pa.memory_map(str(part_of(verbs, plan))) as source:
        return pa.ipc.open_stream(source).read_all().to_pylist()


def computed(verbs, records, counts, **options):
    """Compute records, of which so many are ok, failed and tried again; return their plan."""
    plan = verbs.plan(records, "poison", options)
    verbs.extract(plan)
    check_counts(verbs, plan, counts)
    return plan


def check_counts(verbs, plan, counts):
    (receipt,) = verbs.receipts(plan)
    assert (receipt["ok"], receipt["failed"], receipt["retries"]) == counts


def failures(verbs, plan):
    """Return why records failed, by their id's sequence; all the others have their own values."""
    found = rows(verbs, plan)
    good = sorted(row["letters"][0] for row in found if row["status"] == "ok")
    assert good == [float(len(sequence)) for _, sequence in GOOD]
    failed = [row for row in found if row["status"] == "failed"]
    assert all(row["letters"] is None for row in failed)
    return sorted(row["reason"] for row in failed)


def test_the_supervisor_leaves_arrow_to_its_worker(verbs):
    """A tenth of a second of each job, and nothing that it does needs any."""
    (shard,) = verbs.plan(GOOD)["shards"]
    code = (
        "import sys; from featuremill.__main__ import main; assert main(sys.argv[1:]) == 0\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'pandas', 'xopen'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    words = [sys.executable, "-c", code, "extract", str(verbs.run_folder.root), shard["shard"]]
    subprocess.run(words, check=True, env=verbs.environment)


def test_a_worker_imports_torch_without_looks_for_garbage(environment):
    """And leaves what came with it out of all later ones; but not what the model leaves behind."""
    code = (
        "import gc, sys; from types import SimpleNamespace as Bare\n"
        "from featuremill.extract.worker import Worker; from featuremill.workloads import esm2\n"
        "heavy = {'torch', 'safetensors', 'xopen', 'pandas', 'pyarrow.compute'}"
        " & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "looks = []\n"
        "def load(*_):\n"
        "    assert 'torch' in sys.modules and not looks, looks\n"
        "    assert gc.isenabled() and gc.get_freeze_count() > 100_000\n"
        "job = Bare(settings=Bare(workload='esm2'))\n"
        "worker = Bare(options=esm2.Options(), workload=Bare(load=load), job=job, devices=[])\n"
        "worker.__dict__.update(weights=None, seconds={}, _warn=print, _loads=print, "
        "_refuse_other_files=lambda: None)\n"
        "gc.collect(); gc.callbacks.append(lambda *told: looks.append(told)); Worker._load(worker)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


CRASHED = "crashed the worker twice: "
RAISED = "error in the workload: ValueError: I don't like "
DEVICE = {"sticky_file": "/"}  # which breaks it every time


@pytest.mark.parametrize(
    ("bad", "options", "retries", "reasons"),
    [
        (["CRASHA"], {}, [2], [f"{CRASHED}was killed by SIGABRT"]),
        (["LATECRASHA"], {}, [2], [f"{CRASHED}was killed by SIGABRT"]),
        (
            ["CRASHA", "SEGVA", "QUITA", "RAISEK"],
            {},
            [4, 5, 6],  # three alone, and before that the batches they were in
            [
                f"{CRASHED}left with status 1",
                f"{CRASHED}was killed by SIGABRT",
                f"{CRASHED}was killed by SIGSEGV",
                f"{RAISED}RAISEK",
            ],
        ),
        (
            ["RAISEA", "NANA", "GREEDA", "LATERAISEA"],
            {},
            [0],
            [
                f"{RAISED}RAISEA",
                f"{RAISED}RAISEA",
                "out of memory: MemoryError.*",
                "values are missing or not finite: try a wider dtype.*",
            ],
        ),
        (["STICKYA"], DEVICE, [2], [".*CUDA error.*"]),
        (["LATESTICKYA"], DEVICE, [2], [".*CUDA error.*"]),
    ],
)
def test_a_poison_record_fails_alone(verbs, bad, options, retries, reasons):
    plan = verbs.plan([*GOOD, *((word, word) for word in bad)], "poison", options)
    verbs.extract(plan)
    (receipt,) = verbs.receipts(plan)
    assert (receipt["ok"], receipt["failed"]) == (20, len(bad))
    assert receipt["retries"] in retries
    for found, reason in zip(failures(verbs, plan), reasons, strict=True):
        assert re.fullmatch(reason, found)


@pytest.mark.parametrize(
    ("poison", "batch_records"), [(("HANGA", "GILA"), 100), (("LATEHANGA", "LATEGILA"), 12)]
)
def test_hangs_are_ended_with_a_stack_and_fail_alone(verbs, poison, batch_records):
    """Both hang while all that there is is in flight: in one batch, or in two that are."""
    options = {"batch_records": batch_records, "late_beside": True}
    plan = verbs.plan([*GOOD, *((word, word) for word in poison)], "poison", options)
    said = verbs.extract(plan, 0, "--stall-seconds", "1")
    check_counts(verbs, plan, (20, 2, 3))
    assert said.count("Timeout") == 3 and said.count("featuremill_poison.py") >= 3
    for reason in failures(verbs, plan):
        assert reason.startswith("hung the worker twice: was ended, as it hung (the log has the st")
        assert kind_of(reason).name == "hang"


def test_one_death_condemns_no_record(verbs):
    """Not even of a record that was alone on the device: it may have been anybody's doing."""
    crashes = verbs.folder / "crashes"
    crashes.touch()
    options = {"batch_records": 1, "crash_file": str(crashes)}
    computed(verbs, [("unlucky", "CRASHA")], (1, 0, 1), **options)


def test_workers_that_die_on_everything_are_not_started_for_ever(verbs, monkeypatch, capsys):
    """Where no batch comes through, a device or a workload is at fault, and not 30 records."""
    assert supervisor.MAX_DEATHS_IN_A_ROW == 10
    monkeypatch.setattr(supervisor, "MAX_DEATHS_IN_A_ROW", 2)
    monkeypatch.setenv("PYTHONPATH", verbs.environment["PYTHONPATH"])
    records = [(str(n), "CRASH" + "A" * n) for n in range(4)]
    plan = verbs.plan(records, "poison", {"batch_records": 1})
    assert main(["extract", str(verbs.run_folder.root), plan["shards"][0]["shard"]]) == 3
    said = capsys.readouterr().err
    assert "3 workers died in a row: was killed by SIGABRT" in said
    assert said.count("starting another") == 2


def test_other_weights_than_the_planned_ones_are_refused(verbs):
    verbs("weights", "mill_t6_8M", "--output", "weights/mill_t6_8M.json")
    options = {"model": "mill_t6_8M"}
    plan = verbs.plan(GOOD, "esm2", options, 1000, ["--weights", "weights/mill_t6_8M.json"])
    path = verbs.folder / "weights" / "mill_t6_8M.json"
    about, other = read_sealed(path), verbs.folder / "other.safetensors"
    other.write_bytes(Path(about["path"]).read_bytes()[:-1] + b"1")
    write_sealed(path, {**about, "path": str(other), "sha256": sha256_of(other)})
    said = verbs.extract(plan, 2)
    assert "weights/mill_t6_8M.json: these are other weights than those the run was planned" in said


def test_out_of_memory_halves_the_batch_and_fails_nothing(verbs):
    plan = computed(verbs, [*GOOD, ("big", "EATA")], (21, 0, 0), batch_records=8)
    assert verbs.receipts(plan)[0]["oom_splits"] == 3


@pytest.mark.parametrize("poison", ["STICKYA", "LATESTICKYA"])
def test_a_device_error_costs_no_record(verbs, poison):
    broken = verbs.folder / "broken"
    broken.touch()
    plan = verbs.plan([*GOOD, ("x", poison)], "poison", {"sticky_file": str(broken)})
    assert "gave up its device" in verbs.extract(plan)
    check_counts(verbs, plan, (21, 0, 1))


def test_a_killed_supervisor_takes_its_worker_along_and_resumes_by_the_batch(verbs):
    files = {name: verbs.folder / name for name in ("computed", "moments", "doom")}
    plan = verbs.plan(GOOD, "poison", {name: str(file) for name, file in files.items()})
    files["doom"].write_text("run 3 supervisor")
    verbs.extract(plan, -signal.SIGKILL)
    worker = int(files["moments"].read_text().split()[0])
    wait_for(lambda: not is_running(worker))
    commits = log_of(verbs, plan).read_text().count("commit")
    assert 1 <= commits <= 2, "the third batch has begun"
    assert f"{commits} of 5 batches resumed" in verbs.extract(plan)
    check_counts(verbs, plan, (20, 0, 0))
    attempts = files["computed"].read_text().splitlines()
    assert set(attempts) == {sequence for _, sequence in GOOD}
    assert len(attempts) - len(set(attempts)) == 4 * (3 - commits), "only what was in flight"
    resumed = part_of(verbs, plan).read_bytes()
    plan = verbs.plan(GOOD, "poison")
    verbs.extract(plan)
    assert part_of(verbs, plan).read_bytes() == resumed, "in the batches that there were at first"


def test_the_next_batch_runs_while_the_last_is_collected(verbs):
    hold, moments = verbs.folder / "hold", verbs.folder / "moments"
    hold.touch()
    records = [(str(n), "MKV" + "L" * n) for n in range(24)]
    options = {"collect_hold": str(hold), "moments": str(moments), "batch_records": 3}
    plan = verbs.plan(records, "poison", options)
    process = verbs.start("extract", verbs.run_folder.root, plan["shards"][0]["shard"])

    def noted():
        return [line.partition(" ")[2] for line in moments.read_text().splitlines()]

    wait_for(lambda: moments.exists() and {"collect 1", "ran 2", "prepare 3"} <= set(noted()))
    hold.unlink()
    assert process.wait(60) == 0
    process.stderr.close()
    order = noted()
    collected = [f"collected {number}" for number in range(1, 9)]
    assert {moment for moment in order if moment.startswith("collected")} == {*collected}
    for number in range(1, 9):
        of_batch = [f"{what} {number}" for what in ("prepare", "run", "ran", "collect")]
        assert sorted(of_batch, key=order.index) == of_batch
    for number in range(1, 7):
        assert order.index(f"collected {number}") < order.index(f"run {number + 2}"), "two at most"
    (receipt,) = verbs.receipts(plan)
    assert receipt["batches"] == 8
    assert receipt["seconds"]["run"] <= receipt["seconds"]["compute"], "what overlaps counts once"
    slow = part_of(verbs, plan).read_bytes()
    plan = verbs.plan(records, "poison", {"batch_records": 3})
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
    job = Extraction(verbs.run_folder, verbs.run_folder.read_plan(), shard["shard"], 1, 600)
    with pytest.raises(SystemExit, match="the job is killed now"):
        job.finish()
    log = log_of(verbs, plan).read_text()
    assert "begin 0" in log and "strike" not in log


def test_a_failure_leaves_the_order_of_rows(verbs):
    """Also where a batch behind the one that fails has run already."""
    records = [*GOOD, ("bad", "RAISEA"), ("late", "LATERAISEL")]
    found = []
    for late in (False, True):
        plan = computed(verbs, records, (20, 2, 0), late_beside=late)
        found.append(part_of(verbs, plan).read_bytes())
        digests = [row["sha256"] for row in rows(verbs, plan)]
    assert found[0] == found[1]
    left = digests[len(records) % 4 :]
    assert left == sorted(left), "but for the first batch, which tells the speed"


def test_kills_at_any_moment_change_no_byte(verbs):
    doom = verbs.folder / "doom"
    records = [(str(n), "MKV" + "L" * n) for n in range(60)]
    plan = computed(verbs, records, (60, 0, 0), doom=str(doom), batch_records=2)
    expected = part_of(verbs, plan).read_bytes()
    part_of(verbs, plan).unlink()
    for moment in ("prepare 4", "run 5", "ran 6", "collect 5", "collected 4"):
        doom.write_text(f"{moment} job")
        verbs.extract(plan, -signal.SIGKILL)
        assert "strike" not in log_of(verbs, plan).read_text(), moment
    assert "batches resumed" in verbs.extract(plan)
    assert part_of(verbs, plan).read_bytes() == expected


def test_who_is_killed_between_the_last_batch_and_the_receipt_changes_no_byte(
    tmp_path, environment
):
    """The next worker computes nothing, and so imports less."""
    found = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        verbs = Verbs(tmp_path / name, environment)
        verbs.is_forked = False  # processes that import what they need
        killed = {"KILLED_ONCE": str(tmp_path / "once")} if name == "killed" else {}
        plan = verbs.plan(random_records(12), "late", cost=100, outputs=["parquet_dataset"])
        (shard,) = plan["shards"]
        verbs("extract", verbs.run_folder.root, shard["shard"], **killed)
        (receipt,) = verbs.receipts(plan)
        assert receipt["versions"]["h5py"] == metadata.version("h5py")
        found.append((receipt["resumed_batches"], receipt["retries"], receipt["versions"]))
        for order in ("input", "shard"):
            merge(verbs.run_folder, ["parquet_dataset"], 0, order=order)
            (file,) = (verbs.run_folder.root / "embeddings").rglob("*.parquet")
            found[-1] += (file.read_bytes(),)
    assert [row[:2] for row in found] == [(0, 0), (6, 1)]
    assert found[0][2:] == found[1][2:]


@pytest.mark.parametrize("good", [GOOD, []])
def test_who_dies_while_it_is_prepared_costs_nobody_beside_it(verbs, good):
    """Each is prepared while another one is in flight, which was blamed once; the first one while
    nothing was, so that the device was blamed."""
    bad = [(f"bad{n}", "EARLYQUIT" + "L" * n) for n in range(2)]
    plan = verbs.plan([*good, *bad], "poison", {"collect_seconds": 0.05})
    said = verbs.extract(plan)
    (receipt,) = verbs.receipts(plan)
    assert (receipt["ok"], receipt["failed"]) == (len(good), len(bad)), said


@pytest.mark.parametrize(
    ("letters", "manner"), [("HANG", "was ended, as it hung"), ("KILL", "was killed by SIGKILL")]
)
def test_a_child_that_the_workload_forked_ends_with_its_worker(verbs, letters, manner):
    """It had a copy of the pipe for events, and so the job waited for a child that hung."""
    children = verbs.folder / "children"
    records = [*GOOD, ("bad", f"EARLYCHILD{letters}")]
    plan = verbs.plan(records, "poison", {"children": str(children)})
    assert manner in " ".join(verbs.extract(plan, 0, "--stall-seconds", "1").split())
    (receipt,) = verbs.receipts(plan)
    assert (receipt["ok"], receipt["failed"]) == (len(GOOD), 1)
    pids = children.read_text().split()
    assert len(pids) == 2, "in a batch, and alone"
    wait_for(lambda: not any(map(is_running, pids)))


def test_a_child_that_starts_after_the_end_of_its_parent_ends(environment):
    """The kernel signals a child only for an end that comes after the child asked for it."""
    code = (
        "import os, signal, sys, time\n"
        "from featuremill.extract import worker\n"
        "def outlive_parent():\n"
        "    while os.getppid() == parent: time.sleep(0.001)\n"
        "os.register_at_fork(after_in_child=outlive_parent)\n"
        "worker.end_children_with_their_parent(os.dup(2))\n"
        "parent = os.getpid()\n"
        "if not os.fork(): sys.exit('outlived its parent')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    words = [sys.executable, "-c", code]
    # The pipe ends when the child has ended, too.
    ended = subprocess.run(words, env=environment, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (-signal.SIGKILL, "")


def test_two_batches_in_flight_when_a_worker_dies_are_both_tried_alone(verbs):
    """The device's orders are given ahead: whose fault it was, nobody can tell."""
    file, records = verbs.folder / "computed.txt", [*GOOD, ("bad", "LATECRASHK")]
    options = {"late_beside": True, "computed": str(file), "batch_records": 5}
    assert not log_of(verbs, computed(verbs, records, (20, 1, 2), **options)).exists()
    attempts = file.read_text().splitlines()
    assert attempts.count("LATECRASHK") == 2
    assert set(attempts) == {sequence for _, sequence in records}
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
    log = log_of(verbs, plan).read_text()
    assert log.count("commit") > 3 and "strike" not in log
    full.unlink()
    assert "batches resumed" in verbs.extract(plan)
    assert verbs.receipts(plan)[0]["ok"] == 200
    resumed = part_of(verbs, plan).read_bytes()
    part_of(verbs, plan).unlink()
    verbs.extract(plan)
    assert part_of(verbs, plan).read_bytes() == resumed


def test_stopping_a_run_is_held_against_no_record(verbs):
    """The same record is in flight each time: struck twice, it would be a failed row."""
    hold = verbs.folder / "hold"
    hold.touch()
    plan = verbs.plan(GOOD, "poison", {"hold": str(hold)})
    log = log_of(verbs, plan)
    for number in (signal.SIGTERM, signal.SIGINT):
        log.unlink(missing_ok=True)
        words = ("extract", verbs.run_folder.root, plan["shards"][0]["shard"])
        process = verbs.start(*words, start_new_session=True)
        wait_for(lambda: log.exists() and "begin" in log.read_text())
        os.killpg(process.pid, number)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert "Traceback" not in stderr
        assert "strike" not in log.read_text()
    hold.unlink()
    verbs.extract(plan)
    check_counts(verbs, plan, (20, 0, 0))


def test_two_jobs_for_one_shard_compute_it_once(verbs):
    file, hold = verbs.folder / "computed.txt", verbs.folder / "hold"
    hold.touch()
    plan = verbs.plan(GOOD, "poison", {"hold": str(hold), "computed": str(file)})
    words = ("extract", verbs.run_folder.root, plan["shards"][0]["shard"])
    first = verbs.start(*words)
    wait_for(file.exists)
    second = verbs.start(*words)
    said = second.stderr.readline()
    assert "another job computes it; waiting" in said
    hold.unlink()
    said += second.communicate(timeout=60)[1]
    assert "the part is there already" in said
    said = first.communicate(timeout=60)[1]
    assert "waiting" not in said and "already" not in said
    assert [process.returncode for process in (first, second)] == [0, 0]
    assert len(file.read_text().splitlines()) == 20


def test_a_damaged_part_is_computed_again(verbs):
    plan = computed(verbs, GOOD, (20, 0, 0))
    content = part_of(verbs, plan).read_bytes()
    for damage in ("part's rows", "part cut", "no part"):
        damage_of(damage).harm(verbs.run_folder)
        said = verbs.extract(plan)
        assert part_of(verbs, plan).read_bytes() == content, damage
        told = "its bytes are not those that were written; computing it again" in said
        assert told == (damage != "no part")


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


def test_a_worker_that_hangs_at_its_exit_is_not_waited_for(verbs):
    computed(verbs, GOOD, (20, 0, 0), hang_at_exit=True)


def test_a_workload_that_cannot_load_is_not_tried_again_and_the_log_has_what_it_printed(verbs):
    plan = verbs.plan(GOOD, "poison", {"broken_load": True})
    shard = plan["shards"][0]["shard"]
    log = verbs.folder / "extract.log"
    said = verbs("extract", verbs.run_folder.root, shard, "--log", log, status=1)
    assert "KeyError: 'no such layer'" in said and "starting another" not in said
    assert "Traceback" in log.read_text() and "Traceback" not in said
    assert not verbs.run_folder.receipt(plan["recipe"], shard).exists()


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
