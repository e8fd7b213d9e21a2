"""What variables may hold, what rubbish comes to, and what children get."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT
from programs import Desk, Workflow, random_records

from featuremill.base import entry_points, environment, this_process
from featuremill.base.errors import UserError
from featuremill.flow import jobs
from featuremill.lease.environment import POLICY, WAIT

TYPED = [setting for setting in environment.SETTINGS if setting.kind.parse not in (str, Path)]


@pytest.mark.parametrize("setting", TYPED, ids=str)
def test_rubbish_is_one_sentence(setting, monkeypatch):
    monkeypatch.setenv(setting.name, "rubbish")
    with pytest.raises(UserError) as refused:
        environment.check()
    said = f"{setting}: 'rubbish' is not {setting.kind.words}; fix or unset it."
    assert str(refused.value) == said


@pytest.mark.parametrize("setting", environment.SETTINGS, ids=str)
def test_empty_is_unset(setting, monkeypatch):
    monkeypatch.setenv(setting.name, "")
    assert setting.value() == setting.default
    monkeypatch.delenv(setting.name)
    assert setting.value() == setting.default


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e10", "0x10", "9" * 400])
def test_what_is_no_number(text):
    for setting in (WAIT, environment.GPUS):
        with pytest.raises(UserError, match=f"{setting}: '{text[:40]}' is not a number"):
            setting.parse(text)


def test_values_have_their_types():
    assert WAIT.parse("1.5") == 1.5
    assert environment.GPUS.parse("4.0") == 4
    assert environment.QUIET.parse("1") is True and environment.QUIET.parse("0") is False
    assert POLICY.parse("memory") == "memory"


def test_a_child_gets_ours_with_changes(monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("CHANGED", "1")
    assert environment.of_child({"CHANGED": "2", "NEW": "3"}) == os.environ | {
        "CHANGED": "2",
        "NEW": "3",
    }
    assert os.environ["CHANGED"] == "1"


def test_a_default_gives_way(monkeypatch):
    monkeypatch.setenv("FEATUREMILL_POLICY", "memory")
    POLICY.set_default("balanced")
    assert POLICY.value() == "memory"


def test_a_verb_says_rubbish_in_a_sentence(tmp_path, environment):
    desk = Desk(tmp_path, {**environment, "FEATUREMILL_QUIET": "very"})
    said = "FEATUREMILL_QUIET: 'very' is not 1 (yes) or 0 (no); fix or unset it."
    assert desk.type("featuremill", "status", "results/my", status=2).err.strip() == said


def test_a_run_says_rubbish_before_anything(tmp_path, environment):
    workflow = Workflow(
        tmp_path, {**environment, "FEATUREMILL_STALL_SECONDS": "soon"}, random_records(3)
    )
    said = workflow("-n", status=1)
    assert "FEATUREMILL_STALL_SECONDS: 'soon' is not a number of seconds; fix" in said
    assert "Traceback" not in said


def test_what_jobs_inherit(monkeypatch):
    settings = SimpleNamespace(
        _parsed_overwrite_resources={},
        _parsed_default_resources={
            "gpu_model": SimpleNamespace(raw="'a100'"),
            "gpu_policy": SimpleNamespace(raw="memory"),
            "gpu_slots": SimpleNamespace(raw="2"),
        },
    )
    workflow = SimpleNamespace(
        resource_settings=settings,
        output_settings=SimpleNamespace(quiet=set()),
        modifier=SimpleNamespace(is_main_snakefile=lambda: True, modify_rulename=str),
        is_main_process=True,
        nodes=4,
    )
    given = {"PATH": "/usr/bin", "FEATUREMILL_SLOTS_PER_GPU": "3", "KEPT": "1"}
    monkeypatch.setattr(os, "environ", given)
    jobs.prepare_jobs(workflow)
    assert given == {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}/usr/bin",
        "KEPT": "1",
        "FEATUREMILL_DIE_WITH_PARENT": this_process.name_of_process(),
        "FEATUREMILL_METADATA": str(entry_points.metadata()),
        "FEATUREMILL_PACKAGE": str(ROOT / "src/featuremill"),
        "FEATUREMILL_GPU_MODEL": "a100",
        "FEATUREMILL_POLICY": "memory",
        "FEATUREMILL_SLOTS_PER_GPU": "3",
        "FEATUREMILL_SLURM_JOBS": "1",
    }
