"""Plug-ins are found by entry points, featuremill's own as others' are; its own have precedence."""

import pytest
from programs import Desk

from featuremill.base import entry_points
from featuremill.base.errors import UserError
from featuremill.config.project import draws_records
from featuremill.store import formats
from featuremill.workload import find_workload, plugin_errors, workloads

WORKLOADS = "featuremill.workloads"


def install(folder, name, version="1", **groups):
    """Write the metadata of a package into `folder`, with its entry points by group."""
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, points in groups.items():
        lines += [f"[featuremill.{group}]", *(f"{key} = {value}" for key, value in points.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def fresh():
    """Have nothing remembered of what is installed, before and afterwards."""
    remembered = (entry_points.own, formats.names, formats.module_of, formats.files)
    for each in remembered:
        each.cache_clear()
    yield
    for each in remembered:
        each.cache_clear()


def test_nobody_takes_the_name_of_one_of_featuremills_own(tmp_path, monkeypatch, fresh):
    thief = {"composition": "nowhere", "parquet": "nowhere", "zebra": "nowhere"}
    install(tmp_path, "thief", workloads=thief, outputs=thief)
    monkeypatch.syspath_prepend(tmp_path)
    assert workloads()[-1] == "zebra" and workloads().count("composition") == 1
    assert formats.names()[-1] == "zebra" and formats.names().count("parquet") == 1
    assert find_workload("composition").__name__ == "featuremill.workloads.composition"
    assert formats.module_of("parquet").__name__ == "featuremill.outputs.parquet"
    assert plugin_errors.who("composition") == "workload composition"
    assert plugin_errors.who("zebra") == "workload zebra (package thief 1)"
    assert not plugin_errors.is_external("composition") and plugin_errors.is_external("zebra")


@pytest.mark.parametrize("registered", [{}, {"outputs": {"parquet": "nowhere"}}])
def test_an_install_from_before_there_were_entry_points_is_a_sentence(
    registered, tmp_path, environment
):
    install(tmp_path / "site", "featuremill", "0.1.0", **registered)
    (tmp_path / "my.yaml").write_text("inputs: my.fa\nworkload: composition\n")
    path = f"{tmp_path / 'site'}:{environment['PYTHONPATH']}"
    desk = Desk(tmp_path, {**environment, "PYTHONPATH": path})
    said = desk.type("featuremill", "estimate", "my.yaml", status=2).err
    assert "no workload" not in said and "Traceback" not in said
    assert "is older than the entry points" in said
    assert "; type: pip install --no-deps --editable /" in said
    said = desk.type("featuremill", "audit", "my.fa", status=2).err
    assert "Traceback" not in said and "is older than the entry points" in said


def test_an_install_that_is_older_than_one_of_its_own_is_that_sentence(
    tmp_path, monkeypatch, fresh
):
    install(tmp_path, "featuremill", workloads={"composition": "nowhere"})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="is older than the entry points"):
        find_workload("pac")
    with pytest.raises(UserError, match="there is no workload 'esm3'; known ones are composition"):
        find_workload("esm3")


def test_a_report_needs_an_install_that_has_the_step_of_its_map(tmp_path, monkeypatch, fresh):
    install(tmp_path, "featuremill", steps={"groups": "featuremill.steps.groups"})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="is older than the entry points"):
        draws_records()
