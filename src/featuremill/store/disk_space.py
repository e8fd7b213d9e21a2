"""A check for free disk space, before anything is computed.

Embeddings do not compress, so their shape gives their size. File systems report the free space, and
most of them ignore quotas.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from featuremill.base.environment import WITHOUT_ROOM
from featuremill.base.errors import UserError
from featuremill.base.words import human_bytes
from featuremill.store.formats import format_of, kind_of

MARGIN = 1.05
"""The factor for logs, receipts and reports."""
BYTES_A_ROW = 64
"""Bytes of a row of a part, or of the files in which merge sorts them, without its values."""
ADVICE = (
    "free some, ask for fewer outputs, or have the run on a larger disk (the config's key results)"
)
log = logging.getLogger("featuremill")


class Need(NamedTuple):
    """A file or folder that is going to be written."""

    what: str
    folder: Path
    """The folder that it is written to, which exists."""
    num_bytes: int
    num_files: int = 0
    """0 for a few."""


def stored_bytes(values: pa.Schema, num_rows: int, num_residues: int) -> int:
    """Return the bytes of parts with so many rows, or of the files in which merge sorts them."""
    return expected_bytes(values, num_rows, num_residues) + BYTES_A_ROW * num_rows


def needs_of_outputs(
    outputs: Iterable[str], values: pa.Schema, num_rows: int, num_residues: int, folder: Path
) -> list[Need]:
    needs = []
    for name in outputs:
        format = format_of(name)
        held = [field for field in values if format.kind in (None, kind_of(field.type))]
        size = int(expected_bytes(pa.schema(held), num_rows, num_residues) * format.times_as_large)
        files = format.files_a_record * num_rows
        needs.append(Need(format.file, folder, size + format.bytes_a_record * num_rows, files))
    return needs


def described(needs: Iterable[Need]) -> str:
    """Describe the needs: "store/ 2.0 GB, embeddings.parquet 1.1 GB"."""
    return ", ".join(f"{need.what} {human_bytes(need.num_bytes)}" for need in needs)


def check(needs: Sequence[Need], run: Path) -> None:
    """Raise UserError if a file system to which the run writes has too little free space; only warn
    if FEATUREMILL_WITHOUT_ROOM is 1."""
    by_file_system: dict[int, list[Need]] = {}
    for need in needs:
        by_file_system.setdefault(need.folder.stat().st_dev, []).append(need)
    problems = list(filter(None, map(_problem, by_file_system.values())))
    if not problems:
        return
    problem = f"{run}: {' and '.join(problems)}"
    if WITHOUT_ROOM.value():
        log.warning("%s; continuing, as %s=1 is set", problem, WITHOUT_ROOM)
        return
    raise UserError(
        f"{problem}; {ADVICE}; featuremill clean {run} lists what can go, and {WITHOUT_ROOM}=1 "
        "continues all the same, as for a file system that compresses."
    )


def _problem(needs: list[Need]) -> str:
    """Return why the file system of `needs` cannot hold them; "" if it can."""
    folder = needs[0].folder
    size, disk = sum(need.num_bytes for need in needs), shutil.disk_usage(folder)
    if disk.total and size * MARGIN > disk.free:  # some file systems in user space report 0
        return (
            f"it needs about {human_bytes(size)} more ({described(needs)}) and a twentieth to "
            f"spare, and the disk of {folder} has {human_bytes(disk.free)} free"
        )
    return ""


def expected_bytes(schema: pa.Schema, num_rows: int, total_length: int) -> int:
    """Return the bytes of the values: exact for fixed sizes; lists count an element a residue, and
    at most `most_a_row` of a field's metadata a row."""
    num_bytes = 0
    for field in schema:
        most = int((field.metadata or {}).get(b"most_a_row", total_length))
        length = min(total_length, most * num_rows or total_length)
        num_bytes += _bytes_of(field.type, num_rows, length)
    return num_bytes


def _bytes_of(kind: pa.DataType, count: int, total_length: int) -> int:
    if pa.types.is_fixed_size_list(kind):
        return _bytes_of(kind.value_type, count * kind.list_size, total_length * kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _bytes_of(kind.value_type, total_length, total_length)
    if pa.types.is_primitive(kind):
        return count * int(kind.bit_width) // 8
    return 0
