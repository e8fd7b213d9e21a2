"""HDF5 as UniProt lays its embeddings out: one dataset a record, named by its id.

`original_id` keeps the id as it was, and the file's own attributes say how it was made.
"""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from featuremill.outputs import Target
from featuremill.outputs.reserve import Reserve

TEXT = h5py.string_dtype()
BYTES_A_FILE = 2**17
"""At least what the file's own structures take, without the attributes' texts."""
BYTES_A_DATASET = 1024
"""At least what a dataset takes in all, without its values and its id."""
COPIES_OF_ID = 4
END_OF_FILE = slice(28, 36)
"""Where a superblock of version 3 has the file's size (HDF5's file format specification, II.A)."""


def dataset_name(id: str) -> str:
    """Return `id` as an HDF5 name: "/" would make a group, so it is written %2F (and % as %25)."""
    name = id.replace("%", "%25").replace("/", "%2F")
    return "%2E" if name == "." else name


class DatasetFile:
    """A new file with the provenance and the columns' names as attributes of its root."""

    def __init__(self, target: Target, columns: list[str]) -> None:
        self._path = target.path
        self._reserve = Reserve(target.path)
        self._reserve.need(BYTES_A_FILE + 2 * sum(map(len, target.provenance.values())))
        # Nobody else knows this file yet, and HDF5's lock fails where a file system has none.
        self._file = h5py.File(target.path, "w", libver="latest", locking=False)
        self._reserve.forget()
        for key, value in target.provenance.items():
            self._file.attrs[key] = value
        self._file.attrs["columns"] = ",".join(columns)
        self._creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        self._creation.set_obj_track_times(False)  # or two files of one content would differ
        self._text = h5py.h5t.py_create(TEXT, logical=True)
        self._scalar = h5py.h5s.create(h5py.h5s.SCALAR)
        self._spaces: dict[tuple[int, ...], Any] = {}

    def add(self, id: str, values: npt.NDArray[Any]) -> None:
        """Add the dataset of one record.

        Raises:
            OSError: when the disk is full.
        """
        name = dataset_name(id).encode()
        self._reserve.need(BYTES_A_DATASET + COPIES_OF_ID * len(name) + values.nbytes)
        # By h5py's lower interface, which takes less than half the time of the other.
        if values.shape not in self._spaces:
            self._spaces[values.shape] = h5py.h5s.create_simple(values.shape)
        kind = h5py.h5t.py_create(values.dtype, logical=True)
        dataset = h5py.h5d.create(
            self._file.id,
            name,
            kind,
            self._spaces[values.shape],
            self._creation,
        )
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(values))
        attribute = h5py.h5a.create(dataset, b"original_id", self._text, self._scalar)
        attribute.write(np.array(id, TEXT))

    def close(self) -> None:
        """Close the file, and give back the space that was taken and not used."""
        self._file.close()
        with self._path.open("rb+") as handle:
            superblock = handle.read(END_OF_FILE.stop)
            handle.truncate(int.from_bytes(superblock[END_OF_FILE], "little"))
