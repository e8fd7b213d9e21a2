"""What is typed in a folder: featuremill's verbs and Snakemake, each a process of its own.

Most of what a short process costs is imports. So those that only have to end are forked from one
process of the session that has imported before what they would; whoever kills one, or has another
setting of C libraries, gets one that starts from nothing.
"""

import atexit
import copy
import ctypes
import functools
import importlib
import json
import multiprocessing
import os
import random
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import thread as futures
from importlib.util import find_spec
from multiprocessing import forkserver
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import yaml

from featuremill.store.results import Results

ROOT = Path(__file__).parents[1]
LETTERS = "DEFGHKLMNPQRSTVWY"  # without A, C and I, so that no random sequence means harm
PROGRAMS = ("featuremill", "snakemake", "without_internals", "killed")
IMPORTED = (
    *("plan.command", "extract.command", "merge.command", "report.command", "status.command"),
    *("plan.retry", "merge.clean", "plan.estimate.command", "merge.export", "plan.init"),
    *("steps.transfer.search.command", "doctor.command", "workload.weights", "status.top"),
    # What they import when they know what they are asked for.
    *(
        "status.state",
        "status.view",
        "status.watch",
        "doctor.findings",
        "steps.transfer.search.queries",
        "report.page",
    ),
    *("inputs.fasta", "workloads.composition", "workloads.esm2"),
)
OF_OTHERS = ("snakemake.cli", "smart_open", "snakemake.report")
OF_OTHERS += ("dnaio", "pandas", "altair", "vl_convert")
READ_AT_START = ("LD_PRELOAD", "MALLOC_", "OMP_", "MKL_")
"""Beginnings of variables that a process reads before its first line of Python."""
OF_JOBS = re.compile(r"set -euo pipefail; +exec featuremill (.*)", re.DOTALL)
LIBRARIES = "LD_LIBRARY_PATH"
"""Such a variable, too; but a library that is loaded under its name is what is found first."""
PATIENCE_SECONDS = 240
SHEBANG = f"""#!/bin/sh
'''exec' "{sys.executable}" -E "$0" "$@"
' '''"""
"""The first lines of a program in Python: the kernel's own reads no path that has a blank in it."""
NO_REPORT = "merge"
"""The target where no report is the point: drawing one is two seconds of work."""
FORKS = multiprocessing.get_context("forkserver")
OURS = [f"featuremill.{name}" for name in IMPORTED]
assert all(map(find_spec, OURS)), "a name that is none is passed over, and each fork would import"
FORKS.set_forkserver_preload([*OF_OTHERS, *OURS, "frozen"])


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


def random_records(count, seed=0):
    rng = random.Random(seed)
    return [
        (f"p{seed}.{n}", "".join(rng.choices(LETTERS, k=rng.randint(5, 60)))) for n in range(count)
    ]


def fasta(records):
    return "".join(f">{id}\n{sequence}\n" for id, sequence in records)


def _some_of(environment, beginnings):
    return {name: value for name, value in environment.items() if name.startswith(beginnings)}


class _Execution(BaseException):
    """This process goes on as another program."""


class _Children(subprocess.Popen):
    """What a forked process starts of featuremill is forked, too: a worker, the job of a rule."""

    def __init__(self, command, **more):
        environment = dict(more.get("env") or os.environ)
        if words := _ours(command, environment.get("PATH")):
            given = words, environment, more.get("pass_fds", ())
            more["preexec_fn"] = functools.partial(_leave, *given)
        super().__init__(command, **more)


def _ours(command, path):
    """Return what follows `python -m`; nothing where a shell is needed, or it is another's."""
    if not isinstance(command, str):
        module = command[2] if command[:2] == [sys.executable, "-m"] else ""
        return command[2:] if module.startswith("featuremill.") else ()
    said = OF_JOBS.fullmatch(command.strip())
    mine = str(Path(sys.executable).with_name("featuremill"))
    if not said or {*"$`\\\n"} & {*said[1]} or shutil.which("featuremill", path=path) != mine:
        return ()
    tokens = list(shlex.shlex(said[1], posix=True, punctuation_chars=True))
    return () if any({*token} <= {*"();<>|&"} for token in tokens) else ["featuremill", *tokens]


def _leave(words, environment, keep):
    """Go on as `python -m …` would have, up to the end, in a process that was just forked."""
    first = 3
    for number in (*sorted(keep), os.sysconf("SC_OPEN_MAX")):
        os.closerange(first, number)
        first = number + 1
    atexit._clear()
    futures._threads_queues.clear()  # other threads are none of this process
    status = 1
    try:
        _run(words, environment)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _become(words, folder, environment, streams):
    """Go on as `python -m …` with these words would have."""
    os.setsid()
    os.chdir(folder)
    for number, path in enumerate([os.devnull, *streams]):
        file = os.open(path, os.O_RDWR)
        os.dup2(file, number)
        os.close(file)
    _run(words, environment)


def _run(words, environment):
    """Be what a start makes, and run a module; what that executes, too."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    if (folder := environment.get(LIBRARIES)) == os.environ.get(LIBRARIES):
        folder = None
    os.environ.clear()
    os.environ.update(environment)
    for library in Path(folder).glob("lib*.so*") if folder else ():
        ctypes.CDLL(library)
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, closefd=False)  # noqa: SIM115  (for as long as the process lives)
        for number, mode in enumerate("rww")
    )
    for name, module in list(sys.modules.items()):
        for value in vars(module).values() if name.startswith("featuremill.") else ():
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()
    subprocess.Popen = _Children
    os.execv = _execute
    while words:
        program, *sys.argv[1:] = words
        found = importlib.util.find_spec(program)
        if found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{program}.__main__")
        sys.argv[0] = found.origin
        words = ()
        try:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        except _Execution as another:
            _, _, *words = another.args[0]


def _execute(path, words):
    assert words[:2] == [sys.executable, "-m"], words
    raise _Execution(words)


class Desk:
    """A folder and an environment in which programs are typed."""

    forked = PROGRAMS
    """What is forked; nothing, where a Python is to read a sitecustomize, or other packages."""

    def __init__(self, folder, environment):
        self.folder = folder
        self.environment = environment

    def start(self, *words, **more):
        """Start `python -m …`, for who does something to it; its stderr can be read."""
        defaults = {"cwd": self.folder, "env": self.environment, "stderr": subprocess.PIPE}
        command = [sys.executable, "-m", *map(str, words)]
        return subprocess.Popen(command, **{**defaults, "text": True, **more})

    def type(self, *words, status=0, **variables):
        """Let `python -m …` run to its end, which has this status (None: any) and no traceback;
        return what it said. The environment gets the `variables`."""
        environment = {**self.environment, **variables}
        ours, theirs = (_some_of(e, READ_AT_START) for e in (environment, os.environ))
        if words[0] in self.forked and ours == theirs:
            said = _forked([str(word) for word in words], self.folder, environment)
        else:
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
            with Desk.start(self, *words, **streams, env=environment) as process:
                out, err = process.communicate(timeout=PATIENCE_SECONDS)
            said = Said(process.returncode, out, err)
        assert status in (None, said.status), said.text
        assert "Traceback" not in said.text or status not in (0, 2), said.text
        return said


@functools.cache
def _serve():
    """Start the process that others are forked from: with this checkout's featuremill, whatever is
    installed."""
    places = [ROOT / "src", ROOT / "tests", os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(map(str, places))
    with mock.patch.dict(os.environ, PYTHONPATH=path.rstrip(os.pathsep)):
        forkserver.ensure_running()


def _forked(words, folder, environment):
    _serve()
    with tempfile.TemporaryDirectory() as place:
        streams = [Path(place, name) for name in ("out", "err")]
        for path in streams:
            path.touch()
        process = FORKS.Process(target=_become, args=(words, folder, environment, streams))
        process.start()
        try:
            process.join(PATIENCE_SECONDS)
            if process.is_alive():
                raise subprocess.TimeoutExpired(words, PATIENCE_SECONDS)
        except BaseException as late:  # a test's own limit, too, which tells only where it waited
            late.add_note("".join(path.read_text("utf-8", "replace") for path in streams))
            process.kill()
            raise
        out, err = (path.read_text("utf-8", "replace") for path in streams)
        said = Said(process.exitcode, out, err)
        process.close()
    return said


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

    def receipts(self, plan):
        paths = [self.run_folder.receipt(plan["recipe"], s["shard"]) for s in plan["shards"]]
        return [json.loads(path.read_text()) for path in paths]


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
