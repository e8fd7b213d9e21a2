"""doctor --slurm: its issues for recorded answers of Slurm 22.05, and for a real cluster."""

import argparse
import json
import re
import sys
from importlib import metadata

import pytest

from featuremill.base import this_process
from featuremill.base.errors import UserError
from featuremill.doctor import checks, command

CONFIG = """\
Configuration data as of 2026-11-21T22:36:10
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = testbed
SLURM_VERSION           = 22.05.8
SlurmctldHost[0]        = head(127.0.0.1)

Cgroup Support Configuration:
ConstrainDevices        = yes
"""
PARSER = argparse.ArgumentParser()
command.add_arguments(PARSER)
KEYS = {"version", "ready", "cluster", "issues", "versions"}


class Answers:
    """Pretend commands, and a doctor among them."""

    def __init__(self, folder, capsys):
        self.folder = folder
        self._capsys = capsys
        self.says("scontrol", CONFIG)

    def says(self, command, text):
        path = self.folder / command
        (self.folder / f"{command}.txt").write_text(text)
        path.write_text(f"#!/bin/sh\ncat {self.folder}/{command}.txt\n")
        path.chmod(0o755)

    def fails(self, command, error):
        (self.folder / command).write_text(f"#!/bin/sh\necho '{error}' >&2\nexit 1\n")

    def ask(self, *arguments, status=0):
        parsed = PARSER.parse_args(["--slurm", *arguments])
        assert command.run(parsed) == status
        return checked(self._capsys.readouterr().out, parsed.json)


def checked(output, is_json):
    if not is_json:
        return output
    answer = json.loads(output)
    assert set(answer) == KEYS
    assert all(re.fullmatch(r".*\.", f"{i['what']}{i['remedy']}") for i in answer["issues"])
    assert {issue["code"] for issue in answer["issues"]} <= {"slurm"}
    return answer


@pytest.fixture
def cluster(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    version = metadata.version  # the fast tests' environment lacks the plugin
    pretended = {checks.PLUGIN: "2.8.0"}
    monkeypatch.setattr(metadata, "version", lambda name: pretended.get(name) or version(name))
    return Answers(tmp_path, capsys)


def errors(answer):
    return [issue["what"] for issue in answer["issues"] if issue["severity"] == "error"]


def test_a_cluster_in_full(cluster):
    answer = cluster.ask("--json")
    assert answer["ready"] and answer["cluster"] == "testbed" and not errors(answer)
    assert answer["versions"]["slurm"] == "22.05.8"
    assert cluster.ask().startswith("Ready: the cluster testbed takes jobs.\n")


def test_a_controller_that_is_away(cluster):
    cluster.fails("scontrol", "Unable to contact slurm controller (connect failure)")
    (error,) = errors(cluster.ask("--json", status=1))
    assert "no answer (Unable to contact slurm controller (connect failure))" in error
    cluster.fails("scontrol", "")
    (error,) = errors(cluster.ask("--json", status=1))
    assert "no answer (status 1)" in error


def test_a_missing_plugin_and_a_folder_that_other_nodes_do_not_see(cluster, monkeypatch):
    monkeypatch.setattr(checks, "installed", lambda names: {})
    monkeypatch.setattr(this_process, "installed", lambda names: {})
    monkeypatch.setattr(checks.lease_folder, "file_system", lambda *_: "tmpfs")
    answer = cluster.ask("--json", status=1)
    (error,) = errors(answer)
    assert error.startswith(f"{checks.PLUGIN} is not installed here")
    assert "tmpfs" in answer["issues"][1]["what"]
    assert answer["issues"][1]["remedy"] == checks.TABLE["local disk"][3]


def test_names_from_the_cluster_do_not_act_on_the_terminal(cluster):
    cluster.says("scontrol", CONFIG.replace("= testbed", "= \x1b[31mred"))
    assert "\x1b" not in cluster.ask()


def test_without_slurm_it_is_one_sentence(cluster, verbs):
    (cluster.folder / "scontrol").unlink()
    verbs.environment = {**verbs.environment, "PATH": str(cluster.folder)}
    said = verbs("doctor", "--slurm", status=2)
    assert (said.count("\n"), "scontrol: not in PATH" in said) == (1, True)


def test_what_is_about_this_machine_is_refused_beside_it(cluster):
    with pytest.raises(UserError, match="takes no --model"):
        cluster.ask("--model", "mill_t6_8M")


@pytest.mark.slow
def test_a_real_cluster_is_looked_at(slurm_cluster, tmp_path):
    types = {"gpu1": ["a100", "l4"], "gpu2": ["a100", "a100"]}
    cluster = slurm_cluster(nodes=2, gpus=2, gpu_types=types)
    ask = [sys.executable, "-m", "featuremill", "doctor", "--slurm", "--json"]
    answer = checked(cluster.run(*ask, cwd=tmp_path), True)
    assert answer["ready"] and answer["cluster"]
    cluster.stop("slurmctld")
    answer = checked(cluster.run(*ask, cwd=tmp_path, status=1), True)
    assert "gives no answer" in errors(answer)[0]
