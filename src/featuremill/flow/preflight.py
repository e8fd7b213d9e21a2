"""Preparations of the main process before Snakemake looks at a run's files: refuse what would fail
late (`refusals`), lock the run, write run.json, and rerun what is out of date (`reruns`)."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from featuremill.base.errors import UserError
from featuremill.config import Run
from featuremill.flow import elsewhere, internals, refusals, reruns
from featuremill.flow.screen import RefusedError, refusing
from featuremill.inputs import source
from featuremill.store import command_line, ours, run_lock
from featuremill.store.files import files_below
from featuremill.store.results import Results, RunFile, folder_here
from featuremill.workload import weights
from featuremill.workload.hugging_face import place_of

DECLARED = ("plan.json", "records.parquet", "receipts/*/*.json", "*")
"""Patterns of a run's declared files, in the order in which they are written."""


def prepare(workflow: Any, run: Run) -> None:
    """Prepare a run, if this is the main process and it is going to run jobs."""
    is_imported = internals.is_imported(workflow)
    is_whole = not (is_imported or refusals.asks_for_less(run.folder))
    if internals.is_main(workflow) and internals.is_dry(workflow) and not internals.only_looks():
        reruns.rerun_outdated(workflow, run, needs_plan=is_whole)
    is_done = run_lock.path_of(Path(run.folder)) in run_lock.CLAIMED  # by an earlier `use rule`
    if is_done or not internals.executes(workflow):
        return
    refusals.check_cores(workflow)
    refusals.refuse_default_storage(workflow)
    refusals.refuse_without_packages(workflow, run)
    refusals.refuse_without_gpu(workflow, run)
    elsewhere.link_results(run)
    # Relative to the folder that holds results/<run>, so that it stays valid if a project moves.
    working = run_lock.working_folder(Path(run.folder))
    files = () if is_imported else internals.config_files(workflow)
    path = ", ".join(os.path.relpath(file, working) for file in files)
    refusals.refuse_run_in_run(run)
    refusals.refuse_another_config(run, path)
    is_touch = internals.only_touches(workflow)
    if is_touch and not is_imported:
        refusals.refuse_touch_without_plan(run)
    rules = internals.rule_name(workflow, "{}")
    claim_run(run.folder, rules=rules, config=path, is_imported=is_imported)
    with refusing():
        if not is_imported:  # its target may not need this run
            write_run(run)
        if is_touch:
            return
        reruns.rerun_without_inputs(run)
        reruns.rerun_outdated(workflow, run, needs_plan=is_whole)
        reruns.convert_other_weights(workflow, run)
        reruns.remove_other_exports(run)
    check_times(run)


def claim_run(results: str, **about: Any) -> None:
    """Make this main process the run's owner, or refuse; remove the locks of a killed owner.

    The owner holds a kernel lock on a file of the run until it ends. If the last owner ran on this
    machine since its last start, its Snakemake locks on this run are void and are removed. If it
    ran elsewhere, the file system may not share kernel locks between machines, so Snakemake's own
    lock decides. `about` are fields of Owner.
    """
    path = run_lock.path_of(Path(results))
    try:
        with refusing():
            file = run_lock.claim(Path(results))
    except BlockingIOError:
        raise RefusedError(
            f"{results}: another snakemake is computing this run; wait for it, or stop it."
        ) from None
    if file is None:
        return
    run_lock.CLAIMED[path] = file
    last = run_lock.read(Path(results))
    was_here = last is not None and last.was_since_boot()
    stale = internals.locks_on(results)
    if was_here:
        for lock in stale:
            lock.unlink()
    if was_here or not stale:
        folder = os.path.relpath(Path.cwd(), run_lock.working_folder(Path(results)))
        with refusing():
            run_lock.sign(file, command_line.command(), folder=folder, **about)


def write_run(run: Run) -> None:
    """Write run.json, which the run's commands read, unless it has the same content."""
    path = Results(Path(run.folder)).run
    config = run.model_dump(mode="json")
    last, folder = RunFile.find(path), folder_here(Path(run.folder))
    if last is None or (last.config, last.folder) != (config, folder):
        path.parent.mkdir(parents=True, exist_ok=True)
        new = RunFile(version=RunFile.NEWEST, config=config, folder=folder)
        ours.write_json(path, new.content())


def check_times(run: Run) -> None:
    """Refuse inputs with a time in the future; set the run's own files with one to the present."""
    clock = run_lock.path_of(Path(run.folder))  # the file system's clock may differ from ours
    with refusing():
        read = [*run.files, *checkpoint_files(run, run), *option_inputs(run, run)]
        source.refuse_future(read, clock)
    now = source.now_by(clock)
    paths = [path for pattern in DECLARED for path in sorted(Path(run.folder).glob(pattern))]
    late = dict.fromkeys(path for path in paths if path.is_file() and path.stat().st_mtime > now)
    for path in late:
        os.utime(path)


# ---- inputs of rules ----


def option_inputs(run: Run, run_here: Run) -> list[str]:
    """Return the files and folders that the options of `run` name, and each file in such a folder.
    `run_here` is the run with the prefix of a module."""
    names, here = run.paths_of_options, run_here.paths_of_options
    return [file for key, path in names.items() for file in _with_inside(path, here[key])]


def checkpoint_files(run: Run, run_here: Run) -> list[str]:
    """Return the checkpoint if the run names one by its path, and each file in it if it is a
    folder: a changed one is converted again."""
    model, here = run.model or "", run_here.model or ""
    if not model or not weights.is_path(model, run.workload):
        return []
    at = str(place_of(here))  # without "~", which Snakemake does not look up
    return _with_inside(model if model != here else at, at)


def _with_inside(path: str, here: str) -> list[str]:
    """Return `path`, and each file in it if it is a folder: an edit does not change the time of the
    folder. `here` is the path with the prefix of a module."""
    inside: list[str] = []
    with contextlib.suppress(OSError, UserError):  # `refuse_missing` reports it
        inside = files_below(Path(here)) if Path(here).is_dir() else []
    return [bare(path), *(str(Path(path) / name) for name in inside)]


def bare(path: str) -> str:
    """Return `path` without leading "./", about which Snakemake warns."""
    return re.sub(r"^(\./+)+(?=.)", "", path)
