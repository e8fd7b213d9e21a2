"""doctor --slurm: how Slurm's answers are read (recorded from Slurm 22.05), what it says of them,
and that of a real cluster.
"""

import argparse
import json
import re
import sys
from importlib import metadata

import pytest
from conftest import ROOT
from documents import section

from featuremill.base.errors import UserError
from featuremill.doctor import command, slurm

CONFIG = """\
Configuration data as of 2026-11-21T22:36:10
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = testbed
DefMemPerCPU            = 100
MaxMemPerNode           = UNLIMITED
MinJobAge               = 300 sec
PreemptMode             = REQUEUE
SLURM_VERSION           = 22.05.8
SlurmctldHost[0]        = head(127.0.0.1)

Cgroup Support Configuration:
ConstrainDevices        = yes
"""
NODES = """\
gpu*|up|infinite|1|drained|gpu:4
gpu*|up|infinite|1|idle|gpu:a100:2,gpu:l4:2
gpu*|up|infinite|1|idle|gpu:a100:2
short|up|30:00|1|idle|gpu:a100:2,gpu:l4:2
cheap|up|infinite|1|drained|gpu:4
"""
PARSER = argparse.ArgumentParser()
command.add_arguments(PARSER)
CODES = set(re.findall(r"`(slurm-[a-z-]+)`", section(ROOT / "docs" / "json.md", "Doctor")))
KEYS = {"version", "ready", "cluster", "partitions", "issues", "versions"}
PARTITION_KEYS = {"name", "is_default", "limit", "num_nodes", "gpus", "unusable_gpus"}


def test_gpus_as_sinfo_writes_them():
    assert slurm.parse_gpus("gpu:a100:4(S:0-1),gpu:l4:2,shard:8") == {"a100": 4, "l4": 2}
    assert slurm.parse_gpus("gpu:4") == {"any": 4}
    assert slurm.parse_gpus("(null)") == {}


class Answers:
    """Pretend commands, and a doctor among them."""

    def __init__(self, folder, capsys):
        self.folder = folder
        self._capsys = capsys
        self.says("sbatch", "")
        self.says("squeue", "")
        self.says("scontrol", CONFIG)
        self.says("sinfo", NODES)

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
    assert all(set(one) == PARTITION_KEYS for one in answer["partitions"])
    assert all(re.fullmatch(r".*\.", f"{i['what']}{i['remedy']}") for i in answer["issues"])
    assert {issue["code"] for issue in answer["issues"]} <= CODES
    return answer


@pytest.fixture
def cluster(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    version = metadata.version  # the fast tests' environment lacks the plugin
    monkeypatch.setattr(
        metadata, "version", lambda name: {slurm.PLUGIN: "2.8.0"}.get(name) or version(name)
    )
    return Answers(tmp_path, capsys)


def codes(answer):
    return {issue["code"] for issue in answer["issues"]} - {"slurm-folder-local"}


def test_a_cluster_in_full(cluster):
    answer = cluster.ask("--json")
    assert answer["ready"]
    assert [one["name"] for one in answer["partitions"]] == ["gpu", "short", "cheap"]
    assert answer["partitions"][0]["gpus"] == {"a100": 4, "l4": 2}
    assert codes(answer) == {"slurm-nodes-away"}
    page = cluster.ask()
    assert page.startswith("Ready: the cluster testbed has up to 6 GPUs in a partition.\n")
    assert "Partition short: GPUs: 2 a100, 2 l4; time limit 30:00.\n" in page


def test_a_controller_that_is_away(cluster):
    cluster.fails("scontrol", "Unable to contact slurm controller (connect failure)")
    answer = cluster.ask("--json", status=1)
    assert codes(answer) == {"slurm-silent"}


def test_nodes_that_are_all_away_stop_a_run(cluster):
    cluster.says("sinfo", NODES.replace("idle", "down"))
    answer = cluster.ask("--json", status=1)
    assert {i["code"] for i in answer["issues"] if i["severity"] == "error"} == {"slurm-nodes-away"}


def test_names_from_the_cluster_do_not_act_on_the_terminal(cluster):
    cluster.says("scontrol", CONFIG.replace("= testbed", "= \x1b[31mred"))
    assert "\x1b" not in cluster.ask()


def test_without_slurm_it_is_one_sentence(cluster, verbs):
    (cluster.folder / "sinfo").unlink()
    verbs.environment = {**verbs.environment, "PATH": str(cluster.folder)}
    said = verbs("doctor", "--slurm", status=2)
    assert (said.count("\n"), "sinfo: not in PATH" in said) == (1, True)


def test_what_is_about_this_machine_is_refused_beside_it(cluster):
    with pytest.raises(UserError, match="takes no --model"):
        cluster.ask("--model", "mill_t6_8M")


@pytest.mark.slow
def test_a_real_cluster_is_looked_at(slurm_cluster, tmp_path):
    types = {"gpu1": ["a100", "l4"], "gpu2": ["a100", "a100"]}
    cluster = slurm_cluster(nodes=2, gpus=2, gpu_types=types)
    ask = [sys.executable, "-m", "featuremill", "doctor", "--slurm", "--json"]
    answer = checked(cluster.run(*ask, cwd=tmp_path), True)
    assert answer["partitions"][0]["gpus"] == {"a100": 3, "l4": 1}
    cluster.stop("slurmctld")
    answer = checked(cluster.run(*ask, cwd=tmp_path, status=1), True)
    assert "slurm-silent" in codes(answer)
