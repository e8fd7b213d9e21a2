"""Weights: a checkpoint becomes, once, one memory-mapped file, and a JSON that names it.

Reads: a checkpoint (of the package, downloaded, or a path). Writes: `weights/<name>.json` and, in
the cache folder, a safetensors file. Of two at once, one converts and the other adopts.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from featuremill.base import environment
from featuremill.base.errors import UserError
from featuremill.base.locking import locked
from featuremill.store import files
from featuremill.store.weights_file import CheckpointFile, WeightsFile
from featuremill.workload import (
    DEFAULT,
    Checkpoint,
    Checkpoints,
    HasCheckpoints,
    Weights,
    find_workload,
)

LAYOUT = "esm2-1"
"""Folder of the converted files; another one whenever what is written changes."""
VERSION = 1
_ANOTHER_FOLDER = f"name another folder with --cache or {environment.CACHE}"

_log = logging.getLogger("featuremill.weights")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    parser.add_argument("model", help="a model's name or the path of a checkpoint")
    parser.add_argument(
        "--output", type=Path, required=True, help="the weights/<name>.json to write"
    )
    parser.add_argument("--cache", type=Path, help="folder for converted weights and its locks")


def _checkpoints() -> Checkpoints:
    return cast(HasCheckpoints, find_workload(DEFAULT)).CHECKPOINTS


def is_path(model: str) -> bool:
    """Tell whether `model` is the path of a checkpoint and not a name."""
    return _checkpoints().is_path(model)


def name_of(model: str) -> str:
    """Return the name under which `weights/<name>.json` stands for `model`; looks at no file.

    Raises:
        UserError: there is no such model.
    """
    return _checkpoints().name_of(model)


def refuse_missing(model: str) -> None:
    """Raise UserError where `model` is the path of a checkpoint that is not there."""
    _checkpoints().refuse_missing(model)


def json_of(model: str) -> str:
    """Return where the rules keep what they know of the weights of `model`, a name or a path."""
    return f"weights/{name_of(model)}.json"


def run(arguments: argparse.Namespace) -> None:
    """Convert the model if that has not been done, and write the JSON."""
    found = convert(arguments.model, arguments.cache)
    found.write(arguments.output)
    _log.info("%s → %s (%.1f MB)", found.name, found.path, found.bytes / 1e6)


def read(path: Path) -> Weights:
    """Return the weights that the JSON `path` names, after a look whether they are still there."""
    heal = f"delete {path} and run again"
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; featuremill weights MODEL writes one.")
    found = WeightsFile.find(path)
    if found is None:
        raise UserError(f"{path}: this is not what featuremill weights wrote; {heal}.")
    if not found.is_there:
        raise UserError(f"{path}: its weights {found.path} are gone or not whole; {heal}.")
    return weights_of(found)


def lost(path: Path) -> Weights | None:
    """Return the weights that the JSON `path` names if they are gone, as from an emptied cache."""
    found = WeightsFile.find(path)
    return None if found is None or found.is_there else weights_of(found)


def weights_of(found: WeightsFile) -> Weights:
    """Return the weights that a JSON file tells of."""
    return Weights(found.name, Path(found.path), found.sha256, found.metadata)


def cache_folder(given: Path | None = None) -> Path:
    """Return where converted weights are kept."""
    if given:
        return given
    if named := environment.CACHE.value():
        return named
    return Path(environment.XDG_CACHE_HOME.text() or Path.home() / ".cache") / "featuremill"


def convert(model: str, cache: Path | None = None) -> WeightsFile:
    """Return what there is to say of the weights of `model`, converting its checkpoint unless the
    cache has it."""
    source = _checkpoints().locate(model)
    # A published model goes by its name, so that its checkpoint may be deleted once converted.
    key = source.name
    if source.kind != "published":
        key += f"-{files.sha256_of(source.path)[:16]}"
    folder = cache_folder(cache).absolute() / LAYOUT
    record = folder / f"{key}.json"
    lock = folder / f"{key}.lock"
    found = None if _may_be_written(lock) else _cached(record)
    if found is None:
        with _locked(lock):
            found = _cached(record)
            if found is None:
                found = _convert(source, folder / f"{key}.safetensors")
                files.write_json(record, found.as_json())
    assert found.source
    here = found.source.model_copy(update={"location": source.location})
    return found.model_copy(update={"source": here})


def _may_be_written(lock: Path) -> bool:
    """Tell whether this user may take the lock; another's cache may be there for reading only."""
    return not lock.parent.exists() or os.access(lock if lock.exists() else lock.parent, os.W_OK)


def _cached(record: Path) -> WeightsFile | None:
    """Return what an earlier conversion left, if its file still has the bytes that it had then."""
    if not record.exists():
        return None
    try:
        found = WeightsFile.find(record)
        # Beside it, wherever the cache is mounted here.
        path = record.with_suffix(".safetensors")
        if found is None or found.source is None:
            reason = "its JSON is not what was written"
        elif files.sha256_of(path) == found.sha256:
            _log.info("found converted weights %s", path)
            return found.model_copy(update={"path": str(path)})
        else:
            reason = "its sha256 is not the one it was written with"
    except OSError as error:
        reason = str(error)
    _log.warning("cached weights %s are damaged (%s); converting again", record, reason)
    return None


def _convert(source: Checkpoint, path: Path) -> WeightsFile:
    """Write the weights of `source` to `path`; return what there is to say of them."""
    with files.replacing(path) as temporary:
        made = _checkpoints().convert(source, temporary)
    about_source = CheckpointFile(
        kind=source.kind,
        location=source.location,
        sha256=files.sha256_of(source.path),
        bytes=source.path.stat().st_size,
    )
    return WeightsFile(
        version=VERSION,
        name=made.name,
        path=str(path),
        bytes=path.stat().st_size,
        sha256=made.sha256,
        source=about_source,
        metadata=made.metadata,
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock `path`; it falls with its holder, so nothing needs to be cleaned up."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise UserError(
            f"{path.parent}: converted weights cannot be kept here ({error.strerror}); "
            f"{_ANOTHER_FOLDER}."
        ) from None
    with locked(path, _say_waiting, _ANOTHER_FOLDER):
        yield


def _say_waiting() -> None:
    _log.info("waiting for another process that converts the same model")
