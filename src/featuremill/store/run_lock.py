"""The owner of a run: the main Snakemake process, which locks a file of the run until it ends.

Only the kernel's lock decides; it ends with the process. The content of the file describes the last
owner, for people and for the next owner.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from featuremill.base.errors import UserError
from featuremill.base.locking import claimed, is_still_there
from featuremill.store import formats, lock_holder
from featuremill.store.files import read_json

RESULTS = "results"
"""The folder of all runs."""
CLAIMED: dict[Path, TextIO] = {}
"""The main process's locks on its runs, held for as long as it lives."""


class Owner(NamedTuple):
    """The process that computes a run, or the last one that did."""

    host: str
    boot: str
    """The kernel's id of the machine's last start."""
    pid: int
    started: str
    """ISO 8601, UTC."""
    command: str
    """What was typed."""
    folder: str = "."
    """The folder in which it was typed, relative to the folder that holds results/<run>. For a
    module with a prefix these differ."""
    rules: str = "{}"
    """The format of rule names in the workflow that imports this one."""
    config: str = ""
    """The config's file, relative to the folder that holds results/<run>; "" without one."""
    is_imported: bool = False
    """Whether another workflow imported this one."""

    def was_since_boot(self) -> bool:
        """Return whether the owner ran on this machine since the machine was started."""
        return (self.host, self.boot) == (platform.node(), _boot_id())


def path_of(run_folder: Path) -> Path:
    """Return the file of the owner of the run in `run_folder` (results/<run>)."""
    name = name_of(run_folder).replace("/", "+")  # which no name has
    return working_folder(run_folder) / ".snakemake" / f"featuremill.{name}.owner"


def working_folder(run_folder: Path) -> Path:
    """Return the folder that holds results/<run>, or results/<run>/<name>: where Snakemake runs."""
    run = whole_path(run_folder).parent.parent
    return run.parent if _is_one_of_several(run_folder) else run


def name_of(run_folder: Path) -> str:
    """Return the name of a run below results/: <run>, or <run>/<name> in a project with several."""
    run = whole_path(run_folder)
    return f"{run.parent.name}/{run.name}" if _is_one_of_several(run_folder) else run.name


def is_in_results(run_folder: Path) -> bool:
    run = whole_path(run_folder)
    return run.parent.name == RESULTS or _is_one_of_several(run_folder)


def _is_one_of_several(run_folder: Path) -> bool:
    run = whole_path(run_folder)
    return run.parent.parent.name == RESULTS != run.parent.name


def whole_path(run_folder: Path) -> Path:
    """Return the absolute path of a run's folder without '..'. Links stay, as in Snakemake, and of
    a folder on another disk it is that of the link to it."""
    path = Path(os.path.normpath(run_folder.absolute()))
    for folder in (path, path.parent):
        if link := link_to(folder):
            return link / path.relative_to(folder)
    return path


def link_to(folder: Path) -> Path | None:
    """Return the link results/<run> that was made to `folder` and is there; None without one."""
    with contextlib.suppress(OSError):
        if (link := named_link(folder)) and link.is_symlink() and link.samefile(folder):
            return link
    return None


def named_link(folder: Path) -> Path | None:
    """Return the link that was made to `folder`, even if it is gone; None if none was made."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if text := (folder / formats.LINK).read_text("utf-8"):  # of a full disk it is empty
            return Path(text)
    return None


def refuse_lost(run_folder: Path) -> None:
    """Raise UserError if the link of a run leads to nothing, as when a disk is not mounted."""
    for link in (run_folder, run_folder.parent):
        if link.is_symlink() and not link.exists():
            raise UserError(
                f"{link}: its files are in {os.path.realpath(link)}, which is not there; mount "
                f"that disk, or, to begin anew, type: rm {shlex.quote(str(link))}"
            )


def read(run_folder: Path) -> Owner | None:
    return _owner_in(path_of(run_folder))


def config_of(run_folder: Path) -> Path:
    """Return the config of the last start of the run, or of the runs, in this folder.

    Raises:
        UserError: it is unknown or gone, or its paths are relative to another working folder.
    """
    own = path_of(run_folder)
    for path in (own, *sorted(own.parent.glob(f"{own.stem}+*.owner"))):
        last = _owner_in(path)
        working = working_folder(run_folder)
        if last and last.config and (working / last.config).is_file():
            folder = Path(os.path.normpath(working / last.folder))
            if folder.is_dir() and not folder.samefile(Path.cwd()):
                raise UserError(
                    f"{run_folder}: the paths in its config are seen from {folder}; type: "
                    f"cd {shlex.quote(str(folder))} and then the same with "
                    f"{os.path.relpath(whole_path(run_folder), folder)}."
                )
            return Path(os.path.relpath(working / last.config))
    raise UserError(f"{run_folder}: this is a folder; name the config of the run, as in my.yaml.")


def _owner_in(path: Path) -> Owner | None:
    fields = read_json(path) or {}
    known = {name: fields[name] for name in Owner._fields if name in fields}
    return Owner(**known) if {*Owner._fields} - {*Owner._field_defaults} <= {*known} else None


def living(folder: Path) -> list[Owner]:
    """Return the other processes that compute runs now in the working folder `folder`."""
    owners = []
    for path in sorted((folder / ".snakemake").glob("featuremill.*.owner")):
        owner = _owner_in(path)
        # A file that this process has claimed may still describe the last owner.
        if owner and path.absolute() not in CLAIMED and lock_holder.is_held(path):
            owners.append(owner)
    return owners


def claim(run_folder: Path) -> TextIO | None:
    """Take the run's lock; closing the returned file releases it. Return None if the file system
    has no locks and the user allowed that.

    Raises:
        BlockingIOError: another process has it.
        UserError: the file system has no locks.
    """
    path = path_of(run_folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = path.open("a+")
        is_ours: bool | None = False
        try:
            is_ours = claimed(file, path)
        finally:
            if not is_ours:
                file.close()
        if is_ours is False:
            raise BlockingIOError
        if not is_ours:
            return None
        if is_still_there(file, path):
            return file
        file.close()


def sign(file: TextIO, command: str, **about: Any) -> None:
    """Write this process into a claimed file; `about` are the fields of Owner with defaults."""
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    me = Owner(platform.node(), _boot_id(), os.getpid(), started, command)._replace(**about)
    file.truncate(0)
    file.write(json.dumps(me._asdict()))
    file.flush()


@contextlib.contextmanager
def alone(run_folder: Path) -> Iterator[None]:
    """Hold the run's lock during the block, so that no Snakemake computes the run.

    Raises:
        UserError: one is computing it.
    """
    try:
        file = claim(run_folder)
    except BlockingIOError:
        owner = read(run_folder)
        who = f" (process {owner.pid} on {owner.host}, since {owner.started})" if owner else ""
        raise UserError(
            f"{run_folder}: a snakemake is computing this run{who}; wait for it, or stop it."
        ) from None
    try:
        yield
    finally:
        if file:
            file.close()


def refuse_jobs(run_folder: Path) -> None:
    """Raise UserError if a job computes a shard of the run: a cluster's job may outlive its
    Snakemake."""
    for path in (run_folder / "store").glob("journals/*/*.lock"):
        if lock_holder.is_held(path):
            raise UserError(
                f"{run_folder}: a job is computing shard {path.stem[:8]}; wait for it, or stop it."
            )


def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""
