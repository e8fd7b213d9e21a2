"""profiles/slurm: every key explained, known, and read by Snakemake; no Slurm is needed."""

import re
from dataclasses import fields

import yaml
from conftest import ROOT
from snakemake.cli import get_argument_parser
from snakemake_executor_plugin_slurm import ExecutorSettings
from test_workflow import Workflow, random_records

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


def test_every_key_is_one_of_snakemakes_or_of_the_plugins():
    profile = with_all_keys()
    plugins = {f"slurm-{field.name.replace('_', '-')}" for field in fields(ExecutorSettings)}
    options = {
        text.lstrip("-")
        for action in get_argument_parser()._actions
        for text in action.option_strings
    }
    assert profile.keys() > {"slurm-status-command", "set-resources", "groups", "set-threads"}
    assert profile.keys() - plugins <= options
    assert set(profile["set-resources"]) == {"extract", "plan"}


def test_what_jobs_would_ask_for(tmp_path, environment):
    """A dry run on a machine without a GPU says it, for jobs that would have one."""
    workflow = Workflow(tmp_path, environment, random_records(20))
    workflow("plan")
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**config, "device": "cuda"}))
    workflow("plan")
    said = workflow("-n", "--workflow-profile", str(PROFILE), "--jobs", "7")
    extract = said.partition("rule extract:")[2].partition("\n[")[0]
    assert "mem_mb=4000," in extract and "runtime=60," in extract and "gpu=1" in extract
    merge = said.partition("rule merge:")[2].partition("\n[")[0]
    assert "mem_mb=4000," in merge and "runtime=15" in merge and "gpu=" not in merge
