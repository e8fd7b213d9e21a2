"""top: what it says of a run is so while it goes on, from anywhere, and right at the end."""

import argparse
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import NOT_IMPORTED, ROOT
from documents import section
from nvml_node import Gpu
from programs import ran, wait_for
from rich.console import Console
from running_runs import COST, A, B, C, RunningRun
from snakemake.settings.types import Quietness
from terminals import Terminal
from test_gpu_workflow import GpuWorkflow

from featuremill.base.errors import UserError
from featuremill.config.project import Runs
from featuremill.flow import screen
from featuremill.lease import gpu_name
from featuremill.status import beneath, shards, watch
from featuremill.status import screen as view
from featuremill.status.jobs import TelemetryTail
from featuremill.status.reader import RunReader
from featuremill.status.view import totals_line
from featuremill.store import lock_holder, run_lock
from featuremill.store.files import JsonFile
from featuremill.store.results import Results

GOOD = [(f"good{n}", "MKV" + "A" * n) for n in range(20)]
DOCUMENT = section(ROOT / "docs" / "json.md", "Top")
FAR_AWAY = "node7"


def top(verbs, *more, folder="results/test", status=0):
    """Return what the verb prints on both outputs."""
    said = verbs.type("featuremill", "top", folder, *more, status=status)
    return said.out, said.err


def visited(verbs, **given):
    """Do the same in this process, which is quicker; return the exit status."""
    usual = dict.fromkeys(("once", "json", "quiet"), False) | dict.fromkeys(("every", "html"))
    return watch.run(argparse.Namespace(run_folder=verbs.run_folder.root, **{**usual, **given}))


def looked_at(run):
    return RunReader(run.folder.root).poll()


def looked(run):
    """Return what a first look at the run finds, as programs get it."""
    return looked_at(run).now_as_json()


def drawn(scene, width=120):
    """Return the picture as lines of text."""
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(view.screen(scene, width))
    return console.file.getvalue().splitlines()


@pytest.fixture
def run(tmp_path):
    return RunningRun(tmp_path, 8)


def test_totals_are_those_of_receipts_and_of_running_jobs(run):
    run.finish(0, A, failed=["out of memory: 7 GB"] * 2)
    first, second = run.start(1, A), run.start(2, B)
    for step in range(1, 6):
        first.sample(step * 100)
        second.sample(step * 50, rows_failed=1)
    found = looked(run)
    assert found["phase"] == "computing" and found["status"] is None
    assert found["shards"] == {"total": 8, "done": 1}
    assert found["records"] == {"total": 800, "done": 100 + 50 + 25, "failed": 3}
    assert found["cost"] == {"total": 8 * COST, "done": COST + 500 + 250}
    assert [type(cost) for cost in found["cost"].values()] == [int, int]
    assert found["share"] == pytest.approx(1750 / 8000)
    assert found["cost_per_second"] == pytest.approx(10 + 5), "both of late"
    one, other = sorted(found["jobs"], key=lambda job: job["shard"])
    assert (one["stage"], one["speed"], other["speed"]) == ("run", 10, 5)
    (device,) = one["devices"]
    assert (device["uuid"], device["slot"], device["total_mb"]) == (A["uuid"], "0of1", 24_000)
    gauges = [device[key] for key in ("utilisation", "memory_mb", "power_w", "temperature_c")]
    assert gauges == [91, 20_480, 70.4, 64]


def test_time_left_goes_by_the_jobs_of_late_and_by_the_newest_parts(tmp_path):
    """Two devices of different speed, and three shards that wait."""
    run = RunningRun(tmp_path, 5)
    quick, slow = run.start(0, A), run.start(1, B)
    assert looked(run)["time_left"] is None, "no batch is finished since the start"
    for job, speed in ((quick, 10), (slow, 5)):
        job.sample(0)
        for _ in range(4):
            job.sample(job.cost_done + 10 * speed)
    # 600 are left at 10 a second, 800 at 5; the two together need 3,000 / 15 s for what waits.
    rest = looked(run)["time_left"]
    assert rest["job_seconds"] == pytest.approx(60 + 160 + 2 * 200) and rest["jobs"] == 2
    assert rest["seconds"] == pytest.approx(310) and rest["parts"] == 0
    run.finish(4, C, seconds=60.0)  # with its start-up: so do those that wait now
    rest = looked(run)["time_left"]
    assert rest["seconds"] == pytest.approx((60 + 160 + 2 * 60) / 2) and rest["parts"] == 1
    closely = RunReader(run.folder.root).inspect()
    assert closely.as_json()["time_left"] == rest and closely.speed == 15, "status says the same"
    for number in (2, 3):
        run.finish(number, C, seconds=60.0)
    assert looked(run)["time_left"]["seconds"] == pytest.approx(160), "slow is the last one"


def test_time_left_is_not_named_where_nothing_tells_it(run):
    waiting = run.start(0, None)
    found = looked(run)
    assert found["time_left"] is None
    assert found["jobs"][0]["stage"] == "wait" and found["jobs"][0]["devices"] == []
    scene = looked_at(run)
    assert "time left not known: every job waits for a device" in totals_line(scene)
    assert any("1 job waiting for a device: shard 00000000" in line for line in drawn(scene))
    waiting.has(A)
    waiting.sample(100)
    waiting.sample(100, seconds=400)
    waiting.sample(200)
    assert looked(run)["time_left"]["seconds"] > 1000, "a pause of 400 s counts"


@pytest.mark.parametrize("num_finished", [1, 200])
def test_only_what_is_new_is_read(tmp_path, monkeypatch, num_finished):
    run = RunningRun(tmp_path, num_finished + 10)
    for number in range(num_finished):
        run.finish(number, A)
    jobs = [run.start(num_finished + number, device) for number, device in enumerate((A, B))]
    jobs[1].die()
    reader = RunReader(run.folder.root)
    assert len(reader.poll().jobs) == 1, "nobody holds the other one's lock"
    read = []
    monkeypatch.setattr(shards, "held_by", lambda lock: held(read.append(lock)))
    for name in ("read", "find"):
        monkeypatch.setattr(JsonFile, name, lambda path: read.append(path))

    def held(_):
        return "running", shards.Holder(pid=4242)

    jobs[0].sample(300)
    (job,) = reader.poll().jobs
    assert job.rows_done == 30
    lock = f"{run.names[num_finished]}.lock"
    assert [path.name for path in read] == [lock], "neither receipt nor idle lock"


def test_a_shard_is_told_of_from_job_to_job(run):
    reader = RunReader(run.folder.root)
    assert reader.poll().phase == "idle"
    job = run.start(0, A)
    job.sample(400)
    scene = reader.poll()
    assert scene.phase == "computing" and scene.done.records == 40
    job.end("failed", "every device failed 2 times \x1b[31m")
    scene = reader.poll()
    assert list(scene.ended.values()) == ["every device failed 2 times \\x1b[31m"]
    assert "shard 00000000 ended: every device failed 2 times" in " ".join(drawn(scene))
    again = run.start(0, B)
    scene = reader.poll()
    assert scene.ended == {} and scene.jobs[0].devices[0].uuid == B["uuid"]
    again.sample(700)
    run.finish(0, B)  # the job still holds its lock then
    scene = reader.poll()
    assert (scene.done.records, scene.done.shards, scene.jobs) == (100, 1, [])
    again.end()
    assert reader.poll().done.records == 100


def test_a_job_whose_lock_file_is_gone_is_no_job(run):
    jobs = [run.start(number, A) for number in (0, 1)]
    reader = RunReader(run.folder.root)
    assert reader.poll().count("running") == 2
    for job, number in zip(jobs, (0, 1), strict=True):
        job.die()
        run.journal(number).with_suffix(".lock").unlink()
    run.journal(1).with_suffix(".log").touch()  # of one, something is left
    scene = reader.poll()
    assert (scene.phase, scene.count("running"), scene.jobs) == ("idle", 0, [])


@pytest.mark.slow
def test_2000_receipts_and_4_jobs_cost_little(tmp_path):
    """Twentieths of a core at a look a second: processor time, drawing and all."""
    run = RunningRun(tmp_path, 2500)
    for number in range(2000):
        run.finish(number, (A, B, C)[number % 3], ago=10.0 * (2000 - number))
    jobs = [run.start(2000 + n, device) for n, device in enumerate((A, B, C, {**A, "uuid": "d"}))]
    for step in range(300):
        for job in jobs:
            job.sample(step, seconds=1.0)
    reader = RunReader(run.folder.root)
    scene = reader.poll()
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)
    began, looks = time.process_time(), 20
    for step in range(looks):
        for job in jobs:
            job.sample(500 + step, seconds=1.0)
        scene = reader.poll()
        console.print(view.screen(scene, 120))
    each = (time.process_time() - began) / looks
    assert scene.done.shards == 2000 and len(scene.at_work) == 4
    assert scene.done.records == 200_000 + 4 * 51
    assert each <= 0.05, f"{1000 * each:.0f} ms of processor time a look"


@pytest.mark.parametrize("skew", [-3600, 0, 3600])
def test_a_job_of_another_node_is_judged_by_what_it_appends(run, skew):
    """Its lock cannot be seen from here, and its clock may be wrong."""
    job = run.start(0, A, clock=run.now + skew, host=FAR_AWAY, holds=False)
    job.sample(100, seconds=0)
    reader = RunReader(run.folder.root)
    (first,) = reader.poll().jobs
    assert (first.state, first.host) == ("unclear" if skew < 0 else "running", FAR_AWAY)
    job.sample(200, seconds=1)
    scene = reader.poll()
    (job,) = scene.jobs
    assert (scene.phase, job.state, job.rows_done) == ("computing", "running", 20)


def test_one_look_waits_to_see_whether_a_job_of_another_node_lives(run, monkeypatch, capsys):
    job = run.start(0, A, clock=run.now - 3600, host=FAR_AWAY, holds=False)
    job.sample(100)
    slept = []

    def look():
        slept.clear()
        status = visited(SimpleNamespace(run_folder=run.folder), once=True, json=True)
        answer = json.loads(capsys.readouterr().out)
        return status, answer["phase"], answer["jobs"][0]["state"]

    monkeypatch.setattr(watch.time, "sleep", slept.append)
    assert look() == (1, "unknown", "unclear") and slept == [watch.GROWTH_SECONDS]
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: job.sample(200, seconds=seconds))
    assert look() == (1, "computing", "running")


def test_a_held_lock_without_news_is_said(run):
    job = run.start(0, A, clock=run.now - 600)
    job.sample(100)
    os.utime(job.path, (job.clock, job.clock))
    scene = looked_at(run)
    assert scene.phase == "computing" and scene.jobs[0].is_silent
    assert any("nothing heard for 9 min 5" in line for line in drawn(scene))
    assert scene.speed is None and scene.time_left is None


def test_a_job_whose_clock_is_late_is_not_silent_while_its_lock_is_held(run):
    job = run.start(0, A, clock=run.now - 70)
    for cost_done in (100, 200, 300):
        job.sample(cost_done)
    scene = looked_at(run)
    assert not scene.jobs[0].is_silent and scene.speed == 10 and scene.time_left.jobs == 1


def test_the_work_of_a_silent_job_is_not_left_out_of_the_time(tmp_path):
    run = RunningRun(tmp_path, 2)
    silent = run.start(0, A, clock=run.now - 600)
    silent.sample(0)
    os.utime(silent.path, (silent.clock, silent.clock))
    other = run.start(1, B, clock=run.now - 30)
    for _ in range(3):
        other.sample(other.cost_done + 100)
    # At 10 a second: 700 of its own, then 1,000 of the silent one's.
    assert looked(run)["time_left"]["seconds"] == pytest.approx(70 + 100, abs=1)


def test_a_job_without_telemetry_is_known_by_its_lock(run):
    run.start(0, A, says=False)
    (job,) = looked_at(run).jobs
    assert (job.state, job.pid, job.devices[0].name) == ("running", 4242, "NVIDIA L4")
    shown = "\n".join(drawn(looked_at(run)))
    assert job.speed is None and re.search(r"^L4 +00000000 ", shown, re.M)


def test_telemetry_that_is_cut_garbled_or_begun_anew_is_followed(tmp_path, run):
    job = run.start(0, A)
    with job.path.open("ab") as file:
        file.write(b'{"event":"sample"}\nrubbish\n\xff\xfe\n[1]\n')
        file.write(b'{"event":"sample","time":"x"}\n{"ev')
    tail = TelemetryTail(job.path)
    tail.poll()
    assert tail.state.sample["stage"] == "load"
    with job.path.open("ab") as file:
        file.write(b"\n")
    job.sample(100)
    job.sample(200)
    tail.poll()
    assert tail.state.sample["cost_done"] == 200 and tail.rate(30) == 10
    job.path.write_bytes(b"")
    job.write("start", host="here")
    tail.poll()
    assert tail.state.sample is None and tail.rate(30) is None


def test_failures_come_with_their_number_and_remedy(run):
    run.start(7, A).sample(10)
    run.finish(0, A, failed=["out of memory: 7 GB", "out of memory: 9 GB"])
    run.finish(1, A, failed=["error in the workload: \x1b[31mno"])
    scene = looked_at(run)
    told = {one.reason: (one.kind, one.number) for one in scene.reasons}
    assert told == {"out of memory": ("oom", 2), "error in the workload": ("error", 1)}
    text = " ".join(drawn(scene, 200))
    assert "2 records failed: out of memory" in text and scene.reasons[0].remedy in text
    assert "\x1b" not in text and "GB" not in text.partition("✗")[2], "of no record in particular"


@pytest.mark.parametrize("width", [40, 60, 80, 100, 132, 200])
def test_the_picture_fits_and_keeps_what_counts(run, width):
    hostile = {**A, "name": "\x1b[2J[red]NVIDIA GeForce RTX 4090 of a very long name"}
    for number, device in enumerate((hostile, B, C)):
        run.start(number, device).sample(100 * number)
    run.start(3, None)
    run.finish(4, A, failed=["values are missing or not finite: x"])
    scene = looked_at(run)
    shown = drawn(scene, width)
    assert max(map(len, shown)) <= width and "\x1b" not in "".join(shown)
    everything = "\n".join(shown)
    assert "800 records" in everything
    headings = {40: "DEVICE RECORDS °C RESIDUES/S", 60: "DEVICE SHARD RECORDS MEMORY °C RESIDUES/S"}
    every = "DEVICE SHARD RECORDS USE MEMORY °C W RESIDUES/S LEFT"
    assert headings.get(width, every) in [" ".join(line.split()) for line in shown]
    assert re.search(r"^GPU \(b000\) L4 .* 10/100 .* 64 ", everything, re.MULTILINE)
    assert re.search(r"^GPU \(c000\) L4 .* 20/100 .* 64 ", everything, re.MULTILINE)


def test_top_without_a_terminal_writes_lines_and_ends_as_status_does(verbs, capsys):
    """From before there is a plan until whoever computes the run has ended, as Snakemake would."""
    with pytest.raises(UserError, match="there is no such folder"):
        visited(verbs, once=True)
    (verbs.folder / ".snakemake").mkdir()
    computing = run_lock.claim(verbs.run_folder.root)
    run_lock.sign(computing, "snakemake")
    watching = verbs.start("top", "results/test", "--every", "0.2", stdout=subprocess.PIPE)
    said = watching.stdout.readline()
    assert re.match(r"\d\d:\d\d:\d\d  started, and there is no plan yet$", said)
    records = [*GOOD, ("bad", "RAISEK"), ("worse", "RAISEKK"), ("refused", "MK*L")]
    hold = verbs.folder / "hold"
    hold.touch()
    plan = verbs.plan(records, "poison", {"hold": str(hold), "batch_records": 4}, cost=11)
    shards = [shard["shard"] for shard in plan["shards"]]
    first = verbs.start("extract", verbs.run_folder.root, shards[0])
    begun = ""
    while " 1 job · " not in begun:
        begun += watching.stdout.readline()
    hold.unlink()
    first.communicate(timeout=60)
    verbs.extract({"shards": plan["shards"][1:]})
    while "2 records failed: error in the workload → " not in begun:
        begun += watching.stdout.readline()
    verbs("merge", verbs.run_folder.root, "--outputs", "npy", "--max-failed", "2")
    computing.close()
    said, stderr = watching.communicate(timeout=60)
    said = begun + said
    assert watching.returncode == 2 and not stderr
    assert re.search(r"  \d+\.\d % of the work · \d+ of 22 records · 1 job · ", said)
    assert verbs.type("featuremill", "status", "results/test", status=2).out in said
    written = said.splitlines()
    assert written == [line.rstrip() for line in written]
    assert "\x1b" not in said
    assert visited(verbs, quiet=True) == 2
    assert capsys.readouterr().out.count("\n") == 1, "what failed"
    assert visited(verbs, json=True, once=True) == 2
    answer = json.loads(capsys.readouterr().out)
    manifest = json.loads((verbs.run_folder.root / "manifest.json").read_text())
    assert answer["status"]["input"] == manifest["plan"] and answer["phase"] == "idle"
    assert answer["records"]["done"] == 22 and answer["records"]["failed"] == 2
    assert set(answer) == set(re.findall(r"^\| `(\w+)` \|", DOCUMENT, re.MULTILINE))


def test_whoever_has_read_enough_ends_it_without_a_word(run, verbs):
    run.start(0, A).sample(100)
    process = verbs.start("top", run.folder.root, "--every", "0.05", stdout=subprocess.PIPE)
    assert "1.2 % of the work" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 128 + signal.SIGPIPE and process.stderr.read() == ""
    process.stderr.close()


def test_it_waits_for_a_run_that_has_not_begun(verbs):
    for more in (("--once",), ("--json", "--once")):
        assert "there is no such folder" in top(verbs, *more, status=2)[1]
    top(verbs, folder="reslts/test", status=2)  # no folder of runs
    process = verbs.start("top", "results/test", "--every", "0.5", stdout=subprocess.PIPE)
    assert "waiting for a run in results/test" in process.stderr.readline()
    verbs.extract(verbs.plan([("a", "MKV")]))
    verbs("merge", verbs.run_folder.root)
    said, stderr = process.communicate(timeout=60)
    assert process.returncode in (0, 1) and not stderr, "as far as the run was when it was seen"
    assert "results/test" in said


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e12"])
def test_a_time_between_looks_that_is_none_is_refused(run, seconds):
    arguments = argparse.Namespace(run_folder=run.folder.root, every=float(seconds))
    with pytest.raises(UserError, match="more than 0 seconds, and a day at most"):
        watch.run(arguments)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_ctrl_c_leaves_the_terminal_as_it_was(run, environment, no_color):
    run.start(0, A).sample(100)
    command = [sys.executable, "-m", "featuremill", "top", str(run.folder.root)]
    terminal = Terminal(command, 60, 20, env={**environment, "NO_COLOR": no_color})
    shown = terminal.read_until("Ctrl-C ends this view")
    assert "\x1b[?1049h" in shown and "\x1b[?25l" in shown, "another screen, without a cursor"
    assert bool(re.search(r"\x1b\[[\d;]*3\dm", shown)) == (not no_color)
    terminal.process.send_signal(signal.SIGINT)
    said = terminal.read_until(None)
    assert terminal.process.wait(30) == 130
    after = said.rpartition("\x1b[?1049l")[2]
    assert "\x1b[?25h" in said[said.rindex("\x1b[?25l") :], "the cursor is back"
    assert "Traceback" not in said and after.strip().startswith("1.2 % of the work")


@pytest.fixture
def quick(monkeypatch):
    """Let lines of totals come at once."""
    for name, seconds in {"FIRST": 0.3, "EVERY": 0.1, "LINES": 0.05}.items():
        monkeypatch.setattr(beneath, f"{name}_SECONDS", seconds)


def test_snakemake_says_the_totals_now_and_then(run, quick, capfd):
    damaged = run.folder.root.with_name("damaged")
    (damaged / "store").mkdir(parents=True)
    Results(damaged).plan.write_text("{")
    end = beneath.follow(Runs(damaged.parent, [damaged, run.folder.root]))
    said = ""

    def says_more():
        nonlocal said
        said += capfd.readouterr().err
        return said

    try:
        job = run.start(0, A)
        job.sample(500)
        wait_for(lambda: says_more().count("\n") >= 2)
    finally:
        end()
    first, *_ = said.splitlines()
    assert first.startswith("     top │ test: 6.2 % of the work · 50 of 800 records · 1 job")


@pytest.mark.parametrize(
    ("quiet", "dryrun", "is_main", "variable", "tells"),
    [
        ({Quietness.HOST, Quietness.REASON}, False, True, "", True),  # the default profile's
        (None, False, True, "", True),
        ({Quietness.PROGRESS, Quietness.RULES}, False, True, "", False),  # a bare --quiet
        ({Quietness.ALL}, False, True, "", False),
        (None, True, True, "", False),
        (None, False, False, "", False),
        (None, False, True, "1", False),
    ],
)
def test_snakemake_says_them_only_where_they_are_wanted(
    monkeypatch, quiet, dryrun, is_main, variable, tells
):
    started = []
    monkeypatch.setattr(beneath, "follow", lambda runs, may_draw: started.append(may_draw))
    monkeypatch.setattr(sys, "argv", ["snakemake", "--cores", "1"])
    monkeypatch.setenv("FEATUREMILL_QUIET", variable)
    workflow = SimpleNamespace(is_main_process=is_main, modifier=NOT_IMPORTED)
    workflow.output_settings = SimpleNamespace(quiet=quiet, dryrun=dryrun)
    screen.follow(workflow, Runs(Path(), []))
    assert started == [False] * tells, "no handler of Snakemake writes to the terminal here"


class Tmux:
    """A terminal of tmux that one can read."""

    def __init__(self, command, columns, rows, folder, environment):
        if not shutil.which("tmux"):
            pytest.fail("needs tmux (Debian, Ubuntu: apt install tmux) for a terminal to look at")
        self._tmux = ["tmux", "-u", "-f", "/dev/null", "-S", str(folder / "tmux")]
        self._environment = {**environment, "LC_ALL": "C.UTF-8"}
        size = ["-x", str(columns), "-y", str(rows)]
        self._call("new-session", "-d", *size, "-c", str(folder), command)

    def _call(self, *arguments):
        return ran(*self._tmux, *arguments, env=self._environment, check=True).stdout

    def screen(self):
        """Return what stands on it."""
        return self._call("capture-pane", "-p")

    def close(self):
        self._call("kill-server")


@pytest.mark.slow
def test_top_of_three_devices_on_a_terminal(tmp_path, environment, gpu_node):
    """Nine shards on three simulated devices, watched from before the plan to the report."""
    node = gpu_node(*(Gpu(busy=90 + n, more={"temperature": 60 + n}) for n in range(3)))
    workflow = GpuWorkflow(tmp_path, environment, node, 9, batch_seconds=3, batch_records=2)
    records = (tmp_path / "in.fa").read_text()
    (tmp_path / "in.fa").write_text(f"{records}>bad\nRAISEK\n>refused\nMK*L\n")
    process = workflow.start("--cores", "32", "--resources", "gpu=3", "--config", "max_failed=1")
    claimed = run_lock.path_of(workflow.run_folder.root)
    wait_for(lambda: lock_holder.is_held(claimed))
    top = f"{shlex.quote(sys.executable)} -m featuremill top results/test"
    command = f"{top}; echo ended with $?; sleep 600"
    terminal = Tmux(command, 110, 34, tmp_path, workflow.environment)
    try:
        screens = [terminal.screen()]
        while "ended with" not in screens[-1]:
            time.sleep(0.5)
            screens.append(terminal.screen())
            assert process.poll() in (None, 0) and len(screens) < 500, screens[-1]
    finally:
        terminal.close()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert re.search(r"^ +top │ \d+\.\d % of the work · \d+ of 91 records", said, re.MULTILINE)
    shares = [float(n) for s in screens for n in re.findall(r"^([\d.]+) % of the", s, re.M)[:1]]
    assert shares == sorted(shares) and len(set(shares)) > 10
    heads = [re.escape(gpu_name.gpu(uuid, number)) for number, uuid in enumerate(node.uuids)]
    row = r"^{} Simulated.* [0-9a-f]{{8}} +\d+/\d+ +9\d % .* 6\d "
    rows = [[re.search(row.format(head), s, re.M) for head in heads] for s in screens]
    fullest = max(screens, key=lambda screen: screen.count(" Simulated "))
    assert any(all(found) for found in rows), fullest  # all three at work at once
    assert any(re.search(r"about .* left", screen) for screen in screens)
    check_end(screens[-1], workflow)


def check_end(screen, workflow):
    """The last screen is what status says, and right to the record."""
    counts = workflow.counts()
    assert counts == {"input": 92, "ok": 90, "failed": 1, "refused": 1, "duplicate": 0}
    assert re.search(r"Input +92 records, 1 refused", screen)
    assert re.search(r"Parts +9 finished \(91 rows, 100.0 % of the work\)", screen)
    assert "results/test: done, and 1 record failed." in screen and "ended with 2" in screen
    assert "1 record: error in the workload" in screen
