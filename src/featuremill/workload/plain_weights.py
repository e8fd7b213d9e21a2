"""Weights that are used without conversion: a file or a folder. Describe them, refuse pickles.

Code in a folder is never imported. Pickles, which run code when they are loaded, are refused unless
the workload has READS_PICKLES.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import io
import itertools
import lzma
import pickletools
import re
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

from featuremill.base.errors import UserError
from featuremill.store.files import digest_of_folder, files_below, sha256_of
from featuremill.store.weights_file import CheckpointFile, FileOfWeights, WeightsFile
from featuremill.workload.hugging_face import how_to_get, place_of

PICKLES = (".pkl", ".pickle", ".joblib")
PICKLE_START = re.compile(rb"\x80[\x02-\x08]")
"""The first bytes of a pickle of protocol 2 or newer, and of PyTorch's files before 1.6."""
CALLS = ("REDUCE", "OBJ", "INST", "NEWOBJ", "NEWOBJ_EX", "BUILD")
"""Opcodes of a pickle that run code, by their names in pickletools."""
SIZES = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
"""Bytes of the length field of an argument of variable length."""
OPCODES = {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes}
MOST_LAYERS = 8
"""Nested archives and compressions that are opened to find a pickle."""
ENOUGH_OPCODES = 100_000
"""Valid opcodes in a row after which a file counts as a pickle."""
BLOCK_BYTES = 2**20
UNPACKERS: dict[bytes, Any] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
    b"]\0\0": lzma.open,
}
"""Functions that decompress a file, by its first bytes. joblib uses these and zlib."""


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
    """Hash the file or folder at `path`; return the content of weights/<name>.json.

    Raises:
        UserError: if it is missing, cannot be read, or has a pickle and the workload does not read
            pickles safely.
    """
    refuse_missing(path)
    at = place_of(path).absolute()
    own_name = at.name if Path(path).expanduser().exists() else Path(path).name
    names = files_below(at) if at.is_dir() else [""]
    files = []
    try:
        for name in names:
            file = at / name
            if not reads_pickles:
                _refuse_pickle(file)
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


def _refuse_pickle(file: Path) -> None:
    with file.open("rb") as stream:
        pickle = _pickle_in(stream, file.name)
    if pickle is not None:
        raise UserError(
            f"{file}: this is a pickle{pickle and f' ({pickle})'}, which can run any code when it "
            "is loaded; save the weights as safetensors, or use a workload that declares that it "
            "reads pickles safely."
        )


def _pickle_in(stream: IO[bytes], name: str, layer: int = 0) -> str | None:
    """Return a description of the pickle in `stream`, found by name or content: "" for a plain
    pickle, None if there is none. `layer` is the number of archives around it."""
    if any(suffix in PICKLES for suffix in map(str.lower, Path(name).suffixes)):
        return ""
    if layer == MOST_LAYERS:
        return "or may be one: it is in too many archives"
    start = stream.read(16)
    stream.seek(0)
    try:
        if start.startswith(b"PK"):
            return _pickle_in_zip(stream, layer)
        if start.startswith(b"\x93NUMPY"):
            return "an array of Python objects" if _is_of_objects(stream) else None
        if unpack := next((UNPACKERS[head] for head in UNPACKERS if start.startswith(head)), None):
            pickle = _pickle_in(unpack(stream), "", layer + 1)
            return pickle if pickle is None else pickle or "compressed"
        if start[:1] == b"\x78" and int.from_bytes(start[:2]) % 31 == 0:  # the header of zlib
            unpacked = zlib.decompressobj().decompress(stream.read(BLOCK_BYTES), BLOCK_BYTES)
            return "compressed" if _is_pickle(io.BytesIO(unpacked)) else None
        if (pickle := _pickle_in_tar(stream, layer)) is not None:
            return pickle
        stream.seek(0)
        return "" if _is_pickle(stream) else None
    except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, gzip.BadGzipFile):
        return None


def _pickle_in_zip(stream: IO[bytes], layer: int) -> str | None:
    with zipfile.ZipFile(stream) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                if (pickle := _pickle_in(member, name, layer + 1)) is not None:
                    return ", ".join(filter(None, (f"in {name!r}", pickle)))
    return None


def _pickle_in_tar(stream: IO[bytes], layer: int) -> str | None:
    """Return a description of a pickle in a tar, as by PyTorch before 0.1.10, or None."""
    with contextlib.suppress(tarfile.TarError), tarfile.open(fileobj=stream, mode="r:") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file and (pickle := _pickle_in(file, member.name, layer + 1)) is not None:
                return ", ".join(filter(None, (f"in {member.name!r}", pickle)))
    return None


def _is_of_objects(stream: IO[bytes]) -> bool:
    import numpy as np  # here: few commands need it

    try:
        version = np.lib.format.read_magic(stream)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        return bool(read(stream)[2].hasobject)
    except ValueError:
        return False


def _is_pickle(stream: IO[bytes]) -> bool:
    """Return whether `stream` is a pickle, from its opcodes; no object is built.

    Protocols 0 and 1 have no magic bytes, so the effect of each opcode on the stack is checked.
    """
    if PICKLE_START.match(stream.read(2)):
        return True
    stream.seek(0)
    stack: list[Any] = []
    for count in itertools.count():
        opcode = OPCODES.get(stream.read(1))
        if opcode is None or not _is_skipped(stream, opcode):
            return False
        before = opcode.stack_before
        if pickletools.markobject in before:
            if pickletools.markobject not in stack:
                return False
            while stack.pop() is not pickletools.markobject:
                pass
            before = before[: before.index(pickletools.markobject)]
        if len(stack) < len(before):
            return False
        del stack[len(stack) - len(before) :]
        stack += opcode.stack_after
        if opcode.name in CALLS or count == ENOUGH_OPCODES:
            return True
        if opcode.name == "STOP":
            return not stack
    raise AssertionError("count has no end")


def _is_skipped(stream: IO[bytes], opcode: pickletools.OpcodeInfo) -> bool:
    """Skip the argument of `opcode`; return whether it is complete, as far as it is read."""
    if opcode.arg is None:
        return True
    size = opcode.arg.n
    if size == pickletools.UP_TO_NEWLINE:
        for _ in range(2 if opcode.name in ("GLOBAL", "INST") else 1):
            while not (line := stream.readline(BLOCK_BYTES)).endswith(b"\n"):
                if not line:
                    return False
        return True
    if size >= 0:
        return len(stream.read(size)) == size
    length = int.from_bytes(stream.read(SIZES[size]), "little")
    if length > 2**40:  # file systems refuse to seek so far
        return False
    stream.seek(length, io.SEEK_CUR)  # after the end, the next read is empty
    return True
