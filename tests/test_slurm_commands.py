"""slurm_commands, slurm_start: whatever happens to a job or to Slurm's daemons, a run ends, and
what failed is told from what did not. The fast tests go by what Slurm 22.05 was seen to answer.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT
from featuremill.flow.slurm_commands import Live, Run, judge

from featuremill.flow import slurm_commands, slurm_start

NAME = "0e1c6df4-21c6-4b80-ba0a-8d3ff7e3ea2a"
QUERIES = {
    "sacct": shlex.split(
        "sacct -X --parsable2 --clusters all --noheader --format=JobIdRaw,State "
        f"--starttime 2026-11-20T00:00 --endtime now --name {NAME}"
    ),
    "squeue": shlex.split(f"squeue '--format=%i|%T' --states=all --noheader --name {NAME}"),
}
"""What the executor asks, word for word: the executor itself is not there in the fast tests, so
`test_the_executor_asks_so` holds these against it."""


def on(partition, state, reason="None"):
    return Live(state, partition, reason)


ENDS = {  # what the controller says, the database, the job's own script; and what comes of it
    "running": (on("gpu", "RUNNING"), "RUNNING", "", None),
    "a requeued job's last end": (on("gpu", "PENDING", "BeginTime"), "PREEMPTED", "1", None),
    "completed": (on("gpu", "COMPLETED"), "", "0", "COMPLETED"),
    "failed": (on("gpu", "FAILED", "NonZeroExitCode"), "", "3", "FAILED"),
    "scancel, by squeue": (on("gpu", "CANCELLED"), "", "", "CANCELLED"),
    "scancel, by sacct": (None, "CANCELLED by 1000", "", "CANCELLED"),
    "scancel, cut short": (None, "CANCELLED+", "", "CANCELLED"),
    "time limit": (on("gpu", "TIMEOUT", "TimeLimit"), "", "", "TIMEOUT"),
    "memory": (on("gpu", "OUT_OF_MEMORY", "OutOfMemory"), "", "", "OUT_OF_MEMORY"),
    "node lost": (on("gpu", "NODE_FAIL", "NodeDown"), "", "", "FAILED"),
    "preempted for good": (on("cheap", "PREEMPTED"), "", "", "FAILED"),
    "preempted, by sacct": (None, "PREEMPTED", "", "FAILED"),
    "launch failed": (None, "LAUNCH_FAILED", "", "FAILED"),
    "a word without meaning": (None, "UNKNOWN", "", None),
    "forgotten, it ended well": (None, "", "0", "COMPLETED"),
    "forgotten, it failed": (None, "", "3", "FAILED"),
    "forgotten, the database lags": (None, "RUNNING", "0", "COMPLETED"),
    "never to start": (on("short", "PENDING", "PartitionTimeLimit"), "", "", "CANCELLED"),
    "another partition may": (on("a,b", "PENDING", "PartitionTimeLimit"), "", "", None),
    "held by its owner": (on("gpu", "PENDING", "JobHeldUser"), "", "", None),
    "held by Slurm": (on("gpu", "PENDING", "launch failed requeued held"), "", "", "CANCELLED"),
    "nodes are down": (on("gpu", "PENDING", "ReqNodeNotAvail"), "", "", None),
}


@pytest.mark.parametrize("case", ENDS)
def test_how_a_job_ended(case):
    live, accounted, exit_status, expected = ENDS[case]
    verdict = judge(live, accounted, exit_status, 0.0)
    assert (verdict and verdict.state) == expected


def test_a_job_that_left_no_trace_is_waited_for_only_for_a_moment():
    assert judge(None, "", "", 29.0) is None
    for accounted in ("", "RUNNING", "UNKNOWN"):  # 30 s: docs/slurm-status.md
        assert judge(None, accounted, "", 31.0).state == "FAILED"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Put ours before pretend commands that answer what `says` has; return (folder, says)."""
    real, says, folder = tmp_path / "real", tmp_path / "says", tmp_path / "featuremill-slurm"
    real.mkdir()
    says.mkdir()
    for command in slurm_start.USED:
        path = real / command
        path.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$*" >>{says}/{command}.asked\n'
            f"[ -e {says}/{command} ] || {{ echo down >&2; exit 1; }}\ncat {says}/{command}\n"
        )
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{real}{os.pathsep}{os.environ['PATH']}")
    slurm_start.put_first(folder)
    return folder, says


def asked(command, *arguments, status=0):
    done = subprocess.run([command, *arguments], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_executor_asks_so():
    from snakemake_executor_plugin_slurm import job_status_query

    for query, words in QUERIES.items():
        asked = getattr(job_status_query, f"query_job_status_{query}")(NAME)
        dateless = [re.sub(r"^\d{4}-.*", "2026-11-20T00:00", word) for word in shlex.split(asked)]
        assert dateless == words


@pytest.mark.parametrize("query", QUERIES)
def test_both_queries_are_answered_and_an_answer_is_kept(slurm, query):
    folder, says = slurm
    run = Run(folder / NAME)
    run.folder.mkdir()
    for job in "12", "13", "14":
        run.add(job)
    (says / "squeue").write_text("12|RUNNING|gpu|None\n13|PREEMPTED|cheap|None\n")
    (says / "sacct").write_text("14|CANCELLED by 1000\n")
    words = QUERIES[query][1:]
    answer = {"14": "CANCELLED", "13": "FAILED", "12": "RUNNING"}
    assert dict(line.split("|") for line in asked(query, *words).splitlines()) == answer
    assert (says / "sacct.asked").read_text().endswith("--jobs 14\n")
    (says / "squeue").write_text("12|COMPLETED|gpu|None\n")  # the others are forgotten
    (says / "sacct").unlink()
    answer["12"] = "COMPLETED"
    assert dict(line.split("|") for line in asked(query, *words).splitlines()) == answer
    assert (says / "sacct.asked").read_text().count("\n") == 1
    reason = asked("sacct", "-j", "13.0", "--format=Reason", "--noheader")
    assert reason == "PREEMPTED, and Slurm has not queued it again\n"
    assert asked("sacct", "-j", "13.1", "--format=Reason", "--noheader") == ""


@pytest.mark.parametrize("query", QUERIES)
def test_nothing_is_told_while_the_controller_is_away(slurm, query):
    folder, says = slurm
    run = Run(folder / NAME)
    run.folder.mkdir()
    run.add("12")
    (says / "sacct").write_text("12|COMPLETED\n")  # what follows could not be submitted now
    assert asked(query, *QUERIES[query][1:]) == ""
    assert run.verdicts() == {}


def test_submissions_are_recorded_with_how_the_job_ended(slurm):
    folder, says = slurm
    (says / "sbatch").write_text("15;testbed\n")
    wrap = '--wrap=echo "it\'s $SLURM_JOB_ID"; exit 3'
    assert asked("sbatch", "--parsable", "--job-name", NAME, wrap) == "15;testbed\n"
    run = Run(folder / NAME)
    assert run.jobs() == ["15"]
    script = (says / "sbatch.asked").read_text().partition("--wrap=")[2]
    environment = os.environ | {"SLURM_JOB_ID": "15"}
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "it's 15\n")
    assert run.exit_status("15") == "3"


def test_what_could_not_be_followed_is_refused(slurm):
    for option, word in (("--array=1-4", "slurm-array-jobs"), ("--clusters", "slurm_cluster")):
        words = ["--parsable", "--job-name", NAME, option, "--wrap=true"]
        done = subprocess.run(["sbatch", *words], capture_output=True, text=True)
        assert done.returncode == 1
        assert word in done.stderr


def test_what_others_ask_goes_to_slurm_itself(slurm):
    folder, says = slurm
    mine = "--parsable --job-name mine --array=1-4 job.sh"
    for command, words in (
        ("sbatch", "job.sh -p gpu"),
        ("sbatch", mine),
        ("squeue", "--me"),
        ("squeue", "--name mine"),
        ("sacct", "-j 7"),
    ):
        (says / command).write_text("slurm's own\n")
        assert asked(command, *words.split()) == "slurm's own\n"
        assert (says / f"{command}.asked").read_text().endswith(f"{words}\n")
        assert not (folder / "mine").exists()


def test_a_second_workflow_in_the_same_process_does_not_stack_them(slurm, tmp_path, monkeypatch):
    folder, _ = slurm
    other = tmp_path / "other" / folder.name
    monkeypatch.setenv("PATH", os.environ["PATH"])
    slurm_start.put_first(other)
    real = json.loads((other / slurm_commands.REAL_COMMANDS).read_text())
    assert real["sbatch"] == str(tmp_path / "real" / "sbatch")
    assert str(folder) not in os.environ["PATH"]


@pytest.mark.parametrize("is_main, nodes, expected", [(True, 8, True), (False, 8, False)])
def test_only_the_main_process_of_a_cluster_run_does_so(
    slurm, tmp_path, monkeypatch, is_main, nodes, expected
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["snakemake"])
    output_settings = SimpleNamespace(dryrun=False)
    workflow = SimpleNamespace(
        is_main_process=is_main, nodes=nodes, output_settings=output_settings
    )
    slurm_start.prepare(workflow)
    assert (tmp_path / slurm_start.FOLDER / "bin" / "sacct").exists() == expected


# The rest runs the real executor on a real Slurm.

SNAKEFILE = """\
from featuremill.flow import slurm_start

slurm_start.prepare(workflow)
EVENTS = config["events"].split("+")
PARTITION = {"nodefail": "frail", "preempt": "cheap", "requeue": "back", "toolong": "short"}
SECONDS = {"well": 1, "fails": 1, "away": 0}

rule all:
    input: expand("out/{event}", event=EVENTS)

rule work:
    output: "out/{event}"
    params: seconds=lambda wildcards: SECONDS.get(wildcards.event, 600)
    resources:
        runtime=lambda wildcards: {"timeout": 1, "toolong": 600}.get(wildcards.event, 10),
        slurm_partition=lambda wildcards: PARTITION.get(wildcards.event, "steady"),
        mem_mb=100
    shell:
        "[ ! -e started.{wildcards.event} ] || exec touch {output}; " # started once more
        "echo $SLURM_JOB_ID >started.{wildcards.event}.new; "
        "mv started.{wildcards.event}.new started.{wildcards.event}; "
        "if [ {wildcards.event} = away ]; then until [ -e go ]; do sleep 0.5; done; fi; "
        "sleep {params.seconds}; [ {wildcards.event} != fails ]; touch {output}"
"""
PARTITIONS = """
JobRequeue=0
UnkillableStepTimeout=180
PartitionName=steady Nodes=gpu1 MaxTime=INFINITE
PartitionName=short Nodes=gpu1 MaxTime=30
PartitionName=frail Nodes=gpu2 MaxTime=INFINITE
PartitionName=cheap Nodes=gpu3 MaxTime=INFINITE PriorityTier=1 PreemptMode=CANCEL
PartitionName=first Nodes=gpu3 MaxTime=INFINITE PriorityTier=9 PreemptMode=OFF
PartitionName=back Nodes=gpu1 MaxTime=INFINITE
"""
ENDS_WELL = {"well", "requeue", "away"}
EVENTS = [*sorted(ENDS_WELL), "fails", "nodefail", "preempt", "scancel", "timeout", "toolong"]
FEW = ["scancel", "well"]


class Workflow:
    """A Snakemake with the Slurm executor inside a cluster, one job an event."""

    def __init__(self, cluster, parent, mode, events):
        self.cluster, self.folder = cluster, parent / mode
        self.folder.mkdir()
        (self.folder / "Snakefile").write_text(SNAKEFILE)
        self.log = self.folder / "log"
        options = ["--executor", "slurm", "--jobs", "20", "--keep-going", "--verbose"]
        options += ["--slurm-status-command", mode, "--latency-wait", "5", "--nocolor"]
        options += ["--slurm-init-seconds-before-status-checks", "2"]
        options += ["--config", f"events={'+'.join(events)}"]
        with self.log.open("w") as log:
            command = [sys.executable, "-m", "snakemake", *options]
            self.process = cluster.popen(*command, cwd=self.folder, stdout=log, stderr=log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.cluster.signal(self.process, 9)
            self.process.wait()

    def job(self, event):
        """Return the Slurm id of the event's job, once it computes."""
        path = self.folder / f"started.{event}"
        self.cluster.wait_until(path.exists, 90)
        return path.read_text().strip()

    def polled(self):
        """Wait for a status query that began after now."""
        begun = self.log.read_text().count("Checking the status of ")
        done = "Status query timing (cycle)"
        self.cluster.wait_until(lambda: self.log.read_text().count(done) > begun, 90)

    def ended(self, seconds):
        """Wait for the end; return what was made and what was said of the failed jobs."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it waits: {self.cluster.jobs()}\n{self.log.read_text()[-3000:]}")
        text = self.log.read_text()
        failures = text.count("message: SLURM-job")
        assert (status == 0) == (failures == 0)
        return {path.name for path in (self.folder / "out").iterdir()}, failures, text


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("database", [True, False], ids=["accounting", "forgets-after-2-s"])
def test_a_run_ends_whatever_happens(slurm_cluster, tmp_path, database):
    """Every event of docs/slurm-status.md that a Slurm without memory cgroups can show."""
    age = 300 if database else 2
    cluster = slurm_cluster(nodes=3, gpus=1, dbd=database, min_job_age=age, more_conf=PARTITIONS)
    modes = ["sacct", "squeue"] if database else ["squeue", "sacct"]
    options = cluster, tmp_path
    events = EVENTS if database else [event for event in EVENTS if event != "timeout"]  # a minute
    with Workflow(*options, modes[0], events) as every, Workflow(*options, modes[1], FEW) as few:
        for workflow in (every, few):
            cluster.run("scancel", workflow.job("scancel"))
        happen(cluster, every)
        for daemon in ["slurmdbd", "slurmctld"] if database else ["slurmctld"]:
            cluster.stop(daemon)
            if daemon == "slurmctld":
                (every.folder / "go").touch()  # a job ends meanwhile
            every.polled()
            cluster.start(daemon)
        assert few.ended(150)[:2] == ({"well"}, 1)
        made, failures, text = every.ended(240)
    assert made == ENDS_WELL
    assert failures == len(events) - len(ENDS_WELL)
    assert "it could never start (PENDING: PartitionTimeLimit)" in text or modes[0] == "squeue"


def happen(cluster, workflow):
    """Make the events come true: a lost node, a preemption, a job that is queued again."""
    workflow.job("nodefail")
    cluster.kill("gpu2")
    cluster.run("scontrol", "update", "nodename=gpu2", "state=down", "reason=test")
    workflow.job("preempt")
    wrap = ["-o", "/dev/null", "--wrap", "true"]
    cluster.run("sbatch", "-p", "first", "--exclusive", "-t", "2", *wrap)
    again = workflow.job("requeue")
    cluster.run("scontrol", "update", f"jobid={again}", "requeue=1")
    cluster.run("scontrol", "requeue", again)
    # Slurm lets a requeued job wait for two minutes.
    cluster.wait_until(lambda: cluster.jobs()[again][0] == "PENDING")
    cluster.run("scontrol", "update", f"jobid={again}", "StartTime=now")


@pytest.mark.slow
def test_a_submission_waits_for_the_controller(slurm_cluster, tmp_path):
    cluster = slurm_cluster(gpus=1)
    folder = tmp_path / "featuremill-slurm"
    ours = f"slurm_start.put_first(pathlib.Path({str(folder)!r}))"
    code = f"import pathlib; from featuremill.flow import slurm_start; {ours}"
    cluster.run(sys.executable, "-c", code)
    cluster.stop("slurmctld")
    words = ["--parsable", "--job-name", NAME, "-o", "/dev/null", "--wrap=exit 3"]
    sbatch = cluster.popen(folder / "bin" / "sbatch", *words, stdout=subprocess.PIPE)
    query = QUERIES["sacct"][1:]
    cluster.wait_until((folder / NAME).is_dir)
    assert cluster.run(folder / "bin" / "sacct", *query) == ""
    cluster.start("slurmctld")
    job = sbatch.communicate(timeout=60)[0].strip()
    ask = folder / "bin" / "sacct"
    cluster.wait_until(lambda: cluster.run(ask, *query) == f"{job}|FAILED\n")
    assert Run(folder / NAME).exit_status(job) == "3"


def test_asking_starts_nothing_heavy():
    """Each poll and each of ten questions about a failed job starts it anew."""
    code = (
        "import runpy, sys; before = set(sys.modules); "
        f"runpy.run_path({str(ROOT / 'src/featuremill/flow/slurm_commands.py')!r}); "
        "print({name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not {"featuremill", "pydantic", "numpy", "snakemake", "asyncio"} & eval(done.stdout)
