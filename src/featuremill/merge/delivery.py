"""Write the results: which files there are, when they get their names, and what went before."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.base.errors import IntegrityError
from featuremill.base.id_columns import ID, IdColumns
from featuremill.base.progress import Progress
from featuremill.merge.gather import in_order
from featuremill.store import disk_space, ours
from featuremill.store.delivery import Accounts, Written
from featuremill.store.files import remove_left
from featuremill.store.formats import errors_of, files, format_of, index_of, sidecar_of
from featuremill.store.receipt import Receipt
from featuremill.store.records import whole_ids
from featuremill.store.results import Results
from featuremill.workload.outputs import Target, Writer, open_part_writer, open_writer

log = logging.getLogger("featuremill.merge")


def clear(folder: Results, outputs: Sequence[str]) -> None:
    """Remove old results that would contradict the new ones, and files of a killed merge. Files
    that featuremill did not write, or that were changed since, stay."""
    for name, file in files().items():
        path = folder.root / file
        for beside in (sidecar_of(file), index_of(file)):
            ours.discard(path.with_name(beside))
        if name not in outputs and path.exists():
            ours.discard(path)
            if not path.exists():
                log.info("removed %s: the run's outputs do not name it", path)
        remove_left(path)
    ours.vacate(folder.delivery)
    ours.vacate(folder.exports)


class Source(Protocol):
    """The rows of a run's results, still to be written."""

    samples: dict[str, list[str]]
    rows_of_shard: npt.NDArray[np.int64]
    scratch: Path
    keys: frozenset[str]
    """The folders of `store.delivered_shards` that the results are made of."""

    @property
    def receipts(self) -> Sequence[Receipt | None]:
        """The receipt of each shard of the plan; None where it is pending."""

    def shard_numbers(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the index into the plan's shards of each row of records.parquet; -1 where it has
        none."""

    def account(self, table: Path, fasta: Path) -> Accounts:
        """Write `table` and `fasta` and return how many records are ok, failed, and so on."""

    def write(
        self, paths: Mapping[str, Path], provenance: dict[str, str], num_ok: int
    ) -> dict[str, Written]:
        """Write the outputs; return each one's size and sha256."""


class Rows(Protocol):
    """Finished rows, and what there is to know of them before they are read."""

    values: pa.Schema
    samples: dict[str, list[str]]
    id_columns: IdColumns
    scratch: Path
    num_threads: int
    num_rows: int
    """An upper bound of the number of rows."""
    beyond_bytes: int
    """The bytes of the values beyond those that their types imply."""

    @property
    def num_residues(self) -> int:
        """An upper bound of the number of residues with vectors."""

    def pieces(self) -> Iterator[pa.Table]:
        """Yield id, description, length, sha256 and values, block by block."""


def write(
    source: Rows, paths: Mapping[str, Path], provenance: dict[str, str], num_ok: int, run: Path
) -> dict[str, Written]:
    """Write the outputs of `run` in one pass over the blocks; return each one's size and sha256.

    Raises:
        UserError: when the disk cannot hold them; nothing is written then.
    """
    _check_room(source, paths, run)
    digests: dict[Path, dict[str, str]] = {}
    described: list[Written] = []
    with ExitStack() as temporary_files, ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(max(1, len(paths))))
        writers, temporaries = [], []
        for name, path in paths.items():
            delivering = (
                ours.delivering_folder(path, digests.__getitem__)
                if format_of(name).is_folder
                else ours.delivering(path, digest=lambda file: digests[file][""])
            )
            temporary = temporary_files.enter_context(delivering)
            temporaries.append(temporary)
            sheet = source.samples, source.id_columns
            target = Target(temporary, source.values, num_ok, provenance, *sheet)
            writers.append(stack.enter_context(opened(name, target)))
        num_written = 0
        shown = Progress(log, "writing")
        for block in source.pieces() if writers else ():
            num_written += block.num_rows
            column = block.schema.get_field_index(ID)
            named = block.set_column(column, ID, whole_ids(block))
            writing = [pool.submit(writer.write, named) for writer in writers]
            wait(writing)  # for all: none may still write when another's failure ends this
            for name, future in zip(paths, writing, strict=True):
                with errors_of(name, "write"):
                    future.result()
            shown.at(num_written, num_ok)
        if writers and num_written != num_ok:
            raise IntegrityError(f"merge: {num_written} rows written for {num_ok} ok records.")
        stack.close()
        each = in_order(ours.digests_at, temporaries, source.num_threads)
        digests.update(zip(temporaries, each, strict=True))
        described += [Written.of(path, digests[path]) for path in temporaries]
    for name, path in paths.items():
        if format_of(name).has_sidecar:
            columns = Target(path, source.values, num_ok, provenance).pooled()
            about = {**provenance, "columns": columns}
            ours.write_json(path.with_name(sidecar_of(path.name)), about)
    return {path.name: about for path, about in zip(paths.values(), described, strict=True)}


@contextmanager
def opened(name: str, target: Target, *, is_part: bool = False) -> Iterator[Writer]:
    """Yield the writer of the output called `name`, or that of one of its files, and close it; what
    it raises is attributed to its package."""
    with errors_of(name, "PartWriter" if is_part else "Writer"):
        writer = open_part_writer(name, target) if is_part else open_writer(name, target)
    try:
        yield writer
    finally:
        with errors_of(name, "close"):
            writer.close()


def _check_room(source: Rows, paths: Mapping[str, Path], run: Path) -> None:
    """Raise UserError if the disk cannot hold the outputs, before any is written."""
    if not paths:
        return
    about = (source.values, source.num_rows, source.num_residues)
    (folder,) = {path.parent for path in paths.values()}
    shuffled = disk_space.Need("temporary files", source.scratch, disk_space.stored_bytes(*about))
    needs = [*disk_space.needs_of_outputs(paths, *about, folder), shuffled]
    if beyond := source.beyond_bytes:  # once in each file that holds such values, at most
        for folder_of_values in (*(folder for _ in paths), source.scratch):
            needs.append(disk_space.Need("values of varying size", folder_of_values, beyond))
    disk_space.check(needs, run)


def copy(path: Path, to: Path) -> None:
    """Copy the file `path`, so that `to` is the old one or the whole new one."""
    with ours.delivering(to) as temporary:
        shutil.copyfile(path, temporary)
