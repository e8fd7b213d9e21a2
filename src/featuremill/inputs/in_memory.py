"""Write records in memory to a file that the workload's reader reads, for calls in Python.

Sequences and DataFrames are written as a Parquet table, other objects by the workload's
`write_object`. So records are read, refused and noted as in a run. pandas is not imported: a caller
with a DataFrame has imported it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from featuremill.base.errors import UserError
from featuremill.base.text import one_line
from featuremill.inputs import RowOptions, columns
from featuremill.workload import Workload, WorkloadOptions, optional

STEM = "inputs"


def paths_of(inputs: Any) -> list[Path]:
    """Return the paths in `inputs`, one path or several; [] if it contains records."""
    if isinstance(inputs, str | os.PathLike):
        return [Path(inputs)]
    is_listed = isinstance(inputs, list | tuple) and bool(inputs)
    if is_listed and all(isinstance(each, os.PathLike) for each in inputs):
        return [Path(path) for path in inputs]
    return []


def write(
    inputs: Any, workload: Workload, options: WorkloadOptions, folder: Path
) -> tuple[Path, WorkloadOptions]:
    """Write the records in `inputs` to a file in `folder`; return it and the options to read it.

    Raises:
        UserError: if `inputs` has no records that the workload reads.
    """
    written: Path | None = optional(workload, "write_object")(inputs, folder / STEM)
    if written:
        return written, options
    path = folder / f"{STEM}.parquet"
    if is_a(inputs, "pandas", "DataFrame"):
        pq.write_table(_table_of(inputs, options), path)
        return path, options
    if optional(workload, "TAKES_FILES") or isinstance(options, RowOptions):
        other = optional(workload, "OBJECTS") or "a DataFrame for rows of a table"
        raise UserError(
            f"inputs: this workload reads no sequences in memory ({type(inputs).__name__}); give "
            f"the path of a file, or {other}."
        )
    wanted = [getattr(options, name, "") for name in ("id_column", "sequence_column")]
    pq.write_table(_table_of_sequences(inputs, wanted[0] or "id", wanted[1] or "sequence"), path)
    return path, options


def is_a(value: Any, module: str, name: str) -> bool:
    """Return whether `value` is an instance of `module.name`, without importing the module."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name))


def _table_of(frame: Any, options: WorkloadOptions) -> pa.Table:
    """Return a DataFrame as a table. An index with a name becomes a column; without a column of
    ids, the index becomes the ids."""
    names, index = [str(name) for name in frame.columns], frame.index
    if index.nlevels == 1 and index.name is not None and str(index.name) not in names:
        frame = frame.reset_index()
    elif index.nlevels == 1 and not (getattr(options, "id_column", "") or columns.has_id(names)):
        frame = frame.reset_index(names=columns.IDS[0][0])
    try:
        return pa.Table.from_pandas(frame.rename(columns=str), preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError) as error:
        # If there are two arguments, the second names the column.
        problem = one_line(str(error.args[-1]))[:200].rstrip(".")
        raise UserError(
            f"inputs: this DataFrame cannot be read ({problem}); give each column one name and "
            "values of one type."
        ) from None


def _table_of_sequences(inputs: Any, id_name: str, sequence_name: str) -> pa.Table:
    """Return a table of sequences and ids, with these column names. Ids are the keys of a mapping,
    the index of a Series, else numbers from 0."""
    ids: Iterable[Any]
    if isinstance(inputs, Mapping):
        ids, texts = inputs.keys(), list(inputs.values())
    elif is_a(inputs, "pandas", "Series"):
        ids, texts = inputs.index, inputs.tolist()
    elif isinstance(inputs, Iterable) and not isinstance(inputs, bytes | Set):  # in no order
        texts = list(inputs)
        ids = range(len(texts))
    else:
        raise UserError(
            f"inputs: this is of type {type(inputs).__name__}; give the path of a file, sequences "
            "or a DataFrame."
        )
    names = list(map(str, ids))
    for name, text in zip(names, texts, strict=True):
        if not isinstance(text, str):
            raise UserError(
                f"inputs[{name}]: this is of type {type(text).__name__}; give a string."
            )
    if texts and "." in texts[0] and os.path.isfile(texts[0]):  # noqa: PTH113  (any length)
        raise UserError(
            f"inputs[{names[0]}]: {texts[0]} is a file, and a list of strings holds sequences; "
            "give files as pathlib.Path."
        )
    table = {}
    for column, values in ((id_name, names), (sequence_name, texts)):
        valid = (text.encode("utf-8", "replace").decode() for text in values)  # no surrogates
        table[column] = pa.array(valid, pa.large_string())
    return pa.table(table)
