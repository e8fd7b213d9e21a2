"""Write embeddings.h5ad: the pooled vectors as an AnnData object, for scanpy.

X is the first pooled column, shape (records, width); other pooled columns are in obsm. obs is
indexed by id and has accession, description, length and sha256. In a run with samples, the index is
`<sample>/<id>`, and obs also has id, sample and the other columns of the sheet. var has the names
of the numbers of X, and uns["featuremill"] the provenance. The file is written with h5py by
anndata's specification ("On-disk format", AnnData 0.1.0, dataframe 0.2.0), so no run needs anndata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featuremill.kit.ids import KEYS
from featuremill.outputs.parquet import hexadecimal
from featuremill.workload.outputs import Format, Target, need, own_ids, owners

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = Format(
    "embeddings.h5ad", "anndata, scanpy", 400, "pooled", also_called=("anndata", "scanpy")
)
BYTES_A_TEXT = 64
"""The largest overhead of a text in HDF5: a reference and a heap entry."""
VERSIONS = {
    "anndata": "0.1.0",
    "array": "0.2.0",
    "dataframe": "0.2.0",
    "dict": "0.1.0",
    "string": "0.2.0",
    "string-array": "0.2.0",
}
"""The encoding type and version of each element."""


class Writer:
    """Creates all datasets in their full size, then fills them."""

    def __init__(self, target: Target) -> None:
        from featuremill.kit.hdf5 import TEXT, ReservedFile

        first, *others = need(target.pooled(), "h5ad", "a pooled value")
        kinds = {name: target.values.field(name).type for name in (first, *others)}
        width = kinds[first].list_size
        row = sum(kind.list_size * kind.value_type.bit_width // 8 for kind in kinds.values())
        texts = sum(map(len, target.provenance.values())) + (len(first) + 8) * width
        self._file = ReservedFile(target.path, 2 * texts + BYTES_A_TEXT * (width + 100))
        num_texts = len(target.about) + 1 + len(target.samples)
        self._file.need(target.num_rows * (row + BYTES_A_TEXT * num_texts))
        root = _mark(self._file.root, "anndata")
        self._matrices = {
            name: _array(root if name == first else root.require_group("obsm"), key, shape, dtype)
            for name, kind in kinds.items()
            for key in ["X" if name == first else name]
            for shape in [(target.num_rows, kind.list_size)]
            for dtype in [kind.value_type.to_pandas_dtype()]
        }
        _mark(root.require_group("obsm"), "dict")
        own = [name for name in target.samples if name not in target.id_columns.keys]
        whole_id = ["name"] if target.id_columns.keys else []
        index, *columns = (*whole_id, *target.about, *own)
        obs = _frame(root, "obs", index, columns)
        self._about = {
            name: _array(obs, name, (target.num_rows,), "i8" if name == "length" else TEXT)
            for name in (index, *columns)
        }
        self._samples, self._own = target.samples, own
        var = _frame(root, "var", "feature", [])
        _array(var, "feature", (width,), TEXT)[:] = [f"{first}_{n}" for n in range(width)]
        uns = _mark(root.create_group("uns"), "dict")
        about = _mark(uns.create_group("featuremill"), "dict")
        for key, value in {**target.provenance, "X": first}.items():
            text = about.create_dataset(key, (), TEXT, data=value, track_times=False)
            _mark(text, "string")
        self._num_rows = 0

    def write(self, block: pa.Table) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        from featuremill.kit.arrays import matrix
        from featuremill.kit.ids import accessions

        rows = slice(self._num_rows, self._num_rows + block.num_rows)
        self._num_rows = rows.stop
        ids = own_ids(block)
        columns = {
            "id": ids,
            "description": block["description"],
            "length": block["length"],
            "accession": accessions(ids),
            "sha256": hexadecimal(block["sha256"]),
            "name": block["id"],
            **{key: block[key] for key in KEYS},
        }
        columns = {name: column for name, column in columns.items() if name in self._about}
        if self._own:
            known = pa.table([self._samples[key] for key in KEYS], names=list(KEYS))
            number = pc.index_in(owners(block), value_set=owners(known))
            columns |= {name: pa.array(self._samples[name]).take(number) for name in self._own}
        texts = sum(column.nbytes for column in columns.values())
        self._file.need(2 * texts + BYTES_A_TEXT * len(columns) * block.num_rows)
        for name, column in columns.items():
            self._about[name][rows] = column.to_numpy(zero_copy_only=False)
        for name, dataset in self._matrices.items():
            dataset[rows] = matrix(block[name])

    def close(self) -> None:
        self._file.close()


def _mark(element: Any, kind: str) -> Any:
    element.attrs["encoding-type"] = kind
    element.attrs["encoding-version"] = VERSIONS[kind]
    return element


def _array(group: Any, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    dataset = group.create_dataset(name, shape, dtype, track_times=False)
    is_text = dataset.dtype.kind == "O"
    return _mark(dataset, "string-array" if is_text else "array")


def _frame(root: Any, name: str, index: str, columns: list[str]) -> Any:
    import numpy as np

    from featuremill.kit.hdf5 import TEXT

    frame = _mark(root.create_group(name), "dataframe")
    frame.attrs["_index"] = index
    frame.attrs["column-order"] = np.array(columns, TEXT)
    return frame
