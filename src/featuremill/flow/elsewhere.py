"""Results on another disk: results/<run> is a link to the folder that has them.

Every path of a run leads through the link. A file in the folder has the path of the link, so that
commands find the run from there, and that no other run uses the folder.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from featuremill.base.locking import locked
from featuremill.config import Run
from featuremill.flow import internals
from featuremill.flow.screen import RefusedError, refusing
from featuremill.store import command_line, formats, run_lock
from featuremill.store.results import runs_below


def link_results(run: Run) -> None:
    """Make results/<run> a link to the folder for results, if the command line or the config names
    one.

    Raises:
        RefusedError: the run's files are elsewhere, or those of another run are in the folder.
    """
    link = Path(run.folder)
    if "/" in run.run:  # one of several
        link = link.parent
    folder = command_line.results() or run.results
    wanted = Path(os.path.normpath(Path(folder).absolute()), link.name) if folder else None
    if link.is_symlink():
        with refusing():
            run_lock.refuse_lost(link)
        is_there = Path(os.path.realpath(link))
        _refuse_taken(link, is_there)
        if wanted is not None and Path(os.path.realpath(wanted)) != is_there:
            raise RefusedError(_moving(link, is_there, wanted))
        wanted = is_there
    elif wanted is None or os.path.realpath(wanted) == os.path.realpath(link):
        return
    elif link.exists():
        raise RefusedError(_moving(link, link, wanted))
    _refuse_taken(link, wanted)
    with refusing():
        _make(link, wanted)


def _make(link: Path, folder: Path) -> None:
    if not folder.parent.parent.is_dir():
        raise RefusedError(
            f"{folder.parent}: there is no folder {folder.parent.parent}; check the path, or make "
            f"it: mkdir -p {shlex.quote(str(folder.parent))}"
        )
    folder.parent.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    with locked(folder / formats.LINK):
        _refuse_taken(link, folder)  # again: another project may have begun in this moment
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(folder)
            internals.log.info(f"{link} is a link to {folder}")
        if run_lock.link_to(folder) is None:
            (folder / formats.LINK).write_text(str(link.absolute()), "utf-8")


def _moving(link: Path, is_there: Path, wanted: Path) -> str:
    """Return a message with the command that moves the files of a run to the `wanted` folder."""
    removing = f" && rm {shlex.quote(str(link))}" if link.is_symlink() else ""
    return (
        f"{link}: its files are in {is_there} and not in {wanted}; to move them, type: "
        f"mkdir -p {shlex.quote(str(wanted.parent))} && mv {shlex.quote(str(is_there))} "
        f"{shlex.quote(str(wanted.parent))}/{removing}"
    )


def _refuse_taken(link: Path, folder: Path) -> None:
    other = run_lock.link_to(folder)
    is_own = run_lock.path_of(folder) == run_lock.path_of(link)  # moved within the project
    if not (other or is_own) and any(map(run_lock.read, (folder, *runs_below(folder)))):
        other = folder
    if other is not None and not (link.is_symlink() and other == link.absolute()):
        remedy = "give this one another `run:`, or have its results in another folder."
        if link.is_symlink():  # a copy of the other run's link
            remedy = f"for results of its own, type: rm {shlex.quote(str(link))}"
        raise RefusedError(f"{folder}: there are the files of another run ({other}); {remedy}")
    # Its project may have been moved, or be on a disk that is not mounted.
    lost = run_lock.named_link(folder)
    if other is None and lost not in (None, link.absolute()) and not link.is_symlink():
        raise RefusedError(
            f"{folder}: there are the files of the run {lost}, which is gone; give this one "
            "another `run:`, or have its results in another folder. If they are this run's, type: "
            f"mkdir -p {shlex.quote(str(link.parent))} && ln -s {shlex.quote(str(folder))} "
            f"{shlex.quote(str(link))}"
        )
