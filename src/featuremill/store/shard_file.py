"""A shard's file: an immutable Arrow table of (sha256, payload), sorted by sha256."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.base.arrays import Digests, digests
from featuremill.base.errors import IntegrityError
from featuremill.store.files import digest_of, replacing
from featuremill.store.results import Results

SHARD = pa.schema({"sha256": pa.binary(32), "payload": pa.large_binary()})


def read_shard(path: Path) -> pa.Table:
    """Return the shard's table, memory-mapped.

    Raises:
        pa.ArrowInvalid: when its bytes are no shard.
    """
    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
    except OSError as error:
        if error.errno:
            raise
        raise pa.ArrowInvalid(str(error)) from None  # of damaged metadata, without errno
    if not table.schema.equals(SHARD):
        raise pa.ArrowInvalid(f"{path}: its columns are not those of a shard")
    table.validate(full=True)  # wrong offsets would crash a reader
    return table


def write_shard(folder: Results, table: pa.Table) -> str:
    """Write the shard of `table`, whose rows are in the order of sha256; return its name."""
    name = digest_of([digests(table["sha256"]).tobytes()])
    with replacing(folder.shard(name)) as temporary, pa.ipc.new_file(str(temporary), SHARD) as file:
        file.write_table(table)
    return name


def read_verified(path: Path) -> pa.Table:
    """Return the shard's table after a check of its name, digests and payloads.

    Raises:
        IntegrityError: when they do not agree; the file is then set aside.
    """
    try:
        table = read_shard(path)
        sha256 = table["sha256"].to_pylist()
        right = digest_of(sha256) == path.stem and all(
            hashlib.sha256(payload.as_py()).digest() == digest
            for payload, digest in zip(table["payload"], sha256, strict=True)
        )
    except pa.ArrowInvalid:
        right = False
    if not right:
        path.replace(path.with_suffix(".bad"))
        raise IntegrityError(
            f"{path}: its bytes are not those that were written; delete the run's plan.json "
            "and run the same command again to have it written anew."
        )
    return table


def beginnings(sha256: Digests) -> npt.NDArray[np.uint64]:
    """Return the first eight bytes of each digest, as a number of the same order."""
    return np.ascontiguousarray(sha256).view(">u8")[::4].astype(np.uint64)
