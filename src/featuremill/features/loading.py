"""`featuremill.load` and `load_matrix`: a run's vectors as a pandas DataFrame or a NumPy matrix."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from featuremill.base.arrays import matrix
from featuremill.base.errors import UserError
from featuremill.base.id_columns import KEYS, SAMPLE, IdColumns
from featuremill.base.text import clipped
from featuremill.features.records import Records
from featuremill.features.table import Rows, Table, chosen
from featuremill.store.formats import ABOUT, files_of, format_of
from featuremill.store.records import whole_ids, with_keys
from featuremill.store.results import Results

MOST_NAMED = 3
"""Largest number of ids in a message."""


def rows_of(path: Path, ids: Sequence[str]) -> pa.Table:
    """Return the rows of the table at `path` with these `ids` or accessions, in their order, with
    all columns; in a run with samples, an id is <sample>/<id>.

    Raises:
        UserError: if an id does not exist; the message names it.
    """
    table = Table(path)
    return taken(table, places_of(table, ids))


def places_of(table: Table, ids: Sequence[str]) -> Rows:
    """Return the row of each of the `ids`.

    Raises:
        UserError: if an id does not exist; the message names it.
    """
    row_of = Records(Results(table.path.parent), table).rows_named(ids)
    if missing := [id for id in dict.fromkeys(ids) if id not in row_of]:
        named = ", ".join(repr(clipped(id)) for id in missing[:MOST_NAMED])
        more = f" and {len(missing) - MOST_NAMED:,} more" if len(missing) > MOST_NAMED else ""
        raise UserError(
            f"{table.path}: there is no record {named}{more} in it; failed.tsv beside it lists the "
            "records without features, and of a run with samples an id is <sample>/<id>."
        )
    return np.array([row_of[id] for id in ids], np.int64)


def taken(table: Table, rows: Rows) -> pa.Table:
    """Return the `rows` of a table, in their order, with all columns."""
    places, batches = [np.empty(0, np.int64)], [table.schema.empty_table()]
    for where, batch in table.pieces(rows, table.schema.names):
        places.append(where)
        batches.append(pa.Table.from_batches([batch]).select(table.schema.names))
    back = np.empty(len(rows), np.int64)
    back[np.concatenate(places)] = np.arange(len(rows))
    return pa.concat_tables([each.cast(table.schema) for each in batches]).take(pa.array(back))


NESTED = ("options", "versions")
"""Attributes of a table whose values are JSON."""


def load(
    run: str | Path,
    samples: Iterable[str] | str | None = None,
    *,
    ids: Iterable[str] | str | None = None,
) -> pd.DataFrame:
    """Return the results of `run` (such as "results/demo"): a row per record, indexed by id.

    `run` may also be the table: embeddings.parquet or embeddings/. Partial results are those of
    results/demo/partial. In a run with samples, `samples` selects some of them. `ids` selects
    records, in this order: whole ids, or the accessions in them; with samples, an id is
    <sample>/<id>. A text in place of a list is one id, or one sample. With `ids`, only the needed
    rows of a table in the order of shards are read.

    Columns: accession, description, length, sha256, and a column per value whose cells are NumPy
    vectors of shape (width,), or, per residue, lists with a list of numbers per residue. `attrs`
    are those of the table: model_name, workload, workload_version, options, weights_sha256, recipe
    and versions.

    Raises:
        UserError: if there is neither embeddings.parquet nor embeddings/, or no such sample or id.
    """
    if ids is not None and samples is not None:
        raise UserError("load: give samples or ids, and not both; an id names its sample.")
    ids = None if ids is None else _texts("ids", ids)
    samples = None if samples is None else _texts("samples", samples)
    path = _table(run)
    table = _read(path, samples) if ids is None else rows_of(path, ids)
    about = [name for name in (*ABOUT, *KEYS) if name in table.column_names]
    frame: pd.DataFrame = table.select(about).to_pandas().set_index("id")
    for name in table.drop_columns(about).column_names:
        column = table[name]
        if hasattr(column.type, "list_size"):
            frame[name] = pd.Series(list(matrix(column)), index=frame.index, dtype=object)
        else:
            frame[name] = pd.Series(column.to_pylist(), index=frame.index, dtype=object)
    frame.attrs = _provenance(table.schema)
    return frame


def _texts(name: str, texts: Iterable[str]) -> list[str]:
    """Return one or several texts as a list; `name` is the argument in messages."""
    listed = [texts] if isinstance(texts, str) or not isinstance(texts, Iterable) else list(texts)
    if others := [text for text in listed if not isinstance(text, str)]:
        kind = type(others[0]).__name__
        raise UserError(f"load: {name}: {others[0]!r} is of type {kind}; give texts.")
    return listed


def _provenance(schema: pa.Schema) -> dict[Hashable | None, Any]:
    """Return the attributes of a table of results; {} for a table by another program."""
    texts = json.loads((schema.metadata or {}).get(b"featuremill", b"{}"))
    return {name: json.loads(texts[name]) if name in NESTED else texts[name] for name in texts}


def load_matrix(run: str | Path, column: str | None = None) -> tuple[list[str], npt.NDArray[Any]]:
    """Return (ids, vectors) of `run`, vectors of shape (records, width) in the order of the ids.

    The vectors are memory-mapped from embeddings.npy if the run wrote it, else read from
    embeddings.parquet or embeddings/, which may also be given as `run`. `column` selects one of
    several columns of pooled values.

    Raises:
        UserError: if the run has no such file or column.
    """
    path = _table(run)
    schema = _dataset(path).schema
    selected = chosen(schema, column, path)
    columns_of_ids = _read(path, columns=IdColumns.among(schema.names).names)
    ids: list[str] = whole_ids(with_keys(columns_of_ids)).to_pylist()
    if ids and path != Path(run) and _has_npy(run):
        npy = _file(run, "npy")
        with contextlib.suppress(ValueError, EOFError):
            vectors: npt.NDArray[Any] = np.load(npy, mmap_mode="r")
            if vectors.shape == (len(ids), selected.total):
                return ids, vectors[:, selected.start : selected.start + selected.width]
        raise UserError(
            f"{npy}: this is not what merge wrote; featuremill merge {run} writes it anew."
        )
    return ids, matrix(_read(path, columns=[selected.name])[selected.name])


def _has_npy(run: str | Path) -> bool:
    """Return whether there is an embeddings.npy with the rows of the table. With results by shard,
    an exported one has another order."""
    delivery = Results(Path(run)).find_delivery()
    is_by_shard = delivery is not None and delivery.row_order == "shard"
    return not is_by_shard and format_of("npy").file in _outputs(run)


def _dataset(path: Path) -> ds.Dataset:
    """Open a table; names of folders such as sample=a become columns."""
    files = list(map(str, files_of(path)))
    keys = [(key, pa.string()) for key in KEYS if any(path.glob(f"{key}=*"))]
    by_name = ds.partitioning(pa.schema(keys), flavor="hive") if keys else None
    return ds.dataset(files, partitioning=by_name, partition_base_dir=str(path))


def _read(
    path: Path, samples: Sequence[str] | None = None, columns: Sequence[str] | None = None
) -> pa.Table:
    table = _dataset(path)
    if samples is None:
        return table.to_table(columns=columns and list(columns))
    if SAMPLE not in table.schema.names:
        raise UserError(f"{path}: these results are of a run without samples; leave them out.")
    rows = table.to_table(filter=ds.field(SAMPLE).isin(list(samples)))
    samples_there = set(rows[SAMPLE].to_pylist())
    if missing := [sample for sample in samples if sample not in samples_there]:
        raise UserError(
            f"{path}: there is no record of sample {missing[0]!r} in it; samples.tsv beside it has "
            "all samples."
        )
    return rows


def _table(run: str | Path) -> Path:
    if _is_table(Path(run)):
        return Path(run)
    has_dataset = format_of("parquet_dataset").file in _outputs(run)
    return _file(run, "parquet_dataset" if has_dataset else "parquet")


def _is_table(path: Path) -> bool:
    """Tell whether `path` is no run but a table: embeddings.parquet or embeddings/.

    Raises:
        UserError: when it is another file, or a table that is not there.
    """
    if path.is_dir():
        has_files = any(any(path.glob(each)) for each in format_of("parquet_dataset").holds)
        return path.name == format_of("parquet_dataset").file and has_files
    is_named = path.suffix == ".parquet"
    problem = ""
    if path.exists() != is_named:
        problem = "there is no such table" if is_named else "this is no table of results"
    elif is_named and "id" not in _columns(path):
        problem = "this is no table of results that is whole"
    if problem:
        raise UserError(f"{path}: {problem}; name the run's folder, as in results/demo.")
    return is_named


def _columns(path: Path) -> list[str]:
    try:
        names: list[str] = pq.read_schema(path).names
    except pa.ArrowInvalid:
        return []
    return names


def _file(run: str | Path, output: str) -> Path:
    path = Path(run) / format_of(output).file
    if path.name in _outputs(run) and path.exists():
        return path
    partial = Results(Path(run)).partial
    if partial.delivery.exists():
        raise UserError(
            f"{path.parent}: these results are partial, as the run is not finished; this reads "
            f"what was computed by then: featuremill.load({str(partial.root)!r})"
        )
    raise UserError(f"{path}: no such result; is the run finished, and is {output} in outputs?")


def _outputs(run: str | Path) -> list[str]:
    """Return the result files in manifest.json; a file that it does not list may be stale."""
    return list(Results(Path(run)).written())
