"""What is typed in a folder: featuremill's verbs and Snakemake, each a process of its own.

They are forked (forks.py), unless a test has another setting of C libraries or of Python.
"""

import contextlib
import copy
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
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
        config = {
            "run": "test",
            "inputs": ["in.fa"],
            "workload": workload,
            "options": options or {},
            "shards": {"cost": cost},
            "device": "cpu",
            **config,
        }
        self("plan", self.run_folder.root, "--config", written(config), *more)
        return json.loads(self.run_folder.plan.read_text())

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
        config = {
            "run": "test",
            "inputs": "in.fa",
            "workload": "poison",
            "options": {**self.options, **options},
            "shards": {"cost": 50},
            "device": "cpu",
        }
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))

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
