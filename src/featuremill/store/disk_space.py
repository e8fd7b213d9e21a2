"""Whether the disk can hold what a run is going to write: said, or refused, before it is computed.

Embeddings don't compress, so what they take is known from their shape. Free space is what the
file system says: of a quota it mostly knows nothing.
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
"""Share of the estimate that has to be free: logs, receipts and reports come to it too."""
BYTES_A_ROW = 64
"""What a row of a part, or of merge's shuffle, takes beside its values."""
ADVICE = (
    "free some, ask for fewer outputs, or move the run to a larger disk (results/ may be a link)"
)
log = logging.getLogger("featuremill")


class Need(NamedTuple):
    """Something that is going to be written."""

    what: str
    folder: Path
    """Where; it exists."""
    num_bytes: int
    num_files: int = 0
    """Where there are many."""


def stored_bytes(values: pa.Schema, num_rows: int, num_residues: int) -> int:
    """Return what parts with so many rows take, and merge's shuffle of them."""
    return expected_bytes(values, num_rows, num_residues) + BYTES_A_ROW * num_rows


def needs_of_outputs(
    outputs: Iterable[str], values: pa.Schema, num_rows: int, num_residues: int, folder: Path
) -> list[Need]:
    """Return what each of the results in `folder` takes, about."""
    needs = []
    for name in outputs:
        format = format_of(name)
        held = [field for field in values if format.kind in (None, kind_of(field.type))]
        size = expected_bytes(pa.schema(held), num_rows, num_residues)
        size = int(size * format.times_as_large)
        files = format.files_a_record * num_rows
        needs.append(Need(format.file, folder, size + format.bytes_a_record * num_rows, files))
    return needs


def described(needs: Iterable[Need]) -> str:
    """Return the needs in words: "store/ 2.0 GB, embeddings.parquet 1.1 GB"."""
    return ", ".join(f"{need.what} {human_bytes(need.num_bytes)}" for need in needs)


def check(needs: Sequence[Need], run: Path) -> None:
    """Refuse to go on when a file system that is written to has too little room.

    Raises:
        UserError: says what is needed, what is free and what to do; a warning in its place when
            the user set `FEATUREMILL_WITHOUT_ROOM=1`.
    """
    problems = [found for group in _by_file_system(needs) if (found := _problem(group))]
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


def _by_file_system(needs: Sequence[Need]) -> list[list[Need]]:
    groups: dict[int, list[Need]] = {}
    for need in needs:
        groups.setdefault(need.folder.stat().st_dev, []).append(need)
    return list(groups.values())


def _problem(needs: list[Need]) -> str:
    """Return what the file system of `needs` cannot hold, or nothing."""
    folder = needs[0].folder
    size, disk = sum(need.num_bytes for need in needs), shutil.disk_usage(folder)
    if disk.total and size * MARGIN > disk.free:  # some in user space say nothing: all is 0
        return (
            f"it needs about {human_bytes(size)} more ({described(needs)}) and a twentieth to "
            f"spare, and the disk of {folder} has {human_bytes(disk.free)} free"
        )
    return ""


def expected_bytes(schema: pa.Schema, num_rows: int, total_length: int) -> int:
    """Return the bytes of the values: exact for fixed sizes, an element a residue in lists."""
    return sum(_bytes_of(field.type, num_rows, total_length) for field in schema)


def _bytes_of(kind: pa.DataType, count: int, total_length: int) -> int:
    if pa.types.is_fixed_size_list(kind):
        return _bytes_of(kind.value_type, count * kind.list_size, total_length * kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _bytes_of(kind.value_type, total_length, total_length)
    if pa.types.is_primitive(kind):
        return count * int(kind.bit_width) // 8
    return 0
