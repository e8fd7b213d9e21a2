"""featuremill weights: convert or hash a model's weights, and describe them in weights/<name>.json.

For a workload that converts checkpoints (bundled, downloaded, or a path), one file for memory
mapping is written to the cache folder. Of two processes, one converts and the other waits. Other
weights are used in place. `staged` copies weights to a disk of the node.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from featuremill.base import environment
from featuremill.base.errors import IntegrityError, UserError
from featuremill.base.locking import locked
from featuremill.base.words import human_bytes
from featuremill.store import files
from featuremill.store.plan import Settings
from featuremill.store.state import known_sha256_of
from featuremill.store.weights_file import CheckpointFile, WeightsFile
from featuremill.workload import (
    DEFAULT,
    Checkpoint,
    Checkpoints,
    Weights,
    Workload,
    WorkloadOptions,
    find_workload,
    optional,
    plain_weights,
)
from featuremill.workload.hugging_face import place_of

VERSION = 1
_ANOTHER_FOLDER = f"name another folder with --cache or {environment.CACHE}"

_log = logging.getLogger("featuremill.weights")
LAYOUT = re.compile(r"[\w-]+-\d+")
"""The form of a layout's name, which is also the name of the folder in the cache."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a model's name, or the path of its file or folder")
    parser.add_argument(
        "--workload", default=DEFAULT, metavar="NAME", help=f"whose weights they are ({DEFAULT})"
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="the weights/<name>.json to write"
    )
    parser.add_argument("--cache", type=Path, help="folder for converted weights and its locks")


def _checkpoints(workload: str) -> Checkpoints | None:
    checkpoints: Checkpoints | None = optional(find_workload(workload), "CHECKPOINTS")
    return checkpoints


def is_path(model: str, workload: str = DEFAULT) -> bool:
    """Return whether `model` is the path of a checkpoint and not a name."""
    checkpoints = _checkpoints(workload)
    return checkpoints.is_path(model) if checkpoints else True


def name_of(model: str, workload: str = DEFAULT) -> str:
    """Return the `<name>` of `weights/<name>.json` for `model`, or raise UserError if there is no
    such model; opens no file."""
    return (_checkpoints(workload) or plain_weights).name_of(model)


def refuse_missing(model: str, workload: str = DEFAULT) -> None:
    """Raise UserError if `model` is the path of weights that do not exist."""
    (_checkpoints(workload) or plain_weights).refuse_missing(model)


def json_of(model: str, workload: str = DEFAULT) -> str:
    """Return the path of the weights/<name>.json of `model`, a name or a path, in rules."""
    return f"weights/{name_of(model, workload)}.json"


def model_name_of(settings: Settings) -> str:
    """Return the name of the model in a recipe's settings; "" for weights that are not converted,
    or if the workload is not installed."""
    return model_in(settings.workload, settings.options)


def model_in(workload: str, options: Mapping[str, Any]) -> str:
    """Return the model that `options` of a workload name; "" as in `model_name_of`."""
    try:
        module = find_workload(workload)
        return module.weights(_options_in(module, options)) or ""
    except (UserError, AttributeError):  # another version, which lacks an option
        return ""


def _options_in(workload: Workload, options: Mapping[str, Any]) -> WorkloadOptions:
    """Return the options of a recipe without validation, as they were validated before."""
    model: type[WorkloadOptions] = workload.Options
    return model.model_construct(**options)


def made_by(settings: Settings) -> str:
    """Return the workload of a recipe and, if there is one, its model, separated by a space."""
    return " ".join(filter(None, (settings.workload, model_name_of(settings))))


def caution_of(workload: str, options: WorkloadOptions | Mapping[str, Any]) -> str:
    """Return the workload's caution about `options`, or options in a recipe, or ""."""
    try:
        module = find_workload(workload)
        if isinstance(options, Mapping):
            options = _options_in(module, options)
        return str(optional(module, "caution")(options))
    except (UserError, AttributeError):
        return ""


def suggested(workload: str) -> str:
    """Return the first suggested model of a workload that is on this machine; "" if none is."""
    checkpoints = _checkpoints(workload)
    if checkpoints is None:
        return ""
    for model in checkpoints.SUGGESTED:
        entry = WeightsFile.find(Path(json_of(model, workload)))
        converted = cache_folder() / checkpoints.LAYOUT / f"{model}.safetensors"
        places = (converted, checkpoints.locate(model).path)
        if (entry and entry.is_there) or any(path.exists() for path in places):
            return model
    return ""


def command_for(model: str, workload: str, output: str) -> str:
    of_workload = [] if workload == DEFAULT else ["--workload", workload]
    return shlex.join(["featuremill", "weights", model, *of_workload, "--output", output])


def run(arguments: argparse.Namespace) -> None:
    """Carry out `featuremill weights`: convert the model if needed, and write the JSON."""
    record = convert(arguments.model, arguments.cache, arguments.workload)
    record.write(arguments.output)
    _log.info("%s → %s (%.1f MB)", record.name, record.path, record.bytes / 1e6)


def read(path: Path, workload: str = DEFAULT) -> Weights:
    """Return the weights that the JSON `path` describes.

    Raises:
        UserError: if the JSON is missing or damaged, or the weights are missing.
    """
    heal = f"delete {path} and run again"
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; featuremill weights MODEL writes one.")
    record = WeightsFile.find(path)
    checkpoints = _checkpoints(workload)
    numbers = checkpoints.NUMBERS if checkpoints else ()
    if record is None or not all(record.metadata.get(key, "").isdecimal() for key in numbers):
        raise UserError(f"{path}: this is not what featuremill weights wrote; {heal}.")
    if not record.is_there:
        raise UserError(f"{path}: its weights {record.path} are gone or incomplete; {heal}.")
    if not _is_whole(record, path):
        raise UserError(f"{path}: its weights {record.path} were changed since; {heal}.")
    layout = Path(record.path).parent.name
    is_layout = LAYOUT.fullmatch(layout)  # the user may have moved the file
    if checkpoints and is_layout and layout != checkpoints.LAYOUT:
        raise UserError(
            f"{path}: these weights have the layout {layout}, and {workload} reads "
            f"{checkpoints.LAYOUT}; featuremill weights MODEL --workload {workload} --output "
            "FILE.json writes them."
        )
    return weights_of(record)


def lost(path: Path) -> Weights | None:
    """Return the weights that the JSON `path` describes if they are missing, or have other bytes
    than then; else None."""
    record = WeightsFile.find(path)
    return None if record is None or _is_whole(record, path) else weights_of(record)


def _is_whole(record: WeightsFile, path: Path) -> bool:
    """Return whether the weights have the bytes that the `record` at `path` describes."""
    return record.is_there and _known_digest(path, Path(record.path)) == record.sha256


def _known_digest(path: Path, *paths: Path) -> str:
    """Return the sha256 at `paths`; digests of large files are kept beside the JSON `path`."""
    return files.digest_at(*paths, digest=partial(known_sha256_of, folder=path.parent))


def are_of_another(path: Path, model: str, workload: str = DEFAULT) -> bool:
    """Return whether the JSON `path` describes the weights of another checkpoint than that of
    `model` as it is now. A checkpoint that is not here is not compared."""
    record, source = WeightsFile.find(path), _checkpoint_of(model, workload)
    if record is None or record.source is None:
        return False
    if "published" in (source.kind, record.source.kind):  # it is known by its name
        return source.kind != record.source.kind
    return _digest_now(path, source) not in ("", record.source.sha256)


def sha256_now(path: Path, model: str, workload: str) -> str:
    """Return the sha256 of the weights of the checkpoint that `model` is now, by the JSON `path` or
    an earlier conversion. It is that of the checkpoint if it was never converted, and "" if it is
    published or not here."""
    source, checkpoints = _checkpoint_of(model, workload), _checkpoints(workload)
    digest = "" if source.kind == "published" else _digest_now(path, source)
    record = WeightsFile.find(path)
    if digest and checkpoints and not (record and record.source and record.source.sha256 == digest):
        record = WeightsFile.find(_cached_json(checkpoints, source, digest))
    return record.sha256 if digest and checkpoints and record else digest


def _checkpoint_of(model: str, workload: str) -> Checkpoint:
    if checkpoints := _checkpoints(workload):
        with contextlib.suppress(UserError):  # it is gone
            return checkpoints.locate(model)
    return Checkpoint("local", model, model, place_of(model))


def _digest_now(path: Path, source: Checkpoint) -> str:
    paths = source.path, *source.others
    return _known_digest(path, *paths) if all(each.exists() for each in paths) else ""


def weights_of(record: WeightsFile) -> Weights:
    return Weights(record.name, Path(record.path), record.sha256, record.metadata)


def cache_folder(folder: Path | None = None) -> Path:
    if folder:
        return folder
    if chosen := environment.CACHE.value():
        return chosen
    return Path(environment.XDG_CACHE_HOME.text() or Path.home() / ".cache") / "featuremill"


def converted(model: str, layout: str) -> WeightsFile | None:
    """Return the record of an earlier conversion of a published model, or None."""
    return WeightsFile.find(cache_folder() / layout / f"{model}.json")


def convert(model: str, cache: Path | None = None, workload: str = DEFAULT) -> WeightsFile:
    """Return the record of the weights of `model`; convert it if the cache lacks it."""
    checkpoints = _checkpoints(workload)
    if checkpoints is None:
        reads_pickles = optional(find_workload(workload), "READS_PICKLES")
        return plain_weights.look(model, reads_pickles, VERSION)
    source = checkpoints.locate(model)
    # A published model is found by its name, so its checkpoint may be deleted after the conversion.
    is_published = source.kind == "published"
    digest = "" if is_published else files.digest_at(source.path, *source.others)
    record = _cached_json(checkpoints, source, digest, cache)
    folder, lock = record.parent, record.with_suffix(".lock")
    # A cache of another user may be read-only.
    may_lock = not folder.exists() or os.access(lock if lock.exists() else folder, os.W_OK)
    weights = None if may_lock else _cached(record)
    if weights is None:
        with _locked(lock):
            weights = _cached(record)
            if weights is None:
                weights = _convert(checkpoints, source, record.with_suffix(".safetensors"))
                files.write_json(record, weights.as_json())
    assert weights.source
    here = weights.source.model_copy(update={"location": source.location})
    return weights.model_copy(update={"source": here})


def _cached_json(
    checkpoints: Checkpoints, source: Checkpoint, digest: str, cache: Path | None = None
) -> Path:
    """Return the path of the JSON of a conversion of `source`, whose files have this digest."""
    key = f"{source.name}-{digest[:16]}" if digest else source.name
    return cache_folder(cache).absolute() / checkpoints.LAYOUT / f"{key}.json"


def _cached(record: Path) -> WeightsFile | None:
    """Return the record of an earlier conversion, if its file still has the same bytes."""
    if not record.exists():
        return None
    try:
        entry = WeightsFile.find(record)
        # The file is beside the record, wherever the cache is mounted.
        path = record.with_suffix(".safetensors")
        if entry is None or entry.source is None:
            reason = "its JSON is not what was written"
        elif files.sha256_of(path) == entry.sha256:
            _log.info("found converted weights %s", path)
            return entry.model_copy(update={"path": str(path)})
        else:
            reason = "its sha256 is not the one it was written with"
    except OSError as error:
        reason = str(error)
    _log.warning("cached weights %s are damaged (%s); converting again", record, reason)
    return None


def _convert(checkpoints: Checkpoints, source: Checkpoint, path: Path) -> WeightsFile:
    with files.replacing(path) as temporary:
        converted = checkpoints.convert(source, temporary)
    if not source.path.exists():  # the download may have another path
        source = checkpoints.locate(source.name)
    paths = (source.path, *source.others)
    return WeightsFile(
        version=VERSION,
        name=converted.name,
        path=str(path),
        bytes=path.stat().st_size,
        sha256=converted.sha256,
        source=CheckpointFile(
            kind=source.kind,
            location=source.location,
            sha256=files.digest_at(*paths),
            bytes=sum(map(files.bytes_at, paths)),
        ),
        metadata=converted.metadata,
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock `path`. It ends with its process, so nothing needs to be cleaned up."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise UserError(
            f"{path.parent}: converted weights cannot be kept here ({error.strerror}); "
            f"{_ANOTHER_FOLDER}."
        ) from None
    waiting = partial(_log.info, "waiting for another process that converts the same model")
    with locked(path, waiting, _ANOTHER_FOLDER):
        yield


def staged(weights: Weights, warn: Callable[[str], Any]) -> Weights:
    """Return `weights` with the path of a copy on a local disk of the node, made once for all jobs
    of the node, if FEATUREMILL_STAGE is set. The copy has the sha256 of the recipe.

    If the node has no free space or the folder cannot be written, the original is used, and `warn`
    is called with the reason.

    Raises:
        UserError: if the folder's name is not usable.
        IntegrityError: if the original has another sha256 than the recipe.
    """
    variable = environment.STAGE.value()
    if not variable:
        return weights
    stage = os.path.expandvars(variable)
    if "$" in stage or not Path(stage).is_absolute():
        raise UserError(
            f"{environment.STAGE}: {variable!r} is no folder on this node; give an absolute path, "
            "and only variables that are set where the job runs."
        )
    folder = Path(stage) / f"featuremill-{os.getuid()}"
    copy = folder / f"{weights.sha256}{weights.path.suffix}"
    try:
        files.make_own_folder(folder)
        with locked(copy.with_suffix(".lock")):
            if not _is_staged(copy):
                _stage(weights, copy)
    except OSError as error:
        reason = error.strerror or str(error)
        warn(f"{environment.STAGE}: {folder}: {reason}; the weights are read from {weights.path}")
        return weights
    return weights._replace(path=copy)


def _is_staged(copy: Path) -> bool:
    """Return whether `copy` exists and is unchanged since its sha256 was checked."""
    try:
        return files.read_json(copy.with_suffix(".json")) == _facts(copy)
    except FileNotFoundError:
        return False


def _stage(weights: Weights, copy: Path) -> None:
    from featuremill.store.disk_space import MARGIN  # here: it imports pyarrow

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
