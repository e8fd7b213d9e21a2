"""Programs in Python that are forked from one process, which has imported what they need.

Most of what a short process costs is imports. A program is a process with the words, folder,
environment and streams that it would have, in a session of its own. What it starts of featuremill,
such as a job or a worker, is forked from it. Workers of xdist share the server.
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import inspect
import json
import logging
import os
import re
import runpy
import selectors
import shlex
import shutil
import signal
import site
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from concurrent.futures import thread as futures
from pathlib import Path

SRC, TESTS = Path(__file__).parents[1] / "src", Path(__file__).parent
PROGRAMS = ("featuremill", "snakemake", "without_internals", "killed", "pretend_torch")
OF_OTHERS = (
    *("snakemake.cli", "snakemake.report", "smart_open", "dnaio", "pandas", "altair", "vl_convert"),
    *("narwhals", "h5py", "openTSNE", "sklearn.linear_model", "sklearn.metrics", "scipy.optimize"),
    *("psutil", "pynvml", "regex", "torch", "safetensors.torch", "safetensors.numpy", "tokenizers"),
    *("llguidance.hf", "transformers.modeling_utils", "transformers.masking_utils"),
    *("transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto"),
    *("transformers.utils.chat_template_utils", "transformers.integrations.sdpa_attention"),
)
READ_AT_START = ("LD_PRELOAD", "MALLOC_", "OMP_", "MKL_", "PYTHON", "PYTORCH_", "TRITON_INTERPRET")
"""Beginnings of variables that a process reads before its first line, or when it imports."""
OF_JOBS = re.compile(r"set -euo pipefail; +exec featuremill (.*)", re.DOTALL)
LIBRARIES = "LD_LIBRARY_PATH"
"""Such a variable, too; but a library that is loaded under its name is what is found first."""
OF_SERVER = {"", str(SRC)}
"""What sys.path has for the server alone."""
FOLDER = "FORKS_OF_TESTS"
"""The variable with the folder of the server's socket."""
ANONYMOUS = re.compile(r"^(\w+)-(\w+) rw-p \w+ 00:00 0 *(?:\[heap\])?$", re.MULTILINE)
"""Lines of /proc/<pid>/maps with memory of no file."""
HUGE, COLLAPSE = 1 << 21, 25
"""Bytes of a huge page; MADV_COLLAPSE, of Linux 6.1 and newer."""
PATIENCE_SECONDS = 240
LONGEST = 1 << 17
"""Bytes of a request, most of them the environment."""


def set_up():
    """Have this process and its children, the workers of xdist, share one server."""
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="forks-")
    atexit.register(shutil.rmtree, os.environ[FOLDER], ignore_errors=True)


class Forked(subprocess.Popen):
    """A `python -m …` of featuremill or Snakemake that the server forks, where a start from nothing
    would read the same environment; any other command is started. The end of what is forked comes
    over the connection to the server."""

    _forks_texts = False
    _server = None

    def _execute_child(self, command, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more):
        env = dict(os.environ if env is None else env)
        is_other = executable or preexec_fn or pass_fds or more[10:14] != (None, None, None, -1)
        is_other = (
            is_other or not self._is_forked(command) or env.get("FEATUREMILL_DIE_WITH_PARENT")
        )
        if is_other or _shadows(env) or _read_at_start(env) != _read_at_start(os.environ):
            start = command, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more
            super()._execute_child(*start)
            return
        pipes = p2cread, _, _, c2pwrite, _, errwrite = more[3:9]
        own = enumerate((p2cread, c2pwrite, errwrite))
        streams = [number if stream == -1 else stream for number, stream in own]
        words = [os.fspath(word) for word in command[1:]]
        folder = os.fspath(Path.cwd() if cwd is None else cwd)
        _keep_server()
        self._server = _connected()
        request = json.dumps([words, folder, env]).encode()
        socket.send_fds(self._server, [request], streams)
        self.pid = int(self._server.recv(LONGEST))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _is_forked(self, command):
        if isinstance(command, str) or command[0] != sys.executable:
            return False
        option, program = [*map(str, command), "", ""][1:3]
        is_ours = program in PROGRAMS or program.startswith(("featuremill.", "bench."))
        return is_ours if option == "-m" else option == "-c" and self._forks_texts

    def _try_wait(self, wait_flags):
        """Be what `os.waitpid` is for a child."""
        if self._server is None:
            return super()._try_wait(wait_flags)
        try:
            status = self._server.recv(LONGEST, socket.MSG_DONTWAIT if wait_flags else 0)
        except BlockingIOError:
            return 0, 0
        self._server.close()
        return self.pid, int(status)

    def _internal_poll(self, **more):
        if self._server is None:
            return super()._internal_poll(**more)
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


class ForkedText(Forked):
    """A `python -c …`, too, where nobody asks what its text has imported."""

    _forks_texts = True


def _shadows(environment):
    """Return whether PYTHONPATH has what the server may have imported from elsewhere; what runs at
    each start, a sitecustomize, runs in what is forked, too."""
    known = [SRC, TESTS / "plugins", *map(Path, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    folders = {*map(Path, environment.get("PYTHONPATH", "").split(os.pathsep))} - {*known}
    names = {path.name for folder in folders if folder.is_dir() for path in folder.iterdir()}
    return not names.isdisjoint(_installed())


@functools.cache
def _installed():
    folders = (SRC, *map(Path, site.getsitepackages()))
    names = {path.name for folder in folders for path in folder.iterdir()}
    return names - {"__pycache__"}


def _read_at_start(environment):
    names = (name for name in environment if name.startswith(READ_AT_START))
    return {name: environment[name] for name in names if name != "PYTHONPATH"}


def _connected():
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(f"{os.environ[FOLDER]}/socket")
    except OSError:
        connection.close()
        raise
    return connection


@functools.cache
def _keep_server():
    """Connect for as long as this process lives; start the server where none runs."""
    if FOLDER not in os.environ:
        set_up()
    with Path(os.environ[FOLDER], "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection = _connected()
        except (FileNotFoundError, ConnectionRefusedError):
            path = os.pathsep.join(filter(None, [str(SRC), os.environ.get("PYTHONPATH")]))
            code = f"import sys; sys.path.append({str(TESTS)!r}); import forks; forks.serve()"
            environment = {**os.environ, "PYTHONPATH": path}
            command = [sys.executable, "-c", code]
            subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=True)
            connection = _connected()
    atexit.register(connection.close)


@functools.cache
def _cached():
    """Return the package's functions that keep what they returned. To look at all values of all
    modules copies most pages of a process that was just forked."""
    modules = [each for name, each in sys.modules.items() if name.startswith("featuremill.")]
    values = [value for module in modules for value in vars(module).values()]
    return [value for value in values if isinstance(value, functools._lru_cache_wrapper)]


def _modules():
    """Return the names of the package's modules, found without importing any."""
    for path in sorted(SRC.glob("featuremill/**/*.py")):
        *parents, name = path.relative_to(SRC).with_suffix("").parts
        if name != "__main__":
            yield ".".join(parents if name == "__init__" else [*parents, name])


def _collapse():
    """Move this process's memory into huge pages, where the kernel can: a fork copies a table of
    all pages, which takes most of its time."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for first, last in ANONYMOUS.findall(Path("/proc/self/maps").read_text()):
        for start in range(-(-int(first, 16) // HUGE) * HUGE, int(last, 16) // HUGE * HUGE, HUGE):
            advise(start, HUGE, COLLAPSE)


def serve():
    """Fork what is asked for, in a process of its own, until no connection is left."""
    for name in (*OF_OTHERS, *_modules()):
        with contextlib.suppress(ImportError):  # of an extra that is not installed
            importlib.import_module(name)
    with contextlib.suppress(KeyError):
        sys.modules["snakemake.cli"].get_argument_parser()  # looks for plugins in all of sys.path
    inspect.getmodule(serve)  # looks at all modules
    _cached()
    gc.freeze()  # no fork looks for garbage in what was imported, and no page of that is copied
    _collapse()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = Path(os.environ[FOLDER], "socket")
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    listener.listen(64)
    if os.fork():
        os._exit(0)  # who started this knows now that it can connect
    os.setsid()
    ended, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    ready = selectors.DefaultSelector()
    for each in (listener, ended):
        ready.register(each, selectors.EVENT_READ)
    programs = {}
    while (events := ready.select(PATIENCE_SECONDS)) or len(ready.get_map()) > 2:
        for key, _ in events:
            if key.fileobj is listener:
                ready.register(listener.accept()[0], selectors.EVENT_READ)
            elif key.fileobj is ended:
                ended.recv(LONGEST)
                _send_ends(programs)
            elif not _fork_for(key.fileobj, programs):
                ready.unregister(key.fileobj)
                key.fileobj.close()
                if len(ready.get_map()) == 2:
                    return


def _send_ends(programs):
    while programs:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            break
        with contextlib.suppress(OSError):  # the one who started it is gone
            programs.pop(pid).send(str(status).encode())


def _fork_for(connection, programs):
    """Fork what a connection asks for; return whether it did."""
    try:
        request, streams, *_ = socket.recv_fds(connection, LONGEST, 3)
    except ConnectionResetError:
        return False
    if not request:
        return False
    has_session, its_end = os.pipe()
    pid = os.fork()
    if not pid:
        signal.set_wakeup_fd(-1)
        os.setsid()
        os.close(its_end)
        os.close(has_session)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        words, folder, environment = json.loads(request)
        os.chdir(folder)
        _leave(words, environment, ())
    for stream in (*streams, its_end):
        os.close(stream)
    os.read(has_session, 1)  # its end; a signal to the group of the process finds it then
    os.close(has_session)
    programs[pid] = connection
    connection.send(str(pid).encode())
    return True


class _Execution(BaseException):
    """This process goes on as another program."""


class _Children(subprocess.Popen):
    """What a forked process starts of featuremill is forked, too: a worker, the job of a rule."""

    def __init__(self, command, **more):
        environment = dict(more.get("env") or os.environ)
        # The shell of a job of gpu-local is a script of its own.
        shells = {None, "/bin/bash", *map(shutil.which, ("bash", "sh"))}
        is_plain = more.get("executable") in shells
        if is_plain and (words := _ours(command, environment.get("PATH"))):
            given = words, environment, more.get("pass_fds", ())
            more["preexec_fn"] = functools.partial(_leave, *given)
        super().__init__(command, **more)


def _ours(command, path):
    """Return what follows `python`; nothing where a shell is needed, or it is another's."""
    if not isinstance(command, str):
        module = command[2] if command[:2] == [sys.executable, "-m"] else ""
        return command[1:] if module.startswith(("featuremill.", "bench.")) else ()
    said = OF_JOBS.fullmatch(command.strip())
    mine = str(Path(sys.executable).with_name("featuremill"))
    if not said or {*"$`\\\n"} & {*said[1]} or shutil.which("featuremill", path=path) != mine:
        return ()
    tokens = list(shlex.shlex(said[1], posix=True, punctuation_chars=True))
    needs_shell = any({*token} <= {*"();<>|&"} for token in tokens)
    return () if needs_shell else ["-m", "featuremill", *tokens]


def _leave(words, environment, keep):
    """Go on as `python …` would have, up to the end, in a process that was just forked."""
    first = 3
    for number in (*sorted(keep), os.sysconf("SC_OPEN_MAX")):
        os.closerange(first, number)
        first = number + 1
    atexit._clear()
    futures._threads_queues.clear()  # other threads are none of this process
    for name in ("", "featuremill", "snakemake"):  # nor are files of logs
        logging.getLogger(name or None).handlers.clear()
    status, interrupt = 1, 0
    try:
        _run(words, environment)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and status is not end.code:
            print(end.code, file=sys.stderr)
    except BaseException as error:
        traceback.print_exc()
        interrupt = signal.SIGINT if isinstance(error, KeyboardInterrupt) else 0
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        if interrupt:  # as Python itself ends then
            signal.signal(interrupt, signal.SIG_DFL)
            os.kill(os.getpid(), interrupt)
        os._exit(status)


def _run(words, environment):
    """Be what a start makes, and run a module or a text; what that executes, too."""
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
    tempfile.tempdir = None
    for library in Path(folder).glob("lib*.so*") if folder else ():
        ctypes.CDLL(library)
    sys.orig_argv = [sys.executable, *words]
    paths = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = [str(Path.cwd()), *paths, *(path for path in sys.path if path not in OF_SERVER)]
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, closefd=False)  # noqa: SIM115  (for as long as the process lives)
        for number, mode in enumerate("rww")
    )
    for function in _cached():
        function.cache_clear()
    sys.modules["featuremill.flow.summary"]._started = time.time()
    if any(Path(folder, "sitecustomize.py").exists() for folder in paths):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    # OpenMP reads this when torch is imported.
    if "torch" in sys.modules and environment.get("OMP_NUM_THREADS", "").isdigit():
        sys.modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))
    subprocess.Popen = _Children
    os.execv = _execute
    while words:
        option, program, *sys.argv[1:] = words
        words = ()
        try:
            if option == "-c":
                sys.argv[0] = option
                sys.modules["__main__"] = types.ModuleType("__main__")
                exec(program, vars(sys.modules["__main__"]))
                continue
            found = importlib.util.find_spec(program)
            if found.submodule_search_locations is not None:
                found = importlib.util.find_spec(f"{program}.__main__")
            sys.argv[0] = found.origin
            sys.modules.pop(found.name, None)
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        except _Execution as another:
            _, *words = another.args[0]


def _execute(path, words):
    assert words[:2] == [sys.executable, "-m"], words
    raise _Execution(words)
