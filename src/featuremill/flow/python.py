"""`featuremill.run`: the command of that name for notebooks and programs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from featuremill.base import environment, this_process
from featuremill.base.errors import UserError, error_of
from featuremill.base.progress import CallBack, on_terminal
from featuremill.config.project import runs_of
from featuremill.status.reader import RunReader
from featuremill.store.ours import delivering

MARK = "# featuremill.run wrote this config; it writes it anew."
LOOK_SECONDS = 1.0
POLL_SECONDS = 0.05
ERROR = re.compile(r"^(?: *\w+ │ )?error: (.*)$", re.MULTILINE)
"""An error on the screen of a run: of a job, of Snakemake, or of what refuses the run."""


def run(
    config: str | os.PathLike[str] | Mapping[str, Any],
    *,
    cores: int | str = "all",
    gpus: int | str | Sequence[int | str] | None = None,
    progress: CallBack | None = None,
) -> Path | dict[str, Path]:
    """Compute what a config asks for, as the command `featuremill run` does, and return the run's
    folder, which `load` takes; of a config with several sets of features, a folder by each name.

    `config` is the path of a config, or its content as a mapping. A mapping is written to
    `<run>.yaml` in the current folder, so that commands such as `featuremill status` find it.
    `cores` and `gpus` limit what the run takes: numbers, "all", or a list of GPUs such as [0, 2].

    `progress` is called with (distinct records done, distinct records in all), once a second;
    without it, a line on a terminal or in a notebook shows that. What the command prints is not
    shown. Ctrl-C, or the end of this process, ends the run; the same call continues it.

    Raises:
        UserError: a config, an input or an argument is wrong; nothing computed is lost.
        DeviceError, IntegrityError, WorkloadError: the run fails, with the sentence of its first
            failed job; a note of the error has all that the command printed.
    """
    path = _written(config) if isinstance(config, Mapping) else Path(config)
    folders = runs_of(path).folders
    command = [sys.executable, "-m", "featuremill", "run", str(path), "--cores", str(cores)]
    if isinstance(gpus, Sequence) and not isinstance(gpus, str):
        command += ["--devices", ",".join(map(str, gpus))]
    elif gpus not in (None, "all"):
        command += ["--gpus", str(gpus)]
    variables = {environment.DIE_WITH_PARENT.name: this_process.name_of_process()}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output,
        on_terminal() if progress is None else contextlib.nullcontext(progress) as show,
    ):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment.of_child(variables),
            start_new_session=True,  # so that Ctrl-C reaches it once
        )
        try:
            _follow(process, [RunReader(folder) for folder in folders], show)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)  # its jobs, too, as a terminal does
                process.wait()
        if process.returncode:
            output.seek(0)
            raise _error(process.returncode, output.read())
    return folders[0] if len(folders) == 1 else {folder.name: folder for folder in folders}


def _written(config: Mapping[str, Any]) -> Path:
    """Write a config to `<run>.yaml`, unless the file has it; return the path."""
    path = Path(f"{config.get('run', 'demo')}.yaml")
    text = f"{MARK}\n{yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True)}"
    before = path.read_text("utf-8") if path.is_file() else None
    if before is not None and not before.startswith(MARK):
        raise UserError(
            f"{path}: this file is not one that featuremill.run wrote; name it in place of the "
            "mapping, or give the mapping another `run`."
        )
    if before != text:
        with delivering(path) as temporary:
            temporary.write_text(text, "utf-8")
    return path


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_plain, value)]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _follow(
    process: subprocess.Popen[bytes],
    readers: Sequence[RunReader],
    show: CallBack | None,
) -> None:
    """Wait for the end of the command, and show the progress of its runs."""
    looked, reported = 0.0, (0, 0)
    while True:
        has_ended = process.poll() is not None
        if show and (has_ended or time.monotonic() - looked > LOOK_SECONDS):
            looked, now = time.monotonic(), reported
            with contextlib.suppress(Exception):  # a file that is being written
                states = [reader.poll() for reader in readers]
                sums = [(state.done.records, state.total.records) for state in states]
                now = (sum(done for done, _ in sums), sum(total for _, total in sums))
            if now != reported and now[1]:
                reported = now
                show(*now)
        if has_ended:
            return
        time.sleep(POLL_SECONDS)


def _error(status: int, text: str) -> Exception:
    match = ERROR.search(text)
    last = text.strip().rpartition("\n")[2] or f"the command ended with status {status}"
    error = error_of(status, match[1] if match else last)
    error.add_note(text)
    return error
