"""Containers and conda environments: what their files say, and what can be tried without them."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from programs import SHEBANG, Workflow, random_records
from test_house import PROJECT

CONTAINERFILE = (ROOT / "containers/Containerfile").read_text("utf-8")
DEFINITION = (ROOT / "containers/featuremill.def").read_text("utf-8")
INSTRUCTIONS = {"ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "CMD"}


def instructions():
    """Return the Containerfile's instructions, each a pair of word and text, lines joined."""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def sections():
    """Return the Apptainer definition's header and sections."""
    parts = re.split(r"^%(\w+)\n", DEFINITION, flags=re.MULTILINE)
    header = dict(re.findall(r"^(\w+): (.*)$", parts[0], re.MULTILINE))
    return header, dict(zip(parts[1::2], parts[2::2], strict=True))


def variables(text):
    return dict(re.findall(r"(\w+)=(\S+)", text))


def test_a_containerfile_has_two_stages_a_user_and_no_entrypoint():
    found = instructions()
    assert {word for word, _ in found} <= INSTRUCTIONS
    assert [text for word, text in found if word == "FROM"] == ["${BASE} AS installed", "${BASE}"]
    last = found[[text for _, text in found].index("${BASE}") :]
    environment = variables(dict(last)["ENV"])
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert "NVIDIA_VISIBLE_DEVICES" not in environment
    assert dict(last)["USER"] == "1000:1000"
    assert (ROOT / environment["PYTHONPATH"].removeprefix("/usr/local/featuremill/")).is_dir()
    for extra in re.search(r"/source\[(.*?)\]", CONTAINERFILE)[1].split(","):
        assert extra in PROJECT["optional-dependencies"]


def test_a_build_gets_all_that_is_copied_and_nothing_more():
    ignore = (ROOT / ".containerignore").read_text().split("\n")
    assert (ROOT / ".dockerignore").read_text().split("\n") == ignore
    taken = {line[1:] for line in ignore if line.startswith("!")}
    assert ignore[1] == "*" and all((ROOT / name).exists() for name in taken)
    copied = re.search(r"cp -r (.*) /usr/local/featuremill/", CONTAINERFILE)[1].split()
    named = {name.removeprefix("/source/") for name in copied}
    packed = {*PROJECT["license-files"], PROJECT["readme"]}
    assert taken == named | packed | {"constraints.txt", "pyproject.toml", "src"}


def test_the_apptainer_definition_makes_the_same():
    header, found = sections()
    base = dict(re.findall(r"^ARG (\w+)=(\S+)", CONTAINERFILE, re.MULTILINE))
    assert header == {"Bootstrap": "docker", "From": base["BASE"]}
    assert set(found) == {"arguments", "files", "post", "environment", "runscript", "help"}
    words = dict(instructions()[-5:])
    ours, theirs = variables(found["environment"]), variables(words["ENV"])
    assert ours == {key: theirs[key] for key in ours} and {"PATH", "PYTHONPATH"} <= set(ours)
    for command in (
        "/usr/local/featuremill/venv/bin/pip install --no-cache-dir --disable-pip-version-check",
        '-c /source/constraints.txt "/source[esm2,kubernetes]"',
        "cp -r /source/Snakefile /source/workflow /source/envs /source/config /source/profiles",
        "python3 python3-venv",
        "gcc libc6-dev python3-dev",
        "found = 'cuda' if torch.version.cuda else 'cpu'",
    ):
        assert command in found["post"] and command in CONTAINERFILE, command
    copied = {line.split()[0] for line in found["files"].splitlines() if line.strip()}
    taken = {line[1:] for line in (ROOT / ".containerignore").read_text().split() if line[0] == "!"}
    assert copied == taken


CONDA = f"""{SHEBANG}
import os, pathlib, subprocess, sys
given = sys.argv[1:]
if given == ["info", "--json"]:
    print('{{"conda_prefix": "BASE", "platform": "linux-64"}}')
elif given == ["--version"]:
    print("conda 25.1.1")
elif given[0] == "clean":
    pass
elif given[0] == "config":
    print('{{"get": {{"channel_priority": "strict"}}}}')
else:
    assert given[:2] == ["env", "create"], given
    prefix = pathlib.Path(given[given.index("--prefix") + 1])
    subprocess.run([{sys.executable!r}, "-m", "venv", "--without-pip", prefix], check=True)
    (site,) = prefix.glob("lib/python*/site-packages")
    others = pathlib.Path("BASE/others")
    if not others.exists():  # what conda would bring: all but featuremill itself
        others.mkdir()
        for path in pathlib.Path({sysconfig.get_path("purelib")!r}).iterdir():
            if "featuremill" not in path.name:
                (others / path.name).symlink_to(path)
    (site / "others.pth").write_text("BASE/others\\nBASE/pip\\n")  # if a test puts that there
    if "pip:" in pathlib.Path(given[given.index("--file") + 1]).read_text():  # brings the command
        command = prefix / "bin" / "featuremill"
        command.write_text(f"#!/bin/sh\\nexec {{prefix}}/bin/python -m featuremill \\"$@\\"\\n")
        command.chmod(0o755)
    (site / "sitecustomize.py").write_text(
        "import sys\\n"
        "open('BASE/used', 'a').write(' '.join([sys.prefix, *sys.orig_argv[1:4], chr(10)]))"
    )
"""


def stand_in_for_conda(base, environment):
    """Put one below `base` that makes virtual environments; return the variables that it takes."""
    (base / "bin").mkdir(parents=True)
    (base / "bin/activate").write_text('export CONDA_PREFIX="$1" PATH="$1/bin:$PATH"\n')
    conda = base / "bin/conda"
    conda.write_text(CONDA.replace("BASE", str(base)))
    conda.chmod(0o755)
    return {"PATH": f"{base}/bin:{environment['PATH']}"}


def verbs_and_environments(base):
    """Return each verb that ran, with the environment that it ran in."""
    used = [line.split() for line in (base / "used").read_text().splitlines()]
    return {words[3]: words[0] for words in used if words[1:3] == ["-m", "featuremill"]}


@pytest.mark.slow
def test_jobs_run_in_the_environments_that_conda_makes(tmp_path, environment):
    """With a stand-in; nothing here has met a conda."""
    base = tmp_path / "base"
    variables = {**environment, **stand_in_for_conda(base, environment)}
    del variables["PYTHONPATH"]
    workflow = Workflow(tmp_path, variables, random_records(3))
    config = {"run": "test", "inputs": "in.fa", "workload": "composition", "device": "cpu"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    workflow("--sdm", "conda")
    assert workflow.counts()["ok"] == 3
    verbs = verbs_and_environments(base)
    assert set(verbs) == {"plan", "extract", "merge", "report"}
    (base,) = set(verbs.values())  # composition needs no more
    (link,) = Path(base).glob("lib/python*/site-packages/featuremill")
    assert link.resolve() == ROOT / "src/featuremill"
    (about,) = Path(base).glob("lib/python*/site-packages/featuremill-*.dist-info")
    assert not about.is_symlink() and "[featuremill.workloads]" in (
        about / "entry_points.txt"
    ).read_text("utf-8")


def test_scripts_of_environments_are_for_bash():
    for script in sorted((ROOT / "envs").glob("*.sh")):
        subprocess.run(["bash", "-n", script], check=True)
