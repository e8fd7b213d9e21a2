"""Copies of weights on a local disk of the node (FEATUREMILL_STAGE), made once for all jobs of the
node. A copy is used only if it has the sha256 of the recipe."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from featuremill.base.environment import STAGE
from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.locking import locked
from featuremill.base.words import human_bytes
from featuremill.store import files
from featuremill.store.disk_space import MARGIN
from featuremill.workload import Weights


def staged(weights: Weights, warn: Callable[[str], Any]) -> Weights:
    """Return `weights` with the path of a copy in the staging folder, if one is set.

    If the node has no free space or the folder cannot be written, the original is used, and `warn`
    is called with the reason.

    Raises:
        UserError: if the folder's name is not usable.
        IntegrityError: if the original has another sha256 than the recipe.
    """
    variable = STAGE.value()
    if not variable:
        return weights
    stage = os.path.expandvars(variable)
    if "$" in stage or not Path(stage).is_absolute():
        raise UserError(
            f"{STAGE}: {variable!r} is no folder on this node; give an absolute path, and only "
            "variables that are set where the job runs."
        )
    folder = Path(stage) / f"featuremill-{os.getuid()}"
    copy = folder / f"{weights.sha256}{weights.path.suffix}"
    try:
        files.make_own_folder(folder)
        with locked(copy.with_suffix(".lock")):
            if not _is_known(copy):
                _copy(weights, copy)
    except OSError as error:
        reason = error.strerror or str(error)
        warn(f"{STAGE}: {folder}: {reason}; the weights are read from {weights.path}")
        return weights
    return weights._replace(path=copy)


def _is_known(copy: Path) -> bool:
    """Return whether `copy` exists and is unchanged since its sha256 was checked."""
    try:
        return files.read_json(copy.with_suffix(".json")) == _facts(copy)
    except FileNotFoundError:
        return False


def _copy(weights: Weights, copy: Path) -> None:
    files.remove_left(copy)
    files.remove(copy)
    is_folder = weights.path.is_dir()
    names = files.files_below(weights.path) if is_folder else [""]
    size = sum((weights.path / name).stat().st_size for name in names)
    free = shutil.disk_usage(copy.parent).free
    if size * MARGIN > free:
        raise OSError(f"the weights take {human_bytes(size)}, and {human_bytes(free)} are free")
    with files.replacing_folder(copy) if is_folder else files.replacing(copy) as temporary:
        for name in names:
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(weights.path / name, temporary / name)
        if files.digest_at(temporary) != weights.sha256:
            raise IntegrityError(
                f"{weights.path}: its bytes are not those that were converted; delete "
                f"weights/{weights.name}.json and run again."
            )
    files.write_json(copy.with_suffix(".json"), _facts(copy))


def _facts(copy: Path) -> dict[str, Any]:
    """Return the size, time and inode of a copy, or of each file in it."""
    if copy.is_dir():
        return {name: _facts(copy / name) for name in files.files_below(copy)}
    status = copy.stat()
    return {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}
