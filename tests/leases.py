"""Starts `featuremill lease` and Python code that leases, as real processes on a simulated node."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import forks
import pytest
from nvml_node import Node
from programs import PATIENCE_SECONDS, wait_for

import featuremill
from featuremill.lease import slots

NOBODY = 65534


class Leases:
    """Runs leases in the environment of a node."""

    is_forked = True
    """False where the words of a holder are looked at: what is forked has those of its server."""

    def __init__(self, node, environment, interpreter=sys.executable):
        self.node = node
        self.interpreter = interpreter
        self.environment = {**environment, **node.environment}
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed one has bytecode
        self._started = []

    def start(self, *arguments, run=("true",), **more):
        """Start `featuremill lease ARGUMENTS -- RUN`."""
        words = [self.interpreter, "-m", "featuremill", "lease", *map(str, arguments)]
        return self._popen([*words, "--", *run], **more)

    def python(self, code, *arguments, **more):
        """Start Python code, for the context manager."""
        return self._popen([self.interpreter, "-c", textwrap.dedent(code), *arguments], **more)

    def _popen(self, command, variables=(), **more):
        environment = {**self.environment, **dict(variables)}
        pipe = subprocess.PIPE
        options = {"stdout": pipe, "stderr": pipe, "text": True, **more}
        popen = forks.Forked if self.is_forked else subprocess.Popen
        process = popen(command, env=environment, **options)
        self._started.append(process)
        return process

    def hold(self, *arguments, **more):
        """Start a lease, wait until it holds; return the process, whose stdin ends it."""
        run = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES; read line"]
        process = self.start(*arguments, run=run, stdin=subprocess.PIPE, **more)
        process.holds = process.stdout.readline().strip()
        assert process.holds, process.stderr.read()
        return process

    def __call__(
        self, *arguments, run=("sh", "-c", "echo $CUDA_VISIBLE_DEVICES"), status=0, **more
    ):
        """Run a lease to its end; return what the command printed and what was said."""
        process = self.start(*arguments, run=run, **more)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == status, err
        assert "Traceback" not in err, err
        return out.strip(), err

    def list(self):
        """Return the lines of `featuremill lease --list`."""
        words = [self.interpreter, "-m", "featuremill", "lease", "--list"]
        process = self._popen(words)
        out, err = process.communicate()
        assert process.returncode == 0, err
        return out.splitlines()

    def num_held(self):
        """Return how many slots are held, as a look at the locks tells."""
        return len(slots.holders(self.node.locks))

    def num_drawn(self):
        """Return how many places in the queue were ever drawn."""
        file = self.node.locks / "turnstile"
        return int(file.read_text() or 0) if file.exists() else 0

    def wait_until_drawn(self, number):
        """Wait until so many places in the queue were ever drawn."""
        wait_for(lambda: self.num_drawn() >= number)

    def queue(self, *arguments, **more):
        """Start a lease and return once it has its place in the queue."""
        before = self.num_drawn()
        process = self.start(*arguments, **more)
        wait_for(lambda: self.num_drawn() > before)
        return process

    def end_all(self):
        for process in self._started:
            process.kill()
            process.communicate()

    def beside(self, command, **more):
        """Start a process that has no lease of its own."""
        return self._popen(command, **more)


def end(process):
    """Let a `hold` end well."""
    process.communicate("\n", timeout=PATIENCE_SECONDS)
    assert process.returncode == 0


def kill(process):
    """End a process at once."""
    process.kill()
    process.wait()


def skip_where_closed():
    """Skip a test whose other user reads this checkout itself."""
    package = Path(featuremill.__file__).resolve()
    if not (
        package.stat().st_mode & 0o004 and all(p.stat().st_mode & 0o001 for p in package.parents)
    ):
        pytest.skip("other users cannot read this checkout")


@contextlib.contextmanager
def open_to_all():
    """Let everybody read what is written meanwhile, whatever the user's umask is."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def for_all_users(library, environment, *gpus):
    """Yield leases that root and nobody can start: all they need is in a folder open to both."""
    with open_to_all(), tempfile.TemporaryDirectory(prefix="featuremill-") as name:
        root = Path(name)
        root.chmod(0o1777)  # as where locks are: each user may make the folder
        code = root / "code"
        shutil.copytree(Path(featuremill.__file__).parent, code / "featuremill")
        shutil.copy(importlib.util.find_spec("pynvml").origin, code)
        shutil.copytree(library, root / "library")
        subprocess.run(["chmod", "-R", "a+rX", str(root)], check=True)
        node = Node(root, root / "library", gpus)
        leases = Leases(node, {**environment, "PYTHONPATH": str(code)}, _interpreter_for_all())
        try:
            yield leases
        finally:
            leases.end_all()


def _interpreter_for_all():
    if os.getuid():
        return sys.executable  # an ordinary user can start processes of nobody else
    code = "import sys, ctypes, json; sys.exit(sys.version_info < (3, 11))"
    for interpreter in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        with contextlib.suppress(OSError):
            if not subprocess.run([interpreter, "-c", code], user=NOBODY, cwd="/").returncode:
                return interpreter
    return pytest.skip("no Python 3.11 that the user nobody may run (install one in /usr/bin)")
