"""Weights: a checkpoint becomes, once, one memory-mapped file, and a JSON that names it.

Reads: a checkpoint (of the package, downloaded, or a path). Writes: `weights/<name>.json` and, in
the cache folder, a safetensors file. Of two at once, one converts and the other adopts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from featuremill.base import environment
from featuremill.base.errors import UserError
from featuremill.base.locking import locked
from featuremill.store import files
from featuremill.workload import Weights, refuse_without_packages
from featuremill.workloads.esm2 import sources
from featuremill.workloads.esm2.options import Options
from featuremill.workloads.esm2.sources import Source, is_path, name_of, refuse_missing

__all__ = ["add_arguments", "convert", "is_path", "name_of", "read", "refuse_missing", "run"]

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


def json_of(model: str) -> str:
    """Return where the rules keep what they know of the weights of `model`, a name or a path."""
    return f"weights/{name_of(model)}.json"


def run(arguments: argparse.Namespace) -> None:
    """Convert the model if that has not been done, and write the JSON."""
    entry = convert(arguments.model, arguments.cache)
    files.write_sealed(arguments.output, entry)
    _log.info("%s → %s (%.1f MB)", entry["name"], entry["path"], entry["bytes"] / 1e6)


def read(path: Path) -> Weights:
    """Return the weights that the JSON `path` names, after a look whether they are still there."""
    heal = f"delete {path} and run again"
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; featuremill weights MODEL writes one.")
    entry = files.read_sealed(path)
    if entry is None or not _is_whole(entry):
        raise UserError(f"{path}: this is not what featuremill weights wrote; {heal}.")
    if not _are_there(entry):
        raise UserError(f"{path}: its weights {entry['path']} are gone or not whole; {heal}.")
    return weights_of(entry)


def lost(path: Path) -> Weights | None:
    """Return the weights that the JSON `path` names if they are gone, as from an emptied cache."""
    entry = files.read_sealed(path)
    if entry is None or not _is_whole(entry) or _are_there(entry):
        return None
    return weights_of(entry)


def _are_there(entry: dict[str, Any]) -> bool:
    path = Path(entry["path"])
    return path.is_file() and path.stat().st_size == entry["bytes"]


def _is_whole(entry: dict[str, Any]) -> bool:
    """Tell whether `entry` says all that `Weights` promises."""
    facts = entry.get("metadata")
    return (
        all(isinstance(entry.get(key), str) for key in ("name", "path", "sha256"))
        and isinstance(facts, dict)
        and all(isinstance(value, str) for value in facts.values())
        and all(facts.get(key, "").isdecimal() for key in ("num_layers", "embed_dim"))
        and "bytes" in entry
    )


def weights_of(entry: dict[str, Any]) -> Weights:
    """Return the weights that the JSON object `entry` describes."""
    return Weights(entry["name"], Path(entry["path"]), entry["sha256"], entry["metadata"])


def cache_folder(given: Path | None = None) -> Path:
    """Return where converted weights are kept."""
    if given:
        return given
    if named := environment.CACHE.value():
        return named
    return Path(environment.XDG_CACHE_HOME.text() or Path.home() / ".cache") / "featuremill"


def convert(model: str, cache: Path | None = None) -> dict[str, Any]:
    """Return the JSON object for `model`, converting its checkpoint unless the cache has it."""
    source = sources.locate(model)
    # A published model goes by its name, so that its checkpoint may be deleted once converted.
    key = source.name
    if source.kind != "published":
        key += f"-{files.sha256_of(source.path)[:16]}"
    folder = cache_folder(cache).absolute() / LAYOUT
    record = folder / f"{key}.json"
    lock = folder / f"{key}.lock"
    entry = None if _may_be_written(lock) else _cached(record)
    if entry is None:
        with _locked(lock):
            entry = _cached(record)
            if entry is None:
                entry = _convert(source, folder / f"{key}.safetensors")
                files.write_json(record, entry)
    entry["source"]["location"] = source.location
    return entry


def _may_be_written(lock: Path) -> bool:
    """Tell whether this user may take the lock; another's cache may be there for reading only."""
    return not lock.parent.exists() or os.access(lock if lock.exists() else lock.parent, os.W_OK)


def _cached(record: Path) -> dict[str, Any] | None:
    """Return what an earlier conversion left, if its file still has the bytes that it had then."""
    if not record.exists():
        return None
    try:
        entry: dict[str, Any] = json.loads(record.read_text())
        # Beside it, wherever the cache is mounted here.
        path, sha256 = record.with_suffix(".safetensors"), entry["sha256"]
        if files.sha256_of(path) == sha256:
            _log.info("found converted weights %s", path)
            return {**entry, "path": str(path)}
        reason = "its sha256 is not the one it was written with"
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error)
    _log.warning("cached weights %s are damaged (%s); converting again", record, reason)
    return None


def _convert(source: Source, path: Path) -> dict[str, Any]:
    """Write the weights of `source` to `path`; return the JSON object that describes them."""
    if source.kind == "published" and not source.path.is_file():
        sources.download(source)
    refuse_without_packages(Options)
    from featuremill.workloads.esm2 import checkpoint

    _log.info("converting %s", source.path)
    found = checkpoint.read(source.path)
    with files.replacing(path) as temporary:
        sha256 = checkpoint.write(found, temporary)
    metadata = found.metadata()
    if source.kind == "published":
        metadata["license"] = sources.PUBLISHED_LICENSE
    name = source.name
    if source.kind == "local" and name not in sources.PUBLISHED:
        # The recipe must not depend on where a file lies or on what somebody called it.
        name = f"esm2_t{found.num_layers}_w{found.width}-{sha256[:8]}"
    return {
        "version": VERSION,
        "name": name,
        "path": str(path),
        "bytes": path.stat().st_size,
        "sha256": sha256,
        "source": {
            "kind": source.kind,
            "location": source.location,
            "sha256": files.sha256_of(source.path),
            "bytes": source.path.stat().st_size,
        },
        "metadata": metadata,
    }


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
