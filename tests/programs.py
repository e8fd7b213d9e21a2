"""What is typed in a folder: featuremill's verbs and Snakemake, each a process of its own.

They are forked (forks.py), unless a test has another setting of C libraries or of Python.
"""

import contextlib
import copy
import csv
import fcntl
import json
import os
import random
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

import forks
import pytest
import yaml

from featuremill.__main__ import main
from featuremill.contract import WorkloadContract
from featuremill.merge.command import merge
from featuremill.store.results import Results

ROOT = Path(__file__).parents[1]
LETTERS = "DEFGHKLMNPQRSTVWY"  # without A, C and I, so that no random sequence means harm
PATIENCE_SECONDS = 240
SHEBANG = f"""#!/bin/sh
'''exec' "{sys.executable}" -E "$0" "$@"
' '''"""
"""The first lines of a program in Python: the kernel's own reads no path that has a blank in it."""
NO_REPORT = "merge"
"""The target where no report is the point: drawing one is two seconds of work."""


class Said(NamedTuple):
    """How a process ended, and what it said."""

    status: int
    out: str
    err: str

    @property
    def text(self):
        return self.out + self.err


def wait_for(condition, seconds=PATIENCE_SECONDS):
    """Wait until `condition()` is true; return its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)
    return value


def is_running(pid):
    """Tell whether a process runs: not one that has ended and that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def jobs_listed(said):
    """Return the names in Snakemake's tables of jobs."""
    return set(re.findall(r"^(\w+) +\d+$", said, re.MULTILINE)) - {"total"}


def written(config):
    """Return a file with a config, a mapping or its text, for `--config`."""
    path = Path(tempfile.mkdtemp(prefix="config-"), "my.yaml")
    path.parent.chmod(0o755)  # another user may have to read it
    is_text = isinstance(config, str)
    path.write_text(config if is_text else yaml.safe_dump(json.loads(json.dumps(config))))
    return str(path)


@contextlib.contextmanager
def edited(path):
    """Have what a JSON file says changed: `with edited(path) as told:`."""
    told = json.loads(path.read_text())
    yield told
    path.write_text(json.dumps(told))


def random_records(count, seed=0):
    rng = random.Random(seed)
    return [
        (f"p{seed}.{n}", "".join(rng.choices(LETTERS, k=rng.randint(5, 60)))) for n in range(count)
    ]


def fasta(records):
    return "".join(f">{id}\n{sequence}\n" for id, sequence in records)


def sentence_of(capfd, *words, status=2):
    """Run a command in this process; return the one sentence that it ends with."""
    capfd.readouterr()
    assert main([*map(str, words)]) == status
    (line,) = (line for line in capfd.readouterr().err.splitlines() if "error: " in line)
    return line.partition("error: ")[2]


def ran(*words, **more):
    """Run a program to its end; return what it said, as text."""
    return subprocess.run([*map(str, words)], capture_output=True, text=True, **more)


def python(*words, **more):
    """Run this Python to its end; return what it said, as text."""
    return ran(sys.executable, *words, **more)


def write_fasta(path, records):
    """Write sequences by their ids; return the path."""
    path.write_text(fasta(records.items()))
    return path


def edit_json(path, **changes):
    """Write keys of a file anew; one that becomes `...` is left out."""
    told = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in told.items() if value is not ...}))


def printed_by(code, *words, **more):
    """Return what a new Python prints that runs `code` to its end; nothing here is known to it."""
    done = python("-c", textwrap.dedent(code), *words, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_example(name, folder):
    """Let a script of config/examples write its files; return what the config beside it says."""
    script = ROOT / "config" / "examples" / f"{name}.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(script), str(folder)])
        runpy.run_path(str(script), run_name="__main__")
    config = script.with_suffix(".yaml")
    return yaml.safe_load(config.read_text("utf-8")) if config.exists() else None


@contextlib.contextmanager
def working_in(folder, **variables):
    """Have this process, and those that it starts, work in a folder with these variables."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, str(value))
        patch.chdir(folder)
        yield patch


class Desk:
    """A folder and an environment in which programs are typed."""

    is_forked = True
    """False where a Python is to read other packages."""

    def __init__(self, folder, environment):
        self.folder = folder
        self.environment = environment

    def start(self, *words, **more):
        """Start `python -m …`, or `-c …`, for who does something to it; its stderr can be read."""
        defaults = {"cwd": self.folder, "env": self.environment, "stderr": subprocess.PIPE}
        option = [] if words[0] == "-c" else ["-m"]
        command = [sys.executable, *option, *map(str, words)]
        popen = forks.ForkedText if self.is_forked else subprocess.Popen
        return popen(command, **{**defaults, "text": True, **more})

    def type(self, *words, status=0, **variables):
        """Let `python -m …` run to its end, which has this status (None: any) and no traceback;
        return what it said. The environment gets the `variables`."""
        environment = {**self.environment, **variables}
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            process = Desk.start(self, *words, **streams, env=environment)
            try:
                process.wait(PATIENCE_SECONDS)
            except BaseException as late:  # a test's own limit, too
                late.add_note(_read(out) + _read(err))
                process.kill()
                process.wait()
                raise
            said = Said(process.returncode, _read(out), _read(err))
        assert status in (None, said.status), said.text
        assert "Traceback" not in said.text or status not in (0, 2), said.text
        return said

    def compute(self, config, *words, status=0):
        """Write a config and compute its run; return what was said."""
        (self.folder / "my.yaml").write_text(json.dumps(config))
        words = ("run", "my.yaml", "--cores", "2", *words)
        return self.type("featuremill", *words, status=status).text


def _read(file):
    file.seek(0)
    return file.buffer.read().decode("utf-8", "replace")


class Verbs(Desk):
    """Verbs on the run results/test of a folder, without Snakemake."""

    def __init__(self, folder, environment):
        super().__init__(folder, environment)
        self.run_folder = Results(folder / "results" / "test")

    def start(self, *words, **more):
        """Start a verb, for who does something to it; its stderr can be read."""
        return super().start("featuremill", *words, **more)

    def __call__(self, *words, status=0, **variables):
        """Return what a verb said on stderr."""
        return self.type("featuremill", *words, status=status, **variables).err

    def plan(self, records, workload="composition", options=None, cost=1000, more=(), **config):
        (self.folder / "in.fa").write_text(fasta(records))
        about = {"run": "test", "inputs": ["in.fa"], "workload": workload, "device": "cpu"}
        about |= {"options": options or {}, "shards": {"cost": cost}, **config}
        self("plan", self.run_folder.root, "--config", written(about), *more)
        return json.loads(self.run_folder.plan.read_text())

    def finish(self, records, *outputs, max_failed=0, **config):
        """Compute records and write outputs; return the plan."""
        plan = self.plan(records, **config)
        self.extract(plan)
        words = ("--outputs", *outputs, "--max-failed", max_failed)
        self("merge", self.run_folder.root, *words)
        return plan

    def extract(self, plan, status=0, *more):
        said = ""
        for shard in plan["shards"]:
            said += self("extract", self.run_folder.root, shard["shard"], *more, status=status)
        return said

    def merged(self, records, *planned, outputs=("parquet",), **config):
        """Plan, extract and merge these records, of which any may fail; return the results."""
        self.extract(self.plan(records, *planned, **config))
        merge(self.run_folder, [*outputs], len(records))
        return self.run_folder.root

    def receipts(self, plan):
        paths = [self.run_folder.receipt(plan["recipe"], s["shard"]) for s in plan["shards"]]
        return [json.loads(path.read_text()) for path in paths]


class ForkedWorkload(WorkloadContract):
    """The contract whose verbs are forked, but for merge, whose memory is measured."""

    @pytest.fixture(autouse=True)
    def _fork(self, forked):
        """Have the one that is killed be forked, too."""

    def _run_measured(self, *words):
        if words[0] == "merge":
            return super()._run_measured(*words)
        Desk(Path.cwd(), dict(os.environ)).type("featuremill", *words, "--quiet")
        return 0


class QuickWorkload(ForkedWorkload):
    """The same, where the slow ones of what TestEsm2 shows in the fast suite are slow tests."""

    @pytest.mark.slow
    def test_values_do_not_depend_on_the_shards(self, tmp_path_factory):
        super().test_values_do_not_depend_on_the_shards(tmp_path_factory)

    @pytest.mark.slow
    def test_a_killed_shard_resumes(self, tmp_path_factory):
        super().test_a_killed_shard_resumes(tmp_path_factory)


class Workflow(Desk):
    """A folder with an input and a config, and Snakemake runs in it."""

    DATA = ("embeddings.parquet", "per-protein.h5", "failed.tsv")

    def __init__(self, folder, environment, records, **options):
        super().__init__(folder, {**environment, "FEATUREMILL_QUIET": ""})
        self.options = {"computed": "computed.txt", "batch_records": 10, **options}
        self.write(records)
        self.configure()

    @property
    def run_folder(self):
        return Results(self.folder / "results" / "test")

    @property
    def computed(self):
        return self.folder / "computed.txt"

    def copy(self, folder):
        """Return a copy in `folder` that goes on from here: the files' times stay as they are."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        other = copy.copy(self)
        other.folder, other.environment = folder, dict(self.environment)
        return other

    def write(self, records):
        described = [(f"{id} described", sequence) for id, sequence in records]
        (self.folder / "in.fa").write_text(fasta(described))

    def configure(self, **options):
        config = {"run": "test", "inputs": "in.fa", "workload": "poison", "device": "cpu"}
        config |= {"options": {**self.options, **options}, "shards": {"cost": 50}}
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))

    def ask(self, **config):
        """Write keys of the config anew."""
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | config))

    def words(self, *arguments, snakefile=ROOT / "Snakefile"):
        """Return what is typed to compute the run."""
        profile = ROOT / "profiles" / "default"
        words = ("snakemake", "--snakefile", snakefile, "--workflow-profile", profile)
        return (*words, "--configfile", "config.yaml", "--cores", "2", *arguments)

    def start(self, *arguments, **more):
        """Start Snakemake in a session of its own; what it says can be read from its stdout."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        words = self.words(*arguments)
        return super().start(*words, **streams, start_new_session=True, **more)

    def __call__(self, *arguments, status=0, snakefile=ROOT / "Snakefile", **variables):
        """Return what Snakemake and its jobs said."""
        words = self.words(*arguments, snakefile=snakefile)
        return self.type(*words, status=status, **variables).text

    def verb(self, *words, status=0, **variables):
        """Type a verb beside Snakemake; return what it said."""
        return self.type("featuremill", *words, status=status, **variables)

    def news(self):
        """Return the sequences computed since the last call."""
        lines = self.computed.read_text().splitlines() if self.computed.exists() else []
        self.computed.unlink(missing_ok=True)
        return lines

    def data(self):
        return {name: (self.run_folder.root / name).read_bytes() for name in self.DATA}

    def counts(self):
        return json.loads((self.run_folder.root / "manifest.json").read_text())["counts"]


def rows_of(path, **more):
    """Return the rows of a table with tabs."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", **more))


def write_samples(folder, of_sample, **others):
    """Write a file a sample, and samples.tsv that names them; return what plan is asked then."""
    rows = ["\t".join(["sample", "file", *others])]
    for sample, records in of_sample.items():
        (folder / f"{sample}.fa").write_text(fasta(records))
        rows.append("\t".join([sample, f"{sample}.fa", *(of[sample] for of in others.values())]))
    (folder / "samples.tsv").write_text("\n".join(rows) + "\n")
    return {"samples": "samples.tsv", "inputs": [], "more": ("--threads", "1")}


@contextlib.contextmanager
def holding(lock):
    """Hold a lock as its owner would."""
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def flip(path):
    """Damage a byte in the middle of a file, which may be read-only."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)
