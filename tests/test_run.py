"""featuremill run: Snakemake with this workflow, under the name that was typed."""

import json
import logging
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from programs import Desk, jobs_listed

from featuremill.__main__ import main
from featuremill.base import this_process
from featuremill.base.environment import QUIET, TYPED
from featuremill.config import validate
from featuremill.config.products import WITHOUT_EFFECT, counted
from featuremill.config.project import runs_of
from featuremill.flow import jobs, preflight, screen
from featuremill.flow.refusals import asks_for_less, check_cores
from featuremill.flow.screen import FailedJob, Failures, RefusedError
from featuremill.flow.summary import closing
from featuremill.status.commands import Commands, Fix
from featuremill.store import command_line, run_lock


def test_what_was_typed_is_what_people_are_told_to_type(tmp_path, environment, monkeypatch, capsys):
    """By the run that ended, by status, and by what a failed run says; but not by a Snakemake that
    a job of that run starts."""
    (tmp_path / "my.fa").write_text(">p1\nMKVLAAGIVGL\n")
    config = {"inputs": "my.fa", "run": "my", "workload": "composition", "device": "cpu"}
    (tmp_path / "my run.yaml").write_text(json.dumps(config))
    (tmp_path / "bad.yaml").write_text("inputs: my.fa\noptions: {model: ./what}\n")
    words = ["run", "my run.yaml", "--cores", "1", "--", "plan"]
    desk = Desk(tmp_path, environment)
    assert jobs_listed(desk.type("featuremill", *words[:-2], "-n", *words[-2:]).text) == {"plan"}
    said = desk.type("featuremill", *words).text
    assert "\n1 step done\n" in said, "not of how many: a plan adds steps"
    assert "workflow specific profile" not in said
    results = tmp_path / "results" / "my"
    assert run_lock.read(results).command == "featuremill run 'my run.yaml' --cores 1 -- plan"
    said = desk.type("featuremill", "run", "bad.yaml", status=2).err.splitlines()[-1]
    assert said.startswith("error: bad.yaml:2: options.model: what: this file does")
    monkeypatch.chdir(tmp_path)
    whole = "featuremill run 'my run.yaml' --cores 1"
    assert command_line.again(results) == whole, "the target was for that time"
    assert Commands(results, results, None).fixing([]) == [whole]
    forced = Fix("plan", rerun_by="forcerun")
    assert Commands(results, results, None).fixing([forced]) == [f"{whole} --forcerun plan"]
    (tmp_path / "else where").mkdir()
    monkeypatch.chdir(tmp_path / "else where")
    assert command_line.again(results) == f"cd {tmp_path} && {whole}"
    assert main(["status", "../my run.yaml"]) == 1, "results are looked for beside the config"
    said = capsys.readouterr().out
    assert said.startswith("../results/my: ") and f"cd {tmp_path} && {whole}" in said
    lock = run_lock.path_of(results)
    left = lock.read_text()
    lock.unlink()
    first = "cd .. && featuremill run 'my run.yaml'"
    assert runs_of(Path("../my run.yaml")).again() == first, "nothing was typed yet"
    lock.write_text(left)
    folder = os.path.relpath(tmp_path, tmp_path)
    for typed, again in {  # what Snakemake itself moves away from
        f"snakemake -c1 --directory {tmp_path}": f"snakemake -c1 --directory {tmp_path}",
        f"snakemake -c1 --directory {tmp_path.name}": f"cd {tmp_path.parent} && snakemake -c1 "
        f"--directory {tmp_path.name}",
    }.items():
        with run_lock.claim(results) as file:
            run_lock.sign(file, typed, folder=folder)
        assert command_line.again(results) == again
    monkeypatch.chdir(tmp_path.parent)
    assert command_line.again(results) == f"snakemake -c1 --directory {tmp_path.name}"
    monkeypatch.chdir(tmp_path)

    failures = Failures()
    failures._jobs[None] = FailedJob("extract", None, (Path("never"),), "")
    monkeypatch.setenv(TYPED.name, "")  # so that what follows is undone
    command_line.remember(["featuremill", *words])
    assert f"\n    {whole}\n" in closing(failures, "results/my")
    monkeypatch.setenv(TYPED.name, f"{os.getpid() + 1} featuremill run other.yaml")
    monkeypatch.setattr(sys, "argv", ["snakemake", "-c1"])
    said = closing(failures, "results/my")
    assert "\n    snakemake -c1\n" in said and "docs/" not in said, "a wheel has no pages"


@pytest.mark.parametrize(
    ("key", "value", "verbs"),
    [
        ("inputs", ["other.fa"], {"plan", "deliver", "merge", "report"}),
        ("outputs", ["npy"], {"deliver", "merge", "report"}),
        ("max_failed", 3, {"merge", "report"}),
        ("labels", {"file": "labels.tsv", "column": "family"}, {"report"}),
        ("keep", "results", set()),
    ],
)
def test_which_verbs_run_again_for_a_key(key, value, verbs):
    """As Snakemake compares what a rule's `reruns` returns."""
    config = {"inputs": ["my.fa"], "workload": "composition"}
    before, after = (validate(one) for one in (config, {**config, key: value}))
    assert {v for v in WITHOUT_EFFECT if counted(before, v) != counted(after, v)} == verbs


@pytest.mark.parametrize(
    ("endings", "status"),
    [
        (["exit status 2"], 2),
        (["exit status 3", "exit status 3"], 3),
        (["exit status 2", "exit status 4"], 1),
        (["exit status 130"], 1),
        (["died with <Signals.SIGKILL: 9>"], 1),
        ([""], 1),
        ([], 1),
    ],
)
def test_a_run_ends_with_what_its_failed_jobs_ended_with(endings, status, monkeypatch):
    """Where they agree; Snakemake itself ends with 1 for every failure."""
    failures = Failures()
    for number, ending in enumerate(endings):
        job = FailedJob("extract", Path(f"{number}.log"), (Path("never"),), ending)
        failures._jobs[job.log] = job
    monkeypatch.setattr(screen, "_failures", [Failures(), failures])
    monkeypatch.setattr(screen.RefusedError, "status", 0)
    assert screen.exit_status() == status
    monkeypatch.setattr(screen.RefusedError, "status", 4)
    assert screen.exit_status() == 4, "a refusal says why nothing went on"


@pytest.mark.parametrize(
    ("quiet", "of_jobs"), [({"host", "reason"}, None), ({"progress", "rules"}, "1"), ({"all"}, "1")]
)
def test_a_quiet_run_has_quiet_jobs(quiet, of_jobs, monkeypatch):
    """`-q` is progress and rules; host and reason are hidden by the default profile."""
    monkeypatch.delenv("FEATUREMILL_QUIET", raising=False)
    inside = {"quiet_about": quiet, "is_main": True, "runs_elsewhere": False, "rule_resources": {}}
    for name, value in {**inside, "is_imported": False}.items():
        monkeypatch.setattr(jobs.internals, name, lambda *_, value=value: value)
    jobs.prepare_jobs(object())
    assert QUIET.text() == of_jobs


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        ("snakemake plan -c all --configfile my.yaml", "snakemake -c all --configfile my.yaml"),
        ("snakemake --cores all partial -s x", "snakemake --cores all -s x"),
        ("snakemake -c2 --until plan --rerun-incomplete", "snakemake -c2"),
        ("snakemake -c2 all --until=merge -F --touch", "snakemake -c2 all"),
        ("featuremill run my.yaml weights/m.json results/my/plan.json", "featuremill run my.yaml"),
        ("featuremill run results/a.yaml -R extract merge -k", "featuremill run results/a.yaml -k"),
        ("featuremill run plan --config a=3 -- report", "featuremill run plan --config a=3"),
        ("featuremill run my.yaml -q --cores 2", "featuremill run my.yaml --cores 2"),
        ("featuremill run my.yaml --quiet all", "featuremill run my.yaml"),
        ("snakemake -d results/there plan -s Snakefile", "snakemake -d results/there -s Snakefile"),
        ("snakemake -c1 --configfile=my.yaml plan", "snakemake -c1 --configfile=my.yaml"),
        ("A=1 B=2 featuremill run plan -F", "A=1 B=2 featuremill run plan"),
        ("featuremill run my.yaml --executor touch -k", "featuremill run my.yaml -k"),
        ("snakemake -c1 --consider-ancient plan=records -P report -k", "snakemake -c1 -k"),
        ("snakemake -c1 --snakefile=S results/x/plan.json -Rplan", "snakemake -c1 --snakefile=S"),
    ],
)
def test_what_was_wanted_once_is_not_typed_again(words, whole):
    assert command_line.whole(words) == whole == command_line.whole(whole)


@pytest.mark.parametrize(
    ("words", "is_less"),
    [
        ("--cores all --configfile my.yaml", False),
        ("-c1 --forcerun plan extract --configfile plan", False),
        ("-c1 --config run=plan --snakefile plan", False),
        ("-c1 --configfile=my.yaml plan", True),
        ("-c1 --forcerun plan -- results/my/plan.json", True),
        ("-c1 --until=plan", True),
        ("-c1 -t", True),
    ],
)
def test_what_asks_for_less_than_the_run(words, is_less, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["snakemake", *words.split()])
    assert asks_for_less("results/my") == is_less


def test_targets_of_a_workflow_that_imports_this_one_stay():
    """It has no profile of ours, so what a killed Snakemake left needs a word."""
    words = "snakemake -c2 results/final.tsv --forcerun my_extract my_merge -- my_plan theirs"
    whole = "snakemake -c2 results/final.tsv --rerun-incomplete -- theirs"
    assert command_line.whole(words, "my_{}", is_imported=True) == whole
    assert command_line.whole(whole, "my_{}", is_imported=True) == whole


NO_CONFIG = "{}: this is no config but FASTA; featuremill init {} writes one."
TWICE = "--configfile: the config is my.yaml already; leave"
GONE = "mine.yaml: there is no such config; featuremill init YOUR.fasta writes"
FASTA, INPUT = ">p1\nMKVLAAGIVGL\n", "inputs: my.fa\n"


@pytest.mark.parametrize(
    ("name", "text", "words", "sentence"),
    [
        *(
            (name, FASTA, [name], NO_CONFIG.format(name, name))
            for name in ("my.fa", "My.FASTA.gz", "sequences")
        ),
        # Which Snakemake itself would not name.
        ("my.yaml", f"{INPUT}options:\n\ta: b\n", ["my.yaml"], "my.yaml:3: this is not valid YAML"),
        ("my.yaml", INPUT, ["my.yaml", "--configfile=a.yaml"], TWICE),
        ("my.yaml", INPUT, ["mine.yaml"], GONE),
    ],
)
def test_what_is_no_config_is_refused_before_snakemake(
    tmp_path, monkeypatch, capsys, name, text, words, sentence
):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    assert main(["run", *words]) == 2
    assert f"error: {sentence}" in capsys.readouterr().err


@pytest.fixture
def became(tmp_path, monkeypatch):
    """Be in a folder with my.yaml; return what a command becomes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(TYPED.name, "")  # so that what follows is undone
    Path("my.yaml").write_text(INPUT)
    became = []
    monkeypatch.setattr(os, "execv", lambda _, words: became.extend(words))
    return became


def test_a_run_without_options_takes_all_cores(became):
    assert main(["run", "my.yaml"]) == 0
    assert became[2:5] == ["featuremill.flow.start_snakemake", "--configfile", "my.yaml"]
    assert became[-2:] == ["--cores", "all"]
    assert command_line.command() == "featuremill run my.yaml"
    few = ["--quiet", "host", "reason", "rules", "--snakefile"]
    for words, is_short in ((["-n"], True), (["--dry-run", "plan"], True), (["-n", "-p"], False)):
        became.clear()
        assert main(["run", "my.yaml", *words]) == 0
        assert (became[5:10] == few) == is_short and ("--quiet" in became) == is_short


def test_no_cores_are_refused_where_snakemake_would_wait_for_ever():
    def told(cores):
        settings = SimpleNamespace(cores=cores)
        return SimpleNamespace(nodes=None, remote_exec=False, resource_settings=settings)

    check_cores(told(1))
    with pytest.raises(RefusedError, match="--cores 0: no job could run"):
        check_cores(told(0))


def test_a_quota_of_a_container_limits_the_cores(tmp_path, monkeypatch):
    """Both versions of control groups, as the kernel writes them, in a container and outside."""

    def quota(groups, **files):
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in {"proc/self/cgroup": groups, **files}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return this_process.cpu_quota(root)

    two = "sys/fs/cgroup"
    assert quota("0::/\n", **{f"{two}/cpu.max": "150000 100000\n"}) == 1.5
    assert quota("0::/\n", **{f"{two}/cpu.max": "max 100000\n"}) == math.inf
    inside = {f"{two}/a/cpu.max": "200000 100000\n", f"{two}/a/b/cpu.max": "max 100000\n"}
    assert quota("0::/a/b\n", **inside) == 2
    one = "sys/fs/cgroup/cpu/{}cpu.cfs_{}_us"
    files = {one.format("", "quota"): "-1\n", one.format("", "period"): "100000\n"}
    assert quota("4:cpu,cpuacct:/docker/1f\n3:memory:/x\n", **files) == math.inf
    files |= {one.format("", "quota"): "300000\n"}  # the path is the host's
    assert quota("4:cpu,cpuacct:/docker/1f\n", **files) == 3
    files |= {one.format("job/", "quota"): "100000\n", one.format("job/", "period"): "100000\n"}
    assert quota("4:cpu:/job\n0::/\n", **files) == 1
    assert quota("") == math.inf and this_process.cpu_quota(tmp_path / "none") == math.inf
    affinity = this_process.num_cores()
    monkeypatch.setattr(this_process, "cpu_quota", lambda: 0.2)
    assert this_process.num_cores() == 1
    monkeypatch.setattr(this_process, "cpu_quota", lambda: affinity + 0.5)
    assert this_process.num_cores() == affinity


@pytest.mark.parametrize(
    ("typed", "becomes"),
    [
        ([], ["--cores", "3"]),
        (["--cores", "all"], ["--cores", "3"]),
        (["--cores=all", "plan"], ["--cores=3", "plan"]),
        (["-c", "all", "--", "all"], ["-c", "3", "--", "all"]),
        (["--cores", "64"], ["--cores", "64"]),
    ],
)
def test_all_cores_in_a_container_are_those_of_its_quota(became, monkeypatch, typed, becomes):
    monkeypatch.setattr(this_process, "cpu_quota", lambda: 2.5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    assert main(["run", "my.yaml", *typed]) == 0
    assert became[-len(becomes) :] == becomes
    assert command_line.command() == " ".join(["featuremill run my.yaml", *typed])


def test_a_profile_of_the_environment_says_how_many_cores(became, monkeypatch):
    """With `--cores all` Snakemake cuts the threads of a cluster's jobs to the cores here."""
    for profile, has_cores in (("cluster", False), ("none", True), ("", True)):
        monkeypatch.setenv("SNAKEMAKE_PROFILE", profile)
        became.clear()
        assert main(["run", "my.yaml"]) == 0
        assert ("--cores" in became) == has_cores


def test_an_option_that_nobody_has_is_one_sentence(tmp_path, environment):
    desk = Desk(tmp_path, environment)
    (tmp_path / "my.yaml").write_text("inputs: my.fa\n")
    told = {
        "--outdir X": "error: there is no option --outdir; to have results in another folder: "
        "featuremill run --results FOLDER; snakemake --help lists all options.",
        "--dry-runn": "error: there is no option --dry-runn; did you mean --dry-run? snakemake "
        "--help lists all options.",
    }
    for words, sentence in told.items():
        said = desk.type("featuremill", "run", "my.yaml", *words.split(), status=2).text
        assert said.strip() == sentence
    said = desk.type("featuremill", "run", "my.yaml", "--output", "X", status=2).text
    assert "(--output was read as this option)" in said and len(said.splitlines()) == 1


def test_a_lock_of_a_living_run_does_not_advise_to_unlock(tmp_path, monkeypatch, capsys):
    """Two runs of one model that is not converted yet, in one folder."""
    monkeypatch.chdir(tmp_path)
    code = (
        "import sys; from pathlib import Path; from featuremill.store import run_lock\n"
        "file = run_lock.claim(Path('results/other'))\n"
        "run_lock.sign(file, 'featuremill run other.yaml')\nprint(flush=True)\nsys.stdin.read()"
    )
    record = logging.LogRecord("snakemake", logging.ERROR, "", 0, "Error: locked", (), None)
    record.exception = "LockException"
    handler = logging.Handler()
    handler.name = screen.internals.SCREEN
    monkeypatch.setattr(screen.internals.log, "handlers", [handler])
    screen.filter_output(SimpleNamespace())
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as other:
        other.stdout.readline()
        assert not handler.filter(record)
        said = capsys.readouterr().err
        assert f"featuremill run other.yaml (process {other.pid})" in said and "unlock" not in said
        other.communicate()
    assert handler.filter(record) and not capsys.readouterr().err  # a killed run's: Snakemake's own
    # If its owner was killed on another machine, its file names that one, though the lock is ours.
    owner = run_lock.path_of(Path("results/other"))
    owner.write_text(json.dumps(json.loads(owner.read_text()) | {"boot": "another"}))
    monkeypatch.setattr(run_lock, "CLAIMED", {})
    monkeypatch.setattr(preflight.internals, "locks_on", lambda results: [owner])
    preflight.claim_run("results/other")
    assert handler.filter(record) and not capsys.readouterr().err
    run_lock.CLAIMED.popitem()[1].close()


def test_the_error_of_the_only_job_that_failed_is_said_once(tmp_path, environment):
    environment = {**environment, "TORCH_HOME": str(tmp_path), "FEATUREMILL_CACHE": str(tmp_path)}
    closed = {f"{name}_proxy": "http://127.0.0.1:9" for name in ("http", "https")}
    desk = Desk(tmp_path, {**environment, **closed})
    config = {"run": "my", "inputs": "my.fa", "options": {"model": "esm2_t6_8M_UR50D"}}
    (tmp_path / "my.yaml").write_text(json.dumps(config))
    (tmp_path / "my.fa").write_text(">p1\nMKVLAAGIVGL\n")
    said = desk.type("featuremill", "run", "my.yaml", status=2).text
    assert " ".join(said.split()).count("cannot be downloaded here (") == 1
    assert said.count("weights/esm2_t6_8M_UR50D.log") == 1 and "featuremill status" in said
    (tmp_path / "my.fa").write_text("no FASTA\n")
    config["options"] = {"model": "mill_t6_8M"}
    (tmp_path / "my.yaml").write_text(json.dumps(config))
    said = desk.type("featuremill", "run", "my.yaml", status=2).text
    assert said.count("my.fa:1:") == 1, "the weights that were made are no last word"
