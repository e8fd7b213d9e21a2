"""Weights that are not converted: a file or a folder.

Code in a folder is never imported. Pickles, which run code when they are loaded, are refused unless
the workload has READS_PICKLES.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path

from featuremill.base.errors import UserError
from featuremill.store.files import digest_of_folder, files_below, sha256_of
from featuremill.store.weights_file import CheckpointFile, FileOfWeights, WeightsFile
from featuremill.workload.hugging_face import how_to_get, place_of

PICKLES = (".pkl", ".pickle", ".joblib")
PICKLE_START = re.compile(rb"\x80[\x02-\x08]")
"""The first bytes of a pickle of protocol 2 or newer, and of PyTorch's files before 1.6."""


def name_of(path: str) -> str:
    """Return the `<name>` of `weights/<name>.json` for `path`; opens no file."""
    path = str(Path(path))  # the same name with "./" before it
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", Path(path).name).lstrip(".-") or "weights"
    return f"{stem}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def refuse_missing(path: str) -> None:
    """Raise UserError if `path` is neither a file nor a folder with files."""
    at, problem, remedy = place_of(path), "", "name the one with the weights"
    try:
        if not at.exists():
            problem = "there is no such file or folder"
            remedy = how_to_get(path) or remedy
        elif not (at.is_file() or at.is_dir()):
            problem = "this is no regular file"
        elif at.is_dir() and not files_below(at):
            problem = "there is no file in this folder"
    except OSError as error:
        problem = f"{error.filename or at} cannot be read ({error.strerror})"
    if problem:
        raise UserError(f"{path}: {problem}; {remedy}.")


def look(path: str, reads_pickles: bool, version: int) -> WeightsFile:
    """Return the content of weights/<name>.json for the file or folder at `path`, after hashing all
    of it.

    Raises:
        UserError: it is missing, cannot be read, or has a pickle that the workload does not read
            safely.
    """
    refuse_missing(path)
    at = place_of(path).absolute()
    own_name = at.name if Path(path).expanduser().exists() else Path(path).name
    names = files_below(at) if at.is_dir() else [""]
    files = []
    try:
        for name in names:
            file = at / name
            if not reads_pickles and _is_pickle(file):
                raise UserError(
                    f"{file}: this is a pickle, which can run any code when it is loaded; save the "
                    "weights as safetensors, or use a workload that declares that it reads pickles "
                    "safely."
                )
            entry = FileOfWeights(path=name, bytes=file.stat().st_size, sha256=sha256_of(file))
            files.append(entry)
    except OSError as error:
        raise UserError(
            f"{error.filename or at}: it cannot be read ({error.strerror}); fix that first."
        ) from None
    size = sum(file.bytes for file in files)
    sha256 = files[0].sha256
    if at.is_dir():
        sha256 = digest_of_folder({file.path: file.sha256 for file in files})
    record = WeightsFile(
        version=version,
        name=f"{own_name}-{sha256[:8]}",
        path=str(at),
        bytes=size,
        sha256=sha256,
        source=CheckpointFile(kind="local", location=str(at), sha256=sha256, bytes=size),
        metadata={},
    )
    return record.model_copy(update={"files": files}) if at.is_dir() else record


def _is_pickle(file: Path) -> bool:
    """Return whether `file` is a pickle, by its name or content, or a zip file with one inside, as
    PyTorch writes them."""
    if file.suffix in PICKLES:
        return True
    with file.open("rb") as opened:
        start = opened.read(4)
    if not start.startswith(b"PK"):
        return PICKLE_START.match(start) is not None
    try:
        with zipfile.ZipFile(file) as archive:
            return any(name.endswith(PICKLES) for name in archive.namelist())
    except zipfile.BadZipFile:
        return False
