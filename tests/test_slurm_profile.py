"""profiles/slurm: every key explained, known, and read by Snakemake; no Slurm is needed."""

import logging
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from programs import Desk, Workflow, random_records
from snakemake.cli import get_argument_parser
from snakemake.profiles import ProfileConfigFileParser

from featuremill import SNAKEFILE
from featuremill.__main__ import main
from featuremill.flow import internals, start_snakemake
from featuremill.flow.screen import Failures, message_of
from featuremill.flow.summary import closing

PROFILE = ROOT / "profiles" / "slurm"
TEXT = (PROFILE / "config.yaml").read_text()


def with_all_keys():
    """Return the profile with the keys that it has only as comments."""
    hidden = re.compile(r"^( *)# ?(?! ?-{4})(?=( *- )?[ a-z_-]+[:=])")
    lines = [hidden.sub(r"\1", line) for line in TEXT.splitlines()]
    return yaml.safe_load("\n".join(line for line in lines if not line.startswith("#")))


def test_every_key_is_explained():
    lines = [line for line in TEXT.splitlines() if re.match(r" *[a-z_-]+:", line)]
    assert len(lines) > 10
    assert all(re.search(r"\S +# \w", line) for line in lines)


@pytest.mark.slow
def test_every_key_is_one_of_snakemakes_or_of_the_plugins():
    from snakemake_executor_plugin_slurm import ExecutorSettings

    profile = with_all_keys()
    plugins = {f"slurm-{field.name.replace('_', '-')}" for field in fields(ExecutorSettings)}
    options = {
        text.lstrip("-")
        for action in get_argument_parser()._actions
        for text in action.option_strings
    }
    assert profile.keys() > {"slurm-status-command", "set-resources", "groups", "set-threads"}
    assert profile.keys() - plugins <= options | {"__use_yte__", "__definitions__"}
    assert set(profile["set-resources"]) == {"extract", "plan"}
    assert profile["executor"] == '?executor("slurm")'


@pytest.mark.parametrize("words", ["plan", "--configfile my.yaml", "--until plan -- plan"])
@pytest.mark.parametrize("own", ["", "workflow/Snakefile"])
def test_what_follows_the_scripts_name_reaches_snakemake(tmp_path, words, own):
    """In the first life of the allocation's job, and in one after a lost node, which unlocks; in a
    folder with a workflow of its own, and in one without."""
    if own:
        (tmp_path / own).parent.mkdir()
        (tmp_path / own).touch()
    command = tmp_path / "snakemake"
    command.write_text('#!/bin/sh\necho "$*" >>asked\n')
    command.chmod(0o755)
    path = os.pathsep.join(map(str, [tmp_path, Path(sys.executable).parent, os.environ["PATH"]]))
    environment = {"PATH": path, "SLURM_RESTART_COUNT": "1"}
    environment |= {"SLURM_CPUS_PER_TASK": "16", "SLURM_GPUS_ON_NODE": "4"}
    script = ["bash", PROFILE / "allocation.sbatch", *words.split()]
    subprocess.run(script, cwd=tmp_path, env=environment, check=True, timeout=60)
    unlocking, running = (tmp_path / "asked").read_text().splitlines()
    mine, first, second = (
        vars(get_argument_parser().parse_args(line.split())) for line in (words, unlocking, running)
    )
    assert (first["unlock"], second["unlock"]) == (True, False)
    assert (second["cores"], second["resources"].keys()) == (16, {"gpu"})
    assert first["snakefile"] == second["snakefile"] == (own or SNAKEFILE)
    for key in ("targets", "configfile", "until"):
        assert mine[key] == first[key] == second[key]


@pytest.mark.slow
def test_what_jobs_would_ask_for(tmp_path, environment):
    """A dry run on a machine without a GPU says it, for jobs that would have one."""
    workflow = Workflow(tmp_path, environment, random_records(20))
    workflow("plan")
    workflow.ask(device="cuda")
    workflow("plan")
    said = workflow("-n", "--workflow-profile", str(PROFILE), "--jobs", "7")
    extract = said.partition("rule extract:")[2].partition("\n[")[0]
    assert "mem_mb=4000," in extract and "runtime=60," in extract and "gpu=1" in extract
    merge = said.partition("rule merge:")[2].partition("\n[")[0]
    assert "mem_mb=4000," in merge and "runtime=15" in merge and "gpu=" not in merge


def test_a_profile_that_is_not_there_is_refused(tmp_path, environment, monkeypatch, capsys):
    """Snakemake would run on the login node; the names of the package hold in any folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.fa").write_text(">p1\nMKVLAAGIVGL\n")
    (tmp_path / "my.yaml").write_text("inputs: my.fa\nworkload: composition\ndevice: cpu\n")
    for words in (["--workflow-profile", "profiles/slurm"], ["--workflow-profile=slrum"]):
        assert main(["run", "my.yaml", "-n", *words]) == 2
        said = capsys.readouterr().err
        assert "no such file or folder" in said and "default, kubernetes, lsf, slurm." in said
    desk = Desk(tmp_path, environment)
    profile = ROOT / "profiles" / "default"  # the fast tests' environment has its executor
    for words in (["--workflow-profile", "default"], [f"--workflow-profile={profile}"]):
        said = desk.type("featuremill", "run", "my.yaml", "-n", *words).text
        assert f"workflow specific profile {profile} for setting" in said


@pytest.mark.parametrize("words", [["--profile", "lsf"], ["-n", "--profile=lsf"]])
def test_a_profile_of_ours_that_snakemake_does_not_find_is_named_right(words, monkeypatch, capsys):
    def no_profile():
        raise SystemExit(1)

    monkeypatch.setattr(start_snakemake, "main", no_profile)
    monkeypatch.setattr(sys, "argv", ["snakemake", *words])
    monkeypatch.delitem(sys.modules, "featuremill.flow.screen")
    with pytest.raises(SystemExit) as ended:
        start_snakemake.start()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: featuremill's own: --workflow-profile lsf\n"
    assert start_snakemake.misnamed_profile(["--workflow-profile", "lsf", "--profile", "my"]) == ""


@pytest.mark.parametrize("name", internals.EXECUTORS)
@pytest.mark.parametrize("by", ["profile", "option"])
def test_an_executor_that_is_not_installed_is_named_with_its_extra(name, by, monkeypatch, capsys):
    """As a profile asks for it, and as argparse refuses it."""
    profile = ROOT / "profiles" / name / "config.yaml"

    def parsed():
        with profile.open() as stream:
            return ProfileConfigFileParser().parse(stream)

    if by == "profile":
        monkeypatch.setattr(internals, "find_spec", lambda _: None)
        with pytest.raises(SystemExit) as ended:
            parsed()
    else:
        said = f"argument --executor/-e: invalid choice: {name!r} (choose from 'local', 'touch')"
        with pytest.raises(SystemExit) as ended:
            start_snakemake.refuse(get_argument_parser(), said)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: executor {name}: its plugin is not installed in the environ")
    assert said.endswith(f"-m pip install 'featuremill[{name}]'\n")
    monkeypatch.setattr(internals, "find_spec", lambda _: "there")
    assert parsed()["executor"] == name


def test_the_summary_says_what_the_executor_says_of_jobs_that_said_nothing():
    """As after scancel; jobs that ended alike are told once."""
    failures = Failures()
    for job in ("7", "8"):
        message = f"SLURM-job '{job}' failed, SLURM status is: 'CANCELLED'. "
        message += "Reason: Step 0: CANCELLED by 0."
        about = {"rule_name": "extract", "rule_msg": message, "shellcmd": "featuremill extract"}
        record = logging.LogRecord("snakemake", logging.ERROR, "", 0, "failed", (), None)
        more = {"log": [f"{job}.log"], "output": [f"{job}.json"], "event": "job_error"}
        record.__dict__.update(about, **more)
        assert f"error: {message}\n" in message_of(failures.take(record), is_here=False)
    said = closing(failures, "results/my")
    assert said.count("the Slurm job failed, SLURM status is: 'CANCELLED'.") == 1
    assert "CANCELLED by 0." in said and "without a word" not in said
    assert "log: 7.log (and 1 more job with the same)" in said
