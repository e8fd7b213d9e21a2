"""Write the results: which files there are, when they get their names, and what went before."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from featuremill.errors import IntegrityError
from featuremill.merge.gather import Gatherer
from featuremill.merge.parallel import in_order
from featuremill.outputs import (
    FAILED,
    FILES,
    FOLDERS,
    Target,
    bytes_of,
    digest_of_result,
    file_name,
    open_writer,
)
from featuremill.progress import Progress
from featuremill.sizes import human_bytes
from featuremill.store import RunFolder, replacing, sync

log = logging.getLogger("featuremill.merge")


def clear(folder: RunFolder, outputs: Sequence[str], is_partial: bool) -> None:
    """Remove what would contradict the new results: old ones, and halves of a killed merge."""
    (folder.root / file_name("manifest.json", is_partial)).unlink(missing_ok=True)
    for name, file in FILES.items():
        path = folder.root / file_name(file, is_partial)
        if name not in outputs:
            _remove(path)
        for half in folder.root.glob(f".{path.name}.*"):
            _remove(half)


def clear_partial(folder: RunFolder) -> None:
    """Remove the partial results, as there are whole ones now."""
    clear(folder, [], is_partial=True)
    for name in (*FAILED, "report.html"):
        (folder.root / file_name(name, is_partial=True)).unlink(missing_ok=True)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write(
    gatherer: Gatherer, paths: dict[str, Path], provenance: dict[str, str], num_ok: int
) -> dict[str, Any]:
    """Write the outputs in one pass over the blocks; return each one's size and sha256."""
    _look_for_room(gatherer, len(paths))
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(max(1, len(paths))))
        writers = []
        for name, path in paths.items():
            temporary = stack.enter_context(_replacing(name, path))
            writer = open_writer(name, Target(temporary, gatherer.values, num_ok, provenance))
            stack.callback(writer.close)
            writers.append(writer)
        num_written = 0
        shown = Progress(log, "writing")
        for block in gatherer.pieces() if writers else ():
            num_written += block.num_rows
            list(pool.map(lambda writer, block=block: writer.write(block), writers))
            shown.at(num_written, num_ok)
        if writers and num_written != num_ok:
            raise IntegrityError(f"merge: {num_written} rows written for {num_ok} ok records.")
    described = in_order(describe, paths.values(), gatherer.num_threads)
    return {path.name: about for path, about in zip(paths.values(), described, strict=True)}


def _look_for_room(gatherer: Gatherer, num_outputs: int) -> None:
    """Warn when the disk may be full before the end, which can be hours away."""
    size, free = gatherer.num_bytes, shutil.disk_usage(gatherer.folder).free
    if num_outputs and (1 + num_outputs) * size > free:
        log.warning(
            "%s: merging needs about %s, of which %s are free again at its end; there are only %s.",
            gatherer.folder,
            human_bytes((1 + num_outputs) * size),
            human_bytes(size),
            human_bytes(free),
        )


def describe(path: Path) -> dict[str, Any]:
    """Return what manifest.json says of a result."""
    return {"bytes": bytes_of(path), "sha256": digest_of_result(path)}


def _replacing(name: str, path: Path) -> AbstractContextManager[Path]:
    return _replacing_folder(path) if name in FOLDERS else replacing(path)


@contextmanager
def _replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` when the block ends well."""
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        inside = temporary / path.name  # made by us, so with everybody's permissions
        inside.mkdir()
        yield inside
        for file in [*inside.iterdir(), inside]:
            sync(file)
        _remove(path)
        inside.replace(path)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary)


def copy(path: Path, to: Path) -> None:
    """Copy the file `path`, so that `to` is the old one or the whole new one."""
    with replacing(to) as temporary:
        shutil.copyfile(path, temporary)
