"""HDF5 whose values are in another file, each way that HDF5 has, as h5py writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

SECRET = b"SECRETSECRETSECR"


def external_storage(file: h5py.File, name: str, folder: Path) -> None:
    (folder / "secret.bin").write_bytes(SECRET)
    of = [(str(folder / "secret.bin"), 0, len(SECRET))]
    file.create_dataset(name, shape=(8,), dtype="f2", external=of)


def _other(folder: Path) -> Path:
    path = folder / "secret.h5"
    with h5py.File(path, "w") as file:
        file["group/values"] = np.frombuffer(SECRET, "f2")
    return path


def external_link(file: h5py.File, name: str, folder: Path) -> None:
    file[name] = h5py.ExternalLink(_other(folder), "/group/values")


def soft_link_out(file: h5py.File, name: str, folder: Path) -> None:
    file["zz"] = h5py.ExternalLink(_other(folder), "/group")
    file[name] = h5py.SoftLink("/zz/values")


def virtual_dataset(file: h5py.File, name: str, folder: Path) -> None:
    layout = h5py.VirtualLayout(shape=(8,), dtype="f2")
    layout[:] = h5py.VirtualSource(_other(folder), "group/values", shape=(8,))
    file.create_virtual_dataset(name, layout)


ELSEWHERE: list[Callable[[h5py.File, str, Path], None]] = [
    external_storage,
    external_link,
    soft_link_out,
    virtual_dataset,
]
