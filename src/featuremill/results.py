"""Results in Python: a run's vectors as a pandas DataFrame or a NumPy matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet as pq

from featuremill.errors import UserError
from featuremill.outputs import FILES
from featuremill.outputs.vectors import matrix


def load(run: str | Path) -> pd.DataFrame:
    """Return the results of `run` (such as "results/demo"): a row a record, indexed by id.

    Columns: length, sha256, and one column a value whose cells are NumPy vectors of shape (width,).

    Raises:
        UserError: when the run has no embeddings.parquet.
    """
    table = pq.read_table(_file(run, "parquet"))
    frame: pd.DataFrame = table.select(["id", "length", "sha256"]).to_pandas().set_index("id")
    for name in table.column_names[3:]:
        column = table[name]
        if hasattr(column.type, "list_size"):
            frame[name] = pd.Series(list(matrix(column)), index=frame.index, dtype=object)
        else:
            frame[name] = pd.Series(column.to_pylist(), index=frame.index, dtype=object)
    return frame


def load_matrix(run: str | Path, column: str | None = None) -> tuple[list[str], npt.NDArray[Any]]:
    """Return (ids, vectors) of `run`, vectors of shape (records, width) in the order of the ids.

    The vectors are memory-mapped from embeddings.npy where the run wrote it, and otherwise read
    from embeddings.parquet. `column` chooses among several pooled values; the first is the default.

    Raises:
        UserError: when the run has no such file or column.
    """
    path = _file(run, "parquet")
    schema = pq.read_schema(path)
    names = schema.names[3:]
    column = column or names[0]
    if column not in names:
        raise UserError(f"{path}: there is no column {column!r}; it has {', '.join(names)}.")
    ids: list[str] = pq.read_table(path, columns=["id"])["id"].to_pylist()
    mapped = Path(run) / FILES["npy"]
    if mapped.exists():
        vectors: npt.NDArray[Any] = np.load(mapped, mmap_mode="r")
        start = 0
        for name in names:
            width = getattr(schema.field(name).type, "list_size", 0)
            if name == column:
                return ids, vectors[:, start : start + width]
            start += width
    return ids, matrix(pq.read_table(path, columns=[column])[column])


def _file(run: str | Path, output: str) -> Path:
    path = Path(run) / FILES[output]
    if not path.exists():
        raise UserError(f"{path}: no such file; is the run finished, and is {output} in outputs?")
    return path
