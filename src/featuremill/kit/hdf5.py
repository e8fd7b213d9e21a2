"""HDF5 of others, if all its data are in the file; and as UniProt lays its embeddings out: one
dataset a record, named by its accession.

`original_id` keeps the id as it was, and the file's own attributes say how it was made.

HDF5 goes on in silence after a write that failed, and ends the process with SIGSEGV when the file
is closed. So disk space is taken before it writes: where the disk is full, that is an error like
others.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from featuremill.base.errors import UserError
from featuremill.base.text import one_line
from featuremill.base.this_process import take_space
from featuremill.kit.ids import accessions
from featuremill.workload.outputs import Target

__all__ = ["TEXT", "DatasetFile", "ReservedFile", "open_whole", "refuse_elsewhere"]
TEXT = h5py.string_dtype()
BYTES_A_FILE = 2**17
"""The bytes of a file's own structures, at least, without the texts of attributes."""
BYTES_A_DATASET = 1024
"""The bytes of a dataset, at least, without its values and its id."""
COPIES_OF_ID = 4
END_OF_FILE = slice(28, 36)
"""The offset of the file's size in a superblock of version 3 (HDF5 specification, II.A)."""
STEP_BYTES = 2**22
"""Taken at once where there is so much room."""
NO_SUCH_CALL = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""The errors of file systems that cannot preallocate space."""


def open_whole(path: Path) -> h5py.File:
    """Open an HDF5 file of others for reading.

    A link or the storage of a dataset can name any other file, whose bytes would pass for values.

    Raises:
        OSError: HDF5 cannot read the file.
        UserError: some data are in another file, or a link leads nowhere.
    """
    file = h5py.File(path, "r")
    links: list[bytes] = []

    def elsewhere(name: bytes, about: Any) -> bytes | None:
        if about.type == h5py.h5l.TYPE_SOFT:
            links.append(name)
        elif about.type != h5py.h5l.TYPE_HARD or _is_elsewhere(h5py.h5o.open(file.id, name)):
            return name
        return None

    try:
        if name := file.id.links.visit(elsewhere, info=True):
            raise _elsewhere(path, name)
        for name in links:  # now no link leads out of the file
            if not h5py.h5o.exists_by_name(file.id, name):
                raise UserError(f"{path}: the link {_shown(name)} leads nowhere; remove it.")
    except BaseException:
        file.close()
        raise
    return file


def refuse_elsewhere(path: Path, dataset: h5py.Dataset) -> h5py.Dataset:
    """Return a dataset of `path` to which a reference and maybe no link leads.

    Raises:
        UserError: its data are in another file.
    """
    if _is_elsewhere(dataset.id):
        raise _elsewhere(path, (dataset.name or "a dataset").encode())
    return dataset


def _is_elsewhere(object: Any) -> bool:
    if not isinstance(object, h5py.h5d.DatasetID):
        return False
    layout = object.get_create_plist()
    return bool(layout.get_external_count()) or layout.get_layout() == h5py.h5d.VIRTUAL


def _elsewhere(path: Path, name: bytes) -> UserError:
    return UserError(
        f"{path}: the data of {_shown(name)} are in another file (an external link, external "
        "storage or a virtual dataset), which is not read; write all data into one file."
    )


def _shown(name: bytes) -> str:
    return one_line(name.decode("utf-8", "backslashreplace"))


def dataset_name(id: str) -> str:
    """Return `id` (or an accession) as an HDF5 name: "/" would make a group, so it is written %2F
    (and % as %25)."""
    name = id.replace("%", "%25").replace("/", "%2F")
    return "%2E" if name == "." else name


class ReservedFile:
    """A new HDF5 file, for whose growth disk space is taken first."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        """Make it, with room for `num_bytes` beside what a file needs in any case."""
        self._path = path
        self._needed = self._taken = 0
        self.need(BYTES_A_FILE + num_bytes)
        # Nobody else knows this file yet, and HDF5's lock fails where a file system has none.
        self.root = h5py.File(path, "w", libver="latest", locking=False)
        self._needed = self._taken = 0  # that emptied it
        self.need(BYTES_A_FILE + num_bytes)

    def need(self, num_bytes: int) -> None:
        """Make sure that so many bytes more can be written.

        Raises:
            OSError: when the disk is full, or a quota is used up.
        """
        self._needed += num_bytes
        if self._needed > self._taken and not self._take(self._needed + STEP_BYTES):
            self._take(self._needed, is_last_try=True)

    def _take(self, end: int, is_last_try: bool = False) -> bool:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            take_space(descriptor, self._taken, end - self._taken)
        except OSError as error:
            if error.errno not in NO_SUCH_CALL:
                if is_last_try:
                    raise OSError(error.errno, error.strerror, str(self._path)) from None
                return False
        finally:
            os.close(descriptor)
        self._taken = end
        return True

    def close(self) -> None:
        """Close the file, and give back the space that was taken and not used."""
        self.root.close()
        with self._path.open("rb+") as handle:
            superblock = handle.read(END_OF_FILE.stop)
            handle.truncate(int.from_bytes(superblock[END_OF_FILE], "little"))


class DatasetFile:
    """A new file with the provenance and the columns' names as attributes of its root."""

    def __init__(self, target: Target, columns: list[str]) -> None:
        self._file = ReservedFile(target.path, 2 * sum(map(len, target.provenance.values())))
        self._group = self._file.root
        for key, value in target.provenance.items():
            self._file.root.attrs[key] = value
        self._file.root.attrs["columns"] = ",".join(columns)
        self._creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        self._creation.set_obj_track_times(False)  # or two files of one content would differ
        self._text = h5py.h5t.py_create(TEXT, logical=True)
        self._scalar = h5py.h5s.create(h5py.h5s.SCALAR)
        self._spaces: dict[tuple[int, ...], Any] = {}

    def add(
        self, ids: pa.ChunkedArray, values: Iterable[npt.NDArray[Any]], group: Sequence[str] = ()
    ) -> None:
        """Add the datasets of records, each named by the accession in its id, to the group of
        these names, one inside the other.

        Where an earlier record has that accession too, the name is the whole id.

        Raises:
            OSError: when the disk is full.
        """
        self._file.need(BYTES_A_DATASET * len(group))
        self._group = self._file.root.require_group("/".join(group)) if group else self._file.root
        names = accessions(ids).to_pylist()
        for id, accession, array in zip(ids.to_pylist(), names, values, strict=True):
            self._add(id, self._name_of(id, accession), array)

    def _name_of(self, id: str, accession: str) -> bytes:
        for name in (dataset_name(accession), dataset_name(id)):
            if name.encode() not in self._group.id:
                return name.encode()
        return f"{dataset_name(id)}%".encode()  # no other name ends like this

    def _add(self, id: str, name: bytes, values: npt.NDArray[Any]) -> None:
        size = BYTES_A_DATASET + COPIES_OF_ID * (len(name) + len(id.encode())) + values.nbytes
        self._file.need(size)
        # By h5py's lower interface, which takes less than half the time of the other.
        if values.shape not in self._spaces:
            self._spaces[values.shape] = h5py.h5s.create_simple(values.shape)
        kind = h5py.h5t.py_create(values.dtype, logical=True)
        space = self._spaces[values.shape]
        dataset = h5py.h5d.create(self._group.id, name, kind, space, self._creation)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(values))
        attribute = h5py.h5a.create(dataset, b"original_id", self._text, self._scalar)
        attribute.write(np.array(id, TEXT))

    def close(self) -> None:
        self._file.close()
