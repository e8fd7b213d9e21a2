"""doctor --slurm: how Slurm's answers are read (recorded from Slurm 22.05), what it says of them,
and, on a real cluster, that its advice works.
"""

import argparse
import json
import re
import sys
from importlib import metadata

import pytest
import yaml
from conftest import ROOT

from featuremill.base.errors import UserError
from featuremill.doctor import command, slurm
from featuremill.doctor.slurm import quoted

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
gpu*|up|infinite|1|drained|gpu:4|64000
gpu*|up|infinite|1|idle|gpu:a100:2,gpu:l4:2|64000
gpu*|up|infinite|1|idle|gpu:a100:2|64000
short|up|30:00|1|idle|gpu:a100:2,gpu:l4:2|64000
cheap|up|infinite|1|drained|gpu:4|64000
"""
ASSOCIATIONS = "root|\nmill|40\n"
PARSER = argparse.ArgumentParser()
command.add_arguments(PARSER)
CODES = set(re.findall(r"`(slurm-[a-z-]+)`", (ROOT / "docs" / "doctor.md").read_text("utf-8")))
KEYS = {"version", "ready", "cluster", "partitions", "issues", "profile", "versions"}
PARTITION_KEYS = {"name", "limit_minutes", "gpus", "unusable_gpus", "memory_mb"}


def test_time_limits_and_gpus_as_sinfo_writes_them():
    limits = {"30:00": 30, "2-00:00:00": 2880, "1-12:30:00": 2190, "infinite": None, "n/a": None}
    assert {text: slurm.minutes(text) for text in limits} == limits
    assert slurm.parse_gpus("gpu:a100:4(S:0-1),gpu:l4:2,shard:8") == {"a100": 4, "l4": 2}
    assert slurm.parse_gpus("gpu:4") == {"": 4}
    assert slurm.parse_gpus("(null)") == {}


def test_names_stay_text_in_yaml():
    for name in ("gpu", "no", "1234", "a: b", "it's", "-x"):
        assert yaml.safe_load(f"key: {quoted(name)}") == {"key": name}


class Answers:
    """Pretend commands, and a doctor among them."""

    def __init__(self, folder, capsys):
        self.folder = folder
        self._capsys = capsys
        self.says("sbatch", "")
        self.says("squeue", "")
        self.says("scontrol", CONFIG)
        self.says("sinfo", NODES)
        self.says("sacct", "")
        self.says("sacctmgr", ASSOCIATIONS)

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
    assert codes(answer) == {"slurm-nodes-away", "slurm-short-limit"}
    profile = yaml.safe_load("\n".join(answer["profile"]))
    assert profile["jobs"] == 40  # MaxSubmitJobs
    assert profile["default-resources"]["slurm_account"] == "mill"
    assert profile["set-resources"]["extract"] == {"slurm_partition": "gpu"}
    page = cluster.ask()
    assert page.startswith("Ready: the cluster testbed has up to 6 GPUs in a partition.\n")
    assert "Partition short: GPUs: 2 a100, 2 l4; at most 30 minutes.\n" in page
    assert "    # gpu_model: a100 # or l4; without it, any of them\n" in page


def test_without_accounting_and_with_open_devices(cluster):
    cluster.fails("sacctmgr", "You are not running a supported accounting_storage plugin")
    cluster.says("scontrol", CONFIG.partition("\nCgroup")[0])
    cluster.says("sinfo", "cpu*|up|infinite|2|idle|(null)|64000\n" + NODES.replace("gpu*", "g"))
    answer = cluster.ask("--json")
    assert "slurm-devices-open" in codes(answer)
    profile = yaml.safe_load("\n".join(answer["profile"]))
    assert "slurm_account" not in profile["default-resources"]
    assert profile["default-resources"]["slurm_partition"] == "cpu"
    assert profile["set-resources"]["extract"]["slurm_partition"] == "g"


def test_a_controller_that_is_away(cluster):
    cluster.fails("scontrol", "Unable to contact slurm controller (connect failure)")
    answer = cluster.ask("--json", status=1)
    assert codes(answer) == {"slurm-silent"}
    assert answer["profile"] == []


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


SNAKEFILE = """\
rule all:
    input: "done"
rule extract:
    output: "done"
    resources: gpu=1
    shell: "echo $CUDA_VISIBLE_DEVICES >{output}"
"""


@pytest.mark.slow
def test_its_advice_works_on_a_real_cluster(slurm_cluster, tmp_path):
    types = {"gpu1": ["a100", "l4"], "gpu2": ["a100", "a100"]}
    cluster = slurm_cluster(nodes=2, gpus=2, dbd=True, gpu_types=types)
    mill = ["-i", "add", "account", "mill"], ["-i", "add", "user", "root", "account=mill"]
    for words in mill:
        cluster.run("sacctmgr", *words)
    folder = tmp_path / "run"
    profile = folder / "profile"
    profile.mkdir(parents=True)
    ask = [sys.executable, "-m", "featuremill", "doctor", "--slurm", "--json"]
    answer = checked(cluster.run(*ask, cwd=folder), True)
    assert answer["partitions"][0]["gpus"] == {"a100": 3, "l4": 1}
    more = ["executor: slurm", "slurm-init-seconds-before-status-checks: 2"]
    (profile / "config.yaml").write_text("\n".join([*more, *answer["profile"]]))
    (folder / "Snakefile").write_text(SNAKEFILE)
    snakemake = [sys.executable, "-m", "snakemake", "--workflow-profile", "profile"]
    cluster.run(*snakemake, "--latency-wait", "10", cwd=folder, timeout=90)
    assert (folder / "done").read_text() == "0\n"
    cluster.stop("slurmctld")
    answer = checked(cluster.run(*ask, cwd=folder, status=1), True)
    assert "slurm-silent" in codes(answer)
