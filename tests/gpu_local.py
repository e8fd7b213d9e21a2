"""Starts Snakemake with the executor gpu-local as a real process on a simulated node."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import forks
from leases import Leases
from programs import PATIENCE_SECONDS, wait_for

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "packages" / "snakemake-executor-plugin-gpu-local"
OPTIONS = ("--executor", "gpu-local", "--cores", "8", "--nocolor")


class Machine:
    """A folder with a workflow, on a node."""

    def __init__(self, folder, node, environment, interpreter=sys.executable, prefix=()):
        """`prefix` has the words of a program that starts Snakemake, as one for another user."""
        self.folder = folder
        self.prefix = prefix
        self.node = node
        path = {"PYTHONPATH": str(PACKAGE / "src"), "TMPDIR": str(folder / "tmp")}
        (folder / "tmp").mkdir(exist_ok=True)
        self.leases = Leases(node, environment | path)
        self.interpreter = interpreter
        self._started = []

    def write(self, text, name="Snakefile"):
        (self.folder / name).write_text(textwrap.dedent(text))

    def text(self, name):
        return (self.folder / name).read_text()

    def has(self, name):
        """Return whether a file is there and has a line."""
        path = self.folder / name
        return path.exists() and path.read_text().endswith("\n")

    def start(self, *words, variables=(), **more):
        """Start Snakemake; what it prints is in a file."""
        log = self.folder / f"log{len(self._started)}"
        words = [*self.prefix, self.interpreter, "-m", "snakemake", *OPTIONS, *map(str, words)]
        more |= {"cwd": self.folder, "env": {**self.leases.environment, **dict(variables)}}
        more |= {"stderr": subprocess.STDOUT, "start_new_session": True}
        with log.open("w") as file:
            process = forks.Forked(words, stdout=file, **more)
        process.log = log
        self._started.append(process)
        return process

    def __call__(self, *words, status=0, **more):
        """Run Snakemake to its end; return what it printed."""
        process = self.start(*words, **more)
        process.wait(PATIENCE_SECONDS)
        said = process.log.read_text()
        assert process.returncode == status, said
        assert "Traceback" not in said, said
        return said

    def wait_for_line(self, process, pattern):
        """Wait until `process` has printed a line that has `pattern`."""
        return wait_for(lambda: re.search(pattern, process.log.read_text()))

    def end_all(self):
        for process in self._started:
            process.kill()
            process.wait()
        self.leases.end_all()


def gpu_lease(leases, *words, **more):
    """Run the command gpu-lease; return its status and what it printed."""
    code = "import sys; from snakemake_executor_plugin_gpu_local.gpu_lease import main\n"
    code += "sys.exit(main())"
    words = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(words, env=leases.environment, capture_output=True, text=True, **more)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def processes_in(folder):
    """Return the command lines of all processes whose working folder this is."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder:
                found[int(process.name)] = (process / "cmdline").read_text().split("\0")
        except OSError:  # it has ended
            continue
    return found
