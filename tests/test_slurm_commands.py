"""flow/slurm.py: whatever happens to a job or to Slurm's daemons, a run ends, and what failed is
told from what did not. The fast tests go by what Slurm 22.05 was seen to answer.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from snakemake.exceptions import WorkflowError

from featuremill.flow import internals, slurm
from featuremill.flow.slurm import Live, judge

COMMANDS = ("squeue", "sacct", "scancel", "sbatch")


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
def says(tmp_path, monkeypatch):
    """Return a folder: Slurm's commands answer what stands there under their names, or are down."""
    real, says = tmp_path / "real", tmp_path / "says"
    real.mkdir()
    says.mkdir()
    for command in COMMANDS:
        path = real / command
        path.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$*" >>{says}/{command}.asked\n'
            f"[ -e {says}/{command} ] || {{ echo down >&2; exit 1; }}\ncat {says}/{command}\n"
        )
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{real}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return says


class Stock:
    """The executor of which ours is a subclass, as far as ours takes things over."""

    def __init__(self, workflow):
        self.workflow = workflow
        self.logger = SimpleNamespace(debug=lambda text: None)
        self.said, self.next_seconds_between_status_checks = [], None
        assert self.look() == ([], []), "a thread looks before all is there"
        self.__post_init__()

    def __post_init__(self):
        self.run_uuid = "0e1c6df4"

    def format_job_exec(self, job):
        return job.command

    def run_job(self, job):
        self.said.append(("submitted", job.name))

    def shutdown(self):
        self.said.append("over")

    def report_job_success(self, job):
        self.said.append(("well", job.external_jobid))

    def report_job_error(self, job, msg="", aux_logs=()):
        self.said.append((getattr(job, "external_jobid", None), msg))

    def look(self, *numbers):
        """Let it look at jobs of these numbers; return those that go on, and what was reported."""
        jobs = [SimpleNamespace(external_jobid=number, aux=None) for number in numbers]

        async def asked():
            return [job.external_jobid async for job in self.check_active_jobs(jobs)]

        self.said.clear()
        return asyncio.run(asked()), list(self.said)


def executor_with(**settings):
    return slurm.watched(Stock)(SimpleNamespace(executor_settings=SimpleNamespace(**settings)))


def job(name="job", command="true", **resources):
    return SimpleNamespace(name=name, command=command, resources=resources)


def test_jobs_that_ended_are_reported_with_why(says):
    executor = executor_with(init_seconds_before_status_checks=20)
    (says / "squeue").write_text("12|RUNNING|gpu|None\n13|PREEMPTED|cheap|None\n")
    (says / "sacct").write_text("14|CANCELLED by 1000\n")
    why = "SLURM-job '{}' failed, SLURM status is: '{}'. Reason: {}."
    preempted = why.format(13, "FAILED", "PREEMPTED, and Slurm has not queued it again")
    cancelled = why.format(14, "CANCELLED", "CANCELLED by 1000")
    on, said = executor.look("12", "13", "14")
    assert on == ["12"] and said == [("13", preempted), ("14", cancelled)]
    assert executor.next_seconds_between_status_checks == 20
    assert (says / "squeue.asked").read_text().startswith("--noheader --states=all --name 0e1c6df4")
    assert (says / "sacct.asked").read_text().endswith("--jobs 14\n")
    assert executor.look("12") == (["12"], [])
    assert executor.next_seconds_between_status_checks == 30, "while none ends"
    (says / "squeue").write_text("12|COMPLETED|gpu|None\n")
    assert executor.look("12") == ([], [("well", "12")])
    assert executor.look() == ([], [])


def test_nothing_is_told_while_the_controller_is_away(says):
    executor = executor_with()
    (says / "sacct").write_text("12|COMPLETED\n")  # what follows could not be submitted now
    assert executor.look("12") == (["12"], [])


def test_what_can_never_start_leaves_the_queue(says):
    executor = executor_with()
    (says / "squeue").write_text("12|PENDING|short|PartitionTimeLimit\n")
    (says / "scancel").touch()
    on, said = executor.look("12")
    assert on == [] and "it could never start (PENDING: PartitionTimeLimit)" in said[0][1]
    assert (says / "scancel.asked").read_text() == "12\n"


def test_a_job_leaves_how_it_ended(says):
    executor = executor_with()
    said = executor.format_job_exec(job(command='echo "it\'s $SLURM_JOB_ID" && exit 3'))
    environment = os.environ | {"SLURM_JOB_ID": "15"}
    done = subprocess.run(["sh", "-c", said], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "it's 15\n")
    (says / "squeue").touch()
    (says / "sacct").touch()
    assert executor.look("15")[1][0][1].endswith("'FAILED'. Reason: exit status 3.")
    assert executor.look("16") == (["16"], []), "it may have just ended"


def test_a_submission_that_waits_for_the_controller_ends_with_snakemake(says):
    executor = executor_with()
    executor.format_job_exec(job())
    executor.shutdown()
    assert not list(slurm.FOLDER.iterdir()), "what its jobs left is no use any more"
    executor.run_job(job())
    assert executor.said == ["over"]
    (says / "squeue").touch()
    executor.run_job(job())
    assert executor.said == ["over", ("submitted", "job")]


def test_a_controller_that_is_away_is_told_once_a_minute(says, monkeypatch):
    told, clock = [], iter([0.0, 5.0, 59.0, 60.0, 65.0, 121.0, 130.0, 200.0])
    monkeypatch.setattr(internals, "log", SimpleNamespace(warning=told.append))
    monkeypatch.setattr(slurm.time, "monotonic", lambda: next(clock))
    watch = slurm.Watch(slurm.FOLDER, "name")
    for _ in range(6):
        assert watch.ask_controller() is None
    waits = (
        "Slurm's controller (slurmctld) does not answer{}: submissions wait for it, up to an hour."
    )
    lasted = ("", ", for 1\xa0min now", ", for 2\xa0min 1\xa0s now")
    assert told == [waits.format(words) for words in lasted]
    (says / "squeue").touch()
    assert watch.ask_controller() == {}
    (says / "squeue").unlink()
    assert watch.ask_controller() is None
    assert told[3:] == [waits.format("")], "another time that it is away"


def test_a_submission_that_waits_ends_once_snakemake_submits_no_more(says, monkeypatch):
    """As after SIGTERM: what runs ends, and nothing waits for the controller."""
    monkeypatch.setattr(slurm, "PAUSE_SECONDS", 0.0)
    told = []
    monkeypatch.setattr(internals, "log", SimpleNamespace(warning=told.append))
    monkeypatch.setattr(internals, "submitted", lambda job: job)
    executor = executor_with()
    ends = iter([None, None, "graceful"])
    scheduler = type("Scheduler", (), {"_user_kill": property(lambda _: next(ends))})
    executor.workflow.scheduler = scheduler()
    executor.run_job(job())
    assert executor.said == [(None, "it was not submitted, as this run was stopped.\n")]
    assert len((says / "squeue.asked").read_text().splitlines()) == 3 and len(told) == 1


def test_the_end_of_a_run_waits_for_no_look_at_its_jobs(says):
    executor = executor_with()
    executor.next_seconds_between_status_checks = slurm.LONGEST_SECONDS
    executor.shutdown()
    asyncio.run(asyncio.wait_for(executor.sleep(), 60))


@pytest.mark.parametrize("command", slurm.NEEDED)
def test_without_slurms_commands_a_run_is_refused_before_its_first_job(command, says, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None if name == command else name)
    with pytest.raises(WorkflowError, match=f"executor slurm: {command} is not in PATH, so no job"):
        executor_with()


def test_what_could_not_be_followed_is_refused(says):
    with pytest.raises(WorkflowError, match="leave slurm-array-jobs out"):
        executor_with(array_jobs="all")
    executor = executor_with()
    (says / "squeue").touch()
    for each in (job("here"), job("there", slurm_cluster="other")):
        executor.run_job(each)
    assert executor.said[0] == ("submitted", "here") and len(executor.said) == 2
    assert "leave slurm_cluster out" in executor.said[1][1]


@pytest.mark.parametrize(
    ("is_main", "nodes", "dryrun", "is_replaced"),
    [
        (True, 8, False, True),
        (False, 8, False, False),
        (True, None, False, False),
        (True, 8, True, False),
    ],
)
def test_only_the_main_process_of_a_cluster_run_does_so(
    monkeypatch, is_main, nodes, dryrun, is_replaced
):
    monkeypatch.setattr(sys, "argv", ["snakemake"])
    monkeypatch.setitem(sys.modules, slurm.EXECUTOR, sys)
    replaced = []
    monkeypatch.setattr(internals, "replace_executor", lambda *what: replaced.append(what))
    output_settings = SimpleNamespace(dryrun=dryrun)
    workflow = SimpleNamespace(
        is_main_process=is_main, nodes=nodes, output_settings=output_settings
    )
    slurm.prepare(workflow)
    assert replaced == [("slurm", slurm.watched)] * is_replaced


# The rest runs the real executor on a real Slurm.

SNAKEFILE = """\
from featuremill.flow import slurm

slurm.prepare(workflow)
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
        begun = self.log.read_text().count("asking Slurm about ")
        done = "Slurm reported "
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
    assert "it could never start (PENDING: PartitionTimeLimit)" in text


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
    cluster.hurry(again)


@pytest.mark.slow
def test_a_submission_waits_for_the_controller(slurm_cluster, tmp_path):
    cluster = slurm_cluster(nodes=3, gpus=1, more_conf=PARTITIONS)
    cluster.stop("slurmctld")
    with Workflow(cluster, tmp_path, "squeue", ["well"]) as workflow:
        cluster.wait_until(lambda: slurm.AWAY.partition("{")[0] in workflow.log.read_text(), 90)
        cluster.start("slurmctld")
        assert workflow.ended(150)[:2] == ({"well"}, 0)


@pytest.mark.parametrize(
    ("resources", "problem"),
    [
        ({"gpu_model": "nvidia_a100-sxm4-80gb"}, "gpu_model: nvidia_a100-sxm4-80gb: Snakemake's"),
        ({"gpu_model": "a100", "gpu": "2"}, ""),
        (
            {"gres": "gpu:a100:1"},
            "gres: gpu:a100:1: the job would ask for this and for gpu=1 besides",
        ),
        ({"gres": "gpu:a100:1", "gpu": "0"}, ""),
        ({"gres": "shard:1"}, "gres: shard:1: the job would ask for this and for gpu=1 besides"),
        ({"gres": "shard:1", "gpu": "0"}, ""),
        ({"gres": "tmpdir:1"}, ""),
    ],
)
def test_gpus_that_could_not_be_submitted_are_refused_before_the_first_job(resources, problem):
    said = slurm.problem_of_gpus(resources)
    assert said.startswith(problem) and bool(said) == bool(problem)
