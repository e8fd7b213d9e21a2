"""run.json: what the config asks of one run, as its commands read it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from featuremill.store import run_lock
from featuremill.store.formats import RUN
from featuremill.store.json_file import JsonFile


class RunFile(JsonFile):
    """The file. The main Snakemake process writes it before the first job."""

    config: dict[str, Any]
    """The keys of a config without `features:`, each with its value; paths are seen from the folder
    where Snakemake runs."""
    folder: str = ""
    """That folder, seen from the run's folder; early files do not have it."""


def folder_here(run_folder: Path) -> str:
    """Return the working folder of this process, seen from the run's folder."""
    return os.path.relpath(Path.cwd(), run_lock.whole_path(run_folder))


def folder_of_paths(run_folder: Path) -> Path:
    """Return the folder that paths in run.json and plan.json are seen from."""
    found = RunFile.find(run_folder / RUN) if (run_folder / RUN).is_file() else None
    if found and found.folder:
        return Path(os.path.normpath(run_lock.whole_path(run_folder) / found.folder))
    working, owner = run_lock.working_folder(run_folder), run_lock.read(run_folder)
    return Path(os.path.normpath(working / owner.folder)) if owner else working


def enter(arguments: argparse.Namespace) -> Path:
    """Work in the folder that the paths of a run are seen from, wherever the command was typed, and
    return the run's folder; paths in the `arguments` are seen from there then."""
    if (arguments.run_folder / RUN).is_file():
        folder = folder_of_paths(arguments.run_folder)
        if folder.is_dir() and not folder.samefile(Path.cwd()):
            for name, value in vars(arguments).items():
                if isinstance(value, Path):
                    path = Path(os.path.normpath(value.absolute()))
                    is_below = path.is_relative_to(folder)
                    setattr(arguments, name, path.relative_to(folder) if is_below else path)
            os.chdir(folder)
    run_folder: Path = arguments.run_folder
    return run_folder
