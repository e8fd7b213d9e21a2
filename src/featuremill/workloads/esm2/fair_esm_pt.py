"""The output fair-esm-pt/: a `.pt` per protein, in the layout of fair-esm's scripts/extract.py.

A file is named by the whole header; a "/" in it makes folders, as in extract.py. It has a dict:
`label` and, by layer, `mean_representations` and `bos_representations` of shape (width,) and
`representations` of shape (length, width), in the number types of the run. provenance.json in the
folder has the provenance.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from featuremill.kit.errors import UserError
from featuremill.kit.processes import SNAKEFILE
from featuremill.workload.outputs import Format, Target, by_owner, own_ids, refuse_outputs

if TYPE_CHECKING:
    import pyarrow as pa

COLUMN = re.compile(r"(mean|bos|residues)_layer_([0-9]+)")
FORMAT = Format(
    "fair-esm-pt",
    "scripts for fair-esm's `extract.py`",
    4096,
    columns=COLUMN,
    columns_like="mean_layer_6",
    most_records=100_000,
    why_not_more="a file a record is slow to write, to list and to copy, and many clusters limit "
    "their number; parquet_dataset is the output for so many.",
    is_folder=True,
    holds=("**/*.pt",),
    files_a_record=1,
    environment=Path(SNAKEFILE).parent / "envs" / "esm2.yaml",
)
KEYS = {
    "mean": "mean_representations",
    "bos": "bos_representations",
    "residues": "representations",
}
UNUSABLE = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EILSEQ)
"""Errors of a file system for a name that is invalid or exists already."""
SHORTENED = 60
"""Number of characters of a header in a shortened name."""
NOT_PLAIN = re.compile(r"[^\w .=|-]")


def columns_of(values: pa.Schema) -> dict[str, tuple[str, int]]:
    """Return, for each column of `values`, extract.py's key and the layer.

    Raises:
        UserError: if extract.py has no key for a column.
    """
    refuse_outputs(["fair_esm_pt"], values)
    matches = {name: COLUMN.fullmatch(name) for name in values.names}
    return {name: (KEYS[match[1]], int(match[2])) for name, match in matches.items() if match}


class Writer:
    """Writes one file for each record."""

    def __init__(self, target: Target) -> None:
        self._columns = columns_of(target.values)
        try:
            import torch
        except ImportError:
            raise UserError(
                "outputs: fair_esm_pt needs PyTorch; pip install 'featuremill[esm2]', or drop it."
            ) from None
        self._torch = torch
        self._folder = target.path
        text = json.dumps(target.provenance, indent=2, ensure_ascii=False) + "\n"
        (self._folder / "provenance.json").write_text(text, "utf-8")

    def write(self, block: pa.Table) -> None:
        """Write a file for each record of the block, in the folder of its sample, if it has one."""
        for keys, rows in by_owner(block):
            self._write(rows, self._folder.joinpath(*keys.values()))

    def _write(self, block: pa.Table, folder: Path) -> None:
        from featuremill.kit.arrays import matrices

        values = [matrices(block[name]) for name in self._columns]
        texts = (column.to_pylist() for column in (own_ids(block), block["description"]))
        for id, description, *rows in zip(*texts, *values, strict=True):
            label = f"{id} {description}" if description else id
            result: dict[str, Any] = {"label": label}
            for (key, layer), row in zip(self._columns.values(), rows, strict=True):
                result.setdefault(key, {})[layer] = self._torch.from_numpy(row.copy())
            content = BytesIO()  # PyTorch's own error for a full disk has no errno
            self._torch.save(result, content)
            with _new_file(folder, id, label) as file:
                file.write(content.getbuffer())

    def close(self) -> None:
        """Do nothing: every file is closed."""


def _new_file(folder: Path, id: str, label: str) -> BinaryIO:
    """Open a new file in `folder` named by `label`, or by a digest of `id` if that is impossible.

    It is impossible if the label leads out of the folder, has control characters, is too long for
    the file system, or exists already (also in other case, if the file system ignores case).
    """
    parts = label.split("/")
    if label.isprintable() and not {"", ".", ".."} & set(parts):
        path = folder / f"{label}.pt"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("xb")
        except OSError as error:
            if error.errno not in UNUSABLE:
                raise
    digest = hashlib.sha256(id.encode()).hexdigest()[:32]
    return (folder / f"{NOT_PLAIN.sub('_', label)[:SHORTENED]}-{digest}.pt").open("xb")
